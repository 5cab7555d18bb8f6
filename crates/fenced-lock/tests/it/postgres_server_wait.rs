//! What is particular to locks of PostgreSQL for which the server lets its clients wait: advisory locks and row locks.

use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use fenced_lock::{
    BackendErrorKind, Guard, LockError, Mutex, PostgresOptions, Session, SessionOptions,
};
use futures_util::{StreamExt as _, stream};
use rustix::process::{Pid, Signal, kill_process};
use testkit::wait::{eventually, within};
use testkit::{PostgresOptions as ServerOptions, PrivatePostgres, Proxy, Way};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::lab::{Lab, TTL, queue_length, queue_of};
use super::lab_postgres::{Kind, ServerWaitLab, client, private};

/// Longer than any wait of a test, so that what waits for a lease to end fails.
const LONG: Duration = Duration::from_mins(20);

/// How many claims of a worker wait behind the one that holds.
const WAITERS_OF_A_WORKER: usize = 5;

/// Runs these tests with both kinds of locks.
macro_rules! on_both {
    ($($test:ident)*) => {
        mod advisory {
            $(#[tokio::test]
            async fn $test() {
                super::$test(super::Kind::Advisory).await;
            })*
        }
        mod row {
            $(#[tokio::test]
            async fn $test() {
                super::$test(super::Kind::Row).await;
            })*
        }
    };
}

on_both! {
    the_library_waits_for_psql
    psql_waits_for_the_library
    a_stopped_holder_is_succeeded
    a_stopped_process_takes_no_turn_for_each_claim
    a_killed_holder_is_succeeded_at_once
    a_long_hold_and_a_long_wait_live_on
    an_unused_session_ends_its_connections
    a_crash_of_the_server_takes_the_locks
    a_cut_connection_leaves_nothing_behind
    a_cut_at_any_request_leaves_nothing_behind
    a_hundred_waiters_are_served
    each_claim_takes_a_connection
    contention_is_not_known
    a_claim_that_was_handed_over_is_not_shown
    the_way_to_the_server_is_measured
    whether_a_late_claim_can_be_served_first
    rights_are_needed_and_enough
    connections_are_encrypted
}

impl Kind {
    async fn open_with(
        self,
        options: &PostgresOptions,
        ttl: Duration,
    ) -> Result<Session, LockError> {
        Session::open(self.backend(options)?, SessionOptions::new(ttl)).await
    }

    async fn open(self, url: &str, ttl: Duration) -> Result<Session, LockError> {
        self.open_with(&PostgresOptions::new(url), ttl).await
    }

    async fn mutex(self, url: &str, name: &str) -> Mutex {
        self.open(url, LONG).await.unwrap().mutex(name).unwrap()
    }
}

fn kind_of<T: std::fmt::Debug>(result: Result<T, LockError>) -> BackendErrorKind {
    match result.unwrap_err() {
        LockError::Backend(error) => error.kind,
        other => panic!("not an error of the backend: {other}"),
    }
}

/// A session of `psql`, which takes a lock as the documentation says.
struct Psql {
    kind: Kind,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    _process: Child,
}

impl Psql {
    fn start(lab: &ServerWaitLab) -> Self {
        let mut process = Command::new(testkit::postgres::psql())
            .args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", lab.url()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { kind: lab.kind, input: process.stdin.take().unwrap(), output, _process: process }
    }

    async fn send(&mut self, line: String) {
        self.input.write_all(line.as_bytes()).await.unwrap();
    }

    async fn answer(&mut self) -> String {
        within("psql answers", self.output.next_line()).await.unwrap().unwrap()
    }

    async fn ask_to_lock(&mut self, name: &str) {
        let line = match self.kind {
            Kind::Advisory => {
                format!("SELECT 'locked' FROM pg_advisory_lock(hashtextextended('{name}', 0));\n")
            }
            Kind::Row => format!(
                "INSERT INTO fenced_lock.row_locks VALUES ('{name}') ON CONFLICT DO NOTHING;
                BEGIN;
                SELECT 'locked' FROM fenced_lock.row_locks WHERE name = '{name}' FOR UPDATE;\n"
            ),
        };
        self.send(line).await;
    }

    /// Whether it finds the lock taken.
    async fn finds_it_taken(&mut self, name: &str) -> bool {
        let line = match self.kind {
            Kind::Advisory => {
                format!("SELECT NOT pg_try_advisory_lock(hashtextextended('{name}', 0));\n")
            }
            Kind::Row => format!(
                "SELECT count(*) = 0 FROM (SELECT FROM fenced_lock.row_locks
                WHERE name = '{name}' FOR UPDATE SKIP LOCKED) free;\n"
            ),
        };
        self.send(line).await;
        self.answer().await == "t"
    }

    async fn unlock(&mut self, name: &str) {
        let line = match self.kind {
            Kind::Advisory => {
                format!(
                    "SELECT 'unlocked' FROM pg_advisory_unlock(hashtextextended('{name}', 0));\n"
                )
            }
            Kind::Row => "COMMIT; SELECT 'unlocked';\n".to_owned(),
        };
        self.send(line).await;
        assert_eq!(self.answer().await, "unlocked");
    }
}

/// Goal: what `psql` holds, the library waits for, and sees in the queue.
async fn the_library_waits_for_psql(kind: Kind) {
    let Some(lab) = ServerWaitLab::shared(kind).await else { return };
    let mutex = lab.mutex(&lab.name()).await;
    let mut psql = Psql::start(&lab);
    psql.ask_to_lock(mutex.name()).await;
    assert_eq!(psql.answer().await, "locked");
    assert!(mutex.try_lock().await.unwrap().is_none());
    let waiting = mutex.clone();
    let waiter = tokio::spawn(async move { waiting.lock().await });
    queue_length(&mutex, 2).await;
    let queue = mutex.queue().await.unwrap();
    assert_eq!((&queue[0].label, queue[0].token), (&None, None), "a foreign claim");
    assert!(!waiter.is_finished());
    psql.unlock(mutex.name()).await;
    drop(within("the library is granted", waiter).await.unwrap().unwrap());
}

/// Goal: what the library holds, `psql` waits for, and a claim of the library behind it waits for both.
async fn psql_waits_for_the_library(kind: Kind) {
    let Some(lab) = ServerWaitLab::shared(kind).await else { return };
    let mutex = lab.mutex(&lab.name()).await;
    let guard = mutex.lock().await.unwrap();
    let mut psql = Psql::start(&lab);
    assert!(psql.finds_it_taken(mutex.name()).await);
    psql.ask_to_lock(mutex.name()).await;
    queue_length(&mutex, 2).await;
    let waiting = mutex.clone();
    let waiter = tokio::spawn(async move { waiting.lock().await });
    queue_length(&mutex, 3).await;
    guard.unlock().await.unwrap();
    assert_eq!(psql.answer().await, "locked");
    assert!(!waiter.is_finished());
    drop(psql);
    drop(within("the library is granted", waiter).await.unwrap().unwrap());
}

async fn holder(lab: &ServerWaitLab, name: &str, ttl: Duration, file: &Path) -> Child {
    holder_at(lab.url(), lab.kind, name, ttl, file).await
}

async fn holder_at(url: &str, kind: Kind, name: &str, ttl: Duration, file: &Path) -> Child {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "postgres_server_wait::holding_worker"])
        .envs([("LOCK_WORKER_URL", url), ("LOCK_WORKER_NAME", name)])
        .env("LOCK_WORKER_KIND", format!("{kind:?}"))
        .env("LOCK_WORKER_TTL", ttl.as_secs().to_string())
        .env("LOCK_WORKER_FILE", file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    eventually("it holds the lock", async || told(file).ends_with("held")).await;
    child
}

fn told(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_default()
}

#[tokio::test]
#[ignore = "run by other tests"]
async fn holding_worker() {
    let Ok(url) = std::env::var("LOCK_WORKER_URL") else { return };
    let told = |what: &str| std::env::var(format!("LOCK_WORKER_{what}")).unwrap();
    let ttl = Duration::from_secs(told("TTL").parse().unwrap());
    let kind = if told("KIND") == "Row" { Kind::Row } else { Kind::Advisory };
    let session = kind.open(&url, ttl).await.unwrap();
    let mutex = session.mutex(&told("NAME")).unwrap();
    let guard = mutex.lock().await.unwrap();
    for _ in 0..WAITERS_OF_A_WORKER {
        let mutex = mutex.clone();
        tokio::spawn(async move { mutex.lock().await });
    }
    std::fs::write(told("FILE"), format!("{} held", guard.token())).unwrap();
    guard.lost().await;
    std::fs::write(told("FILE"), "lost").unwrap();
}

/// Goal: a holder that is stopped beyond its lease is succeeded, by a grant with a larger token, and learns of its loss
/// when it goes on. The connection of a stopped process lives, so this takes the server's timeout.
async fn a_stopped_holder_is_succeeded(kind: Kind) {
    let Some(lab) = ServerWaitLab::shared(kind).await else { return };
    let mutex = lab.mutex(&lab.name()).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("told");
    let mut holder = holder(&lab, mutex.name(), TTL, &file).await;
    let token: i64 = told(&file).split(' ').next().unwrap().parse().unwrap();
    let pid = Pid::from_raw(holder.id().unwrap().cast_signed()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let guard = within("the next is served", mutex.lock()).await.unwrap();
    assert!(guard.token().revision() > token);
    kill_process(pid, Signal::CONT).unwrap();
    assert!(within("the worker ends", holder.wait()).await.unwrap().success());
    assert_eq!(told(&file), "lost");
    assert!(!guard.is_lost());
}

/// Goal: a stopped process takes one turn or two, however many of its claims wait. Method: counts those of its connections
/// that have a lock and are idle, for longer than it takes to notice that the session has ended.
async fn a_stopped_process_takes_no_turn_for_each_claim(kind: Kind) {
    let Some(postgres) = private().await else { return };
    let mutex = kind.mutex(&postgres.url(), "a").await;
    let dir = tempfile::tempdir().unwrap();
    let holder = holder_at(&postgres.url(), kind, "a", TTL, &dir.path().join("told")).await;
    queue_length(&mutex, 1 + WAITERS_OF_A_WORKER).await;
    let lease = mutex.queue().await.unwrap()[0].lease;
    let pid = Pid::from_raw(holder.id().unwrap().cast_signed()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let waiter = tokio::spawn(async move { mutex.lock().await });
    let operator = client(&postgres.url()).await;
    let idle = format!(
        "SELECT pid FROM pg_stat_activity WHERE application_name ~ '^fenced-lock {lease:x}-'
        AND state ~ '^idle' AND clock_timestamp() - state_change > interval '200 ms'"
    );
    let mut holders = std::collections::BTreeSet::new();
    eventually("the next is served", async || {
        let rows = operator.query(&idle, &[]).await.unwrap();
        holders.extend(rows.iter().map(|row| row.get::<_, i32>(0)));
        waiter.is_finished()
    })
    .await;
    waiter.await.unwrap().unwrap().unlock().await.unwrap();
    assert!((1..=2).contains(&holders.len()), "{holders:?}");
}

/// Goal: a holder whose process ends is succeeded at once, and not after its TTL.
async fn a_killed_holder_is_succeeded_at_once(kind: Kind) {
    let Some(lab) = ServerWaitLab::shared(kind).await else { return };
    let mutex = lab.mutex(&lab.name()).await;
    let dir = tempfile::tempdir().unwrap();
    let mut holder = holder(&lab, mutex.name(), LONG, &dir.path().join("told")).await;
    holder.start_kill().unwrap();
    drop(within("the next is served", mutex.lock()).await.unwrap());
}

/// Goal: a hold that lasts longer than its TTL lives on, and so does one that waited for so long.
async fn a_long_hold_and_a_long_wait_live_on(kind: Kind) {
    let Some(lab) = ServerWaitLab::shared(kind).await else { return };
    let name = lab.name();
    let (ours, theirs) = (lab.mutex(&name).await, lab.mutex(&name).await);
    let guard = ours.lock().await.unwrap();
    let waiter = tokio::spawn(async move { theirs.lock().await });
    queue_length(&ours, 2).await;
    tokio::time::sleep(TTL * 2).await;
    assert!(!guard.is_lost());
    guard.unlock().await.unwrap();
    let guard = within("the waiter is granted", waiter).await.unwrap().unwrap();
    tokio::time::sleep(TTL * 2).await;
    assert!(!guard.is_lost());
    assert_eq!(queue_of(&ours).await, [guard.key()]);
}

/// Goal: a session that nobody uses any more ends all its connections; but a guard uses it.
async fn an_unused_session_ends_its_connections(kind: Kind) {
    let Some(postgres) = private().await else { return };
    let operator = client(&postgres.url()).await;
    let connections = async || {
        let count = "SELECT count(*) FROM pg_stat_activity
            WHERE starts_with(application_name, 'fenced-lock')";
        operator.query_one(count, &[]).await.unwrap().get::<_, i64>(0)
    };
    let guard = kind.mutex(&postgres.url(), "a").await.lock().await.unwrap();
    tokio::time::sleep(TTL).await;
    assert_eq!(connections().await, 3, "the guard keeps the session alive");
    assert!(!guard.is_lost());
    drop(guard);
    eventually("all connections have ended", async || connections().await == 0).await;
}

/// Goal: what is not promised: a crash of the server takes the locks with the connections. Their holders are told,
/// and no token comes twice.
async fn a_crash_of_the_server_takes_the_locks(kind: Kind) {
    let Some(mut postgres) = private().await else { return };
    let session = kind.open(&postgres.url(), TTL).await.unwrap();
    let guard = session.mutex("a").unwrap().lock().await.unwrap();
    let token = guard.token();
    postgres.crash().await.unwrap();
    within("the holder is told", guard.lost()).await;
    within("the session is lost", session.lost()).await;
    postgres.restart().await.unwrap();
    let next = kind.mutex(&postgres.url(), "a").await.lock().await.unwrap();
    assert!(next.token() > token);
}

/// Goal: a connection that is cut at a release or a wait leaves nothing behind, though the server does not notice
/// it; the claims are told.
async fn a_cut_connection_leaves_nothing_behind(kind: Kind) {
    let Some(postgres) = private().await else { return };
    let proxy = Proxy::to(postgres.port()).await.unwrap();
    let observer = kind.mutex(&postgres.url(), "a").await;
    let ours = kind.mutex(&postgres.url_of("postgres", proxy.port()), "a").await;
    let guard = ours.lock().await.unwrap();
    proxy.swallow(1);
    guard.unlock().await.unwrap();
    assert_eq!(proxy.swallowed_answers(), 1);
    queue_length(&observer, 0).await;

    let held = observer.lock().await.unwrap();
    let waiting = ours.clone();
    let waiter = tokio::spawn(async move { waiting.lock().await });
    queue_length(&observer, 2).await;
    proxy.cut();
    let ended = within("the waiter is told", waiter).await.unwrap().unwrap_err();
    assert!(matches!(ended, LockError::Lost | LockError::SessionLost { .. }), "{ended}");
    queue_length(&observer, 1).await;
    held.unlock().await.unwrap();
}

/// Goal: wherever a request or an answer is lost with its connection, the call comes to an end, and nothing is left
/// behind. Method: each chunk of a session that locks, hands over and unlocks is lost once.
async fn a_cut_at_any_request_leaves_nothing_behind(kind: Kind) {
    let Some(postgres) = private().await else { return };
    let proxy = Proxy::to(postgres.port()).await.unwrap();
    let options = PostgresOptions::new(postgres.url_of("postgres", proxy.port()));
    let observer = kind.mutex(&postgres.url(), "a").await;
    for way in [Way::There, Way::Back] {
        let mut chunks = 0;
        loop {
            proxy.lose_after(way, chunks);
            let course = async {
                let session = kind.open_with(&options, LONG).await?;
                let guard = session.mutex("a")?.lock().await?;
                guard.hand_over().await?.unlock().await?;
                session.close().await
            };
            let ended = within("the calls end", course).await;
            queue_length(&observer, 0).await;
            drop(within("the lock is free", observer.lock()).await.unwrap());
            queue_length(&observer, 0).await;
            if !proxy.has_lost() {
                ended.unwrap();
                break;
            }
            chunks += 1;
        }
        assert!(chunks > 10, "{chunks} chunks");
    }
}

/// Goal: 100 waiters of two sessions are served, each once: by advisory locks in their order.
async fn a_hundred_waiters_are_served(kind: Kind) {
    let Some(postgres) = private().await else { return };
    let sessions = [
        kind.open(&postgres.url(), LONG).await.unwrap(),
        kind.open(&postgres.url(), LONG).await.unwrap(),
    ];
    let mutex = sessions[0].mutex("queue").unwrap();
    let holder = mutex.lock().await.unwrap();
    let turns = Arc::new(StdMutex::new(Vec::new()));
    let mut waiters = tokio::task::JoinSet::new();
    for number in 0..100 {
        let (waiting, turns) = (sessions[number % 2].mutex("queue").unwrap(), Arc::clone(&turns));
        waiters.spawn(async move {
            let guard = waiting.lock().await.unwrap();
            turns.lock().unwrap().push((number, guard.token()));
            guard.unlock().await.unwrap();
        });
        queue_length(&mutex, number + 2).await;
    }
    holder.unlock().await.unwrap();
    within("all are served", waiters.join_all()).await;
    let mut turns = turns.lock().unwrap().clone();
    assert!(turns.is_sorted_by(|one, next| one.1 < next.1), "{turns:?}");
    if kind == Kind::Row {
        turns.sort_by_key(|turn| turn.0);
    }
    assert!(turns.into_iter().map(|turn| turn.0).eq(0..100));
}

/// Goal: what is not promised: each claim takes a connection, and the server has only so many. Of a thousand names at
/// once some are held, the others are refused; none waits for ever, and it is no loss to the others.
async fn each_claim_takes_a_connection(kind: Kind) {
    if !testkit::postgres::is_installed() {
        return;
    }
    let settings = vec!["max_connections=30".to_owned()];
    let options = ServerOptions { settings, ..ServerOptions::default() };
    let postgres = PrivatePostgres::start(options).await.unwrap();
    let session = kind.open(&postgres.url(), LONG).await.unwrap();
    let lock = async |number| session.mutex(&format!("name-{number}")).unwrap().lock().await;
    let locks = stream::iter(0..1000).map(lock).buffer_unordered(100).collect::<Vec<_>>();
    let (guards, refused): (Vec<_>, Vec<_>) =
        within("all end", locks).await.into_iter().partition(Result::is_ok);
    // the session has two, which a claim cannot take
    assert_eq!(guards.len(), 28);
    for error in refused {
        let said = error.as_ref().unwrap_err().to_string();
        assert!(said.contains("too many clients"), "{said}");
        assert_eq!(kind_of(error), BackendErrorKind::Refused);
    }
    let mut guards: Vec<_> = guards.into_iter().map(Result::unwrap).collect();
    assert!(guards.iter().all(|guard| !guard.is_lost()));
    guards.pop().unwrap().unlock().await.unwrap();
    let mutex = session.mutex("another").unwrap();
    eventually("there is room", async || match mutex.lock().await {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(kind_of::<()>(Err(error)), BackendErrorKind::Refused);
            false
        }
    })
    .await;
}

/// Goal: what is not promised: a holder does not know whether others wait, and has to take it that they do.
async fn contention_is_not_known(kind: Kind) {
    let Some(lab) = ServerWaitLab::shared(kind).await else { return };
    let guard = lab.mutex(&lab.name()).await.lock().await.unwrap();
    tokio::time::sleep(TTL).await;
    assert!(guard.is_contended());
}

/// Goal: a claim that waits after a hand-over is shown as such, on the connection of the one before it.
async fn a_claim_that_was_handed_over_is_not_shown(kind: Kind) {
    let Some(lab) = ServerWaitLab::shared(kind).await else { return };
    let name = lab.name();
    let (ours, theirs) = (lab.mutex(&name).await, lab.mutex(&name).await);
    let guard = ours.lock().await.unwrap();
    let first = guard.key();
    let waiter = tokio::spawn(async move { theirs.lock().await });
    queue_length(&ours, 2).await;
    let handing_over = tokio::spawn(guard.hand_over());
    let others = within("the other one is served", waiter).await.unwrap().unwrap();
    queue_length(&ours, 2).await;
    let queue = ours.queue().await.unwrap();
    assert_eq!((&queue[0].key, queue[0].token), (&others.key(), Some(others.token())));
    assert_ne!(queue[1].key, first);
    assert_eq!(queue[1].token, None);
    others.unlock().await.unwrap();
    let again = within("it comes back", handing_over).await.unwrap().unwrap();
    assert_eq!(again.key(), queue[1].key);
}

/// Goal: a guard tells how long its claim took to queue, the way to the server and back included, also after a
/// hand-over.
async fn the_way_to_the_server_is_measured(kind: Kind) {
    let Some(postgres) = private().await else { return };
    let proxy = Proxy::to(postgres.port()).await.unwrap();
    let mutex = kind.mutex(&postgres.url_of("postgres", proxy.port()), "a").await;
    let each_way = Duration::from_millis(30);
    proxy.delay(each_way);
    let guard = mutex.lock().await.unwrap();
    assert!(guard.enqueued_in() >= 2 * each_way);
    let guard = guard.hand_over().await.unwrap();
    assert!(guard.enqueued_in() >= 2 * each_way);
}

/// Goal: what is promised of advisory locks, and not of row locks: nobody overtakes a waiter. Method: the server process
/// of a waiter is stopped, so that it takes nothing by itself; then the lock is released, and tried.
async fn whether_a_late_claim_can_be_served_first(kind: Kind) {
    let Some(postgres) = private().await else { return };
    let operator = client(&postgres.url()).await;
    let [first, second, late] = [
        kind.mutex(&postgres.url(), "a").await,
        kind.mutex(&postgres.url(), "a").await,
        kind.mutex(&postgres.url(), "a").await,
    ];
    let guard = first.lock().await.unwrap();
    let waiter = tokio::spawn(async move { second.lock().await });
    queue_length(&first, 2).await;
    let waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    let pid = operator.query_one(waiting, &[]).await.unwrap().get(0);
    let pid = Pid::from_raw(pid).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    guard.unlock().await.unwrap();
    let late = late.try_lock().await;
    kill_process(pid, Signal::CONT).unwrap();
    let late = late.unwrap();
    assert_eq!(late.is_some(), kind == Kind::Row);
    if let Some(late) = late {
        assert!(!waiter.is_finished());
        late.unlock().await.unwrap();
    }
    drop(within("the waiter is served", waiter).await.unwrap().unwrap());
}

/// Goal: rights to lock and to count the grants are needed, and enough. Advisory locks do not need the table of rows, which
/// an operator may not have made.
async fn rights_are_needed_and_enough(kind: Kind) {
    let Some(postgres) = private().await else { return };
    let operator = client(&postgres.url()).await;
    let text = include_str!("../../src/postgres/schema.sql");
    operator.batch_execute("CREATE ROLE app LOGIN").await.unwrap();
    operator.batch_execute(text).await.unwrap();
    operator.batch_execute("GRANT USAGE ON SCHEMA fenced_lock TO app").await.unwrap();
    let url = postgres.url_of("app", postgres.port());
    let tables: &[_] = match kind {
        Kind::Advisory => {
            operator.batch_execute("DROP TABLE fenced_lock.row_locks").await.unwrap();
            &["names"]
        }
        Kind::Row => &["names", "row_locks"],
    };
    for table in tables {
        let refused = kind.open(&url, LONG).await;
        let said = refused.as_ref().unwrap_err().to_string();
        assert!(said.contains("permission denied"), "{said}");
        assert_eq!(kind_of(refused), BackendErrorKind::Permanent);
        let grant = format!("GRANT SELECT, INSERT, UPDATE ON fenced_lock.{table} TO app");
        assert!(text.contains(&grant));
        operator.batch_execute(&grant).await.unwrap();
    }
    let mutex = kind.mutex(&url, "a").await;
    let guard = mutex.lock().await.unwrap().hand_over().await.unwrap();
    assert_eq!(mutex.queue().await.unwrap()[0].token, Some(guard.token()));
}

/// Goal: the connections of claims are encrypted as well, and each checks the server's certificate.
async fn connections_are_encrypted(kind: Kind) {
    if !testkit::postgres::is_installed() {
        return;
    }
    let options = ServerOptions { secured: true, ..ServerOptions::default() };
    let postgres = PrivatePostgres::start(options).await.unwrap();
    let options = PostgresOptions::new(postgres.url());
    let not_trusted = kind.open_with(&options, LONG).await;
    let said = not_trusted.as_ref().unwrap_err().to_string();
    assert!(said.contains("certificate"), "{said}");
    assert_eq!(kind_of(not_trusted), BackendErrorKind::Permanent);
    let ca = std::fs::read(postgres.certificates().unwrap().ca()).unwrap();
    let session = kind.open_with(&PostgresOptions { ca: Some(ca), ..options }, LONG).await.unwrap();
    let mutex = session.mutex("a").unwrap();
    let guard: Guard = mutex.lock().await.unwrap().hand_over().await.unwrap();
    assert_eq!(queue_of(&mutex).await, [guard.key()]);
    guard.unlock().await.unwrap();
    assert!(mutex.try_lock().await.unwrap().is_some());
}

/// Goal: a row's grant is counted on another connection. That one may be lost meanwhile; but without a word of the one
/// that holds the row there is no grant, and the number goes to nobody. Method: an operator holds up the count.
#[tokio::test]
async fn a_grant_needs_both_its_connections() {
    let Some(postgres) = private().await else { return };
    let (mut operator, observer) = (client(&postgres.url()).await, client(&postgres.url()).await);
    let mutex = Kind::Row.mutex(&postgres.url(), "a").await;
    mutex.lock().await.unwrap().unlock().await.unwrap();
    let pid_of = async |connection: &str| {
        let find =
            format!("SELECT pid FROM pg_stat_activity WHERE application_name LIKE '{connection}'");
        observer.query_one(&find, &[]).await.unwrap().get::<_, i32>(0)
    };
    let counts = async || {
        let waiting = "SELECT count(*) FROM pg_stat_activity
            WHERE application_name = 'fenced-lock' AND wait_event_type = 'Lock'";
        observer.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) == 1
    };
    let write = "UPDATE fenced_lock.names SET last = last";

    let held = operator.transaction().await.unwrap();
    held.execute(write, &[]).await.unwrap();
    let waiting = mutex.clone();
    let waiter = tokio::spawn(async move { waiting.lock().await });
    eventually("it counts", counts).await;
    let terminate = "SELECT pg_terminate_backend($1, 30000)";
    observer.query_one(terminate, &[&pid_of("fenced-lock").await]).await.unwrap();
    held.commit().await.unwrap();
    let first = within("it is granted", waiter).await.unwrap().unwrap();
    let token = first.token();
    first.unlock().await.unwrap();

    let held = operator.transaction().await.unwrap();
    held.execute(write, &[]).await.unwrap();
    let waiting = mutex.clone();
    let waiter = tokio::spawn(async move { waiting.lock().await });
    eventually("it counts", counts).await;
    let pid = Pid::from_raw(pid_of("fenced-lock %-% - %").await).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    held.commit().await.unwrap();
    let counted = "SELECT last FROM fenced_lock.names WHERE last > $1";
    eventually("it has counted", async || {
        !observer.query(counted, &[&token.revision()]).await.unwrap().is_empty()
    })
    .await;
    // on the connection that has counted, so the answer to that has come
    let queue = mutex.queue().await;
    kill_process(pid, Signal::TERM).unwrap();
    kill_process(pid, Signal::CONT).unwrap();
    assert_eq!(queue.unwrap().len(), 1);
    let ended = within("it is told", waiter).await.unwrap().unwrap_err();
    assert!(matches!(ended, LockError::Lost), "{ended}");
    assert!(mutex.lock().await.unwrap().token().revision() > token.revision() + 1);
}

/// Goal: a row that an operator deletes ends the claims that wait for it. The next one makes it anew, and its token is
/// larger all the same.
#[tokio::test]
async fn a_row_that_is_deleted_is_made_anew() {
    let Some(postgres) = private().await else { return };
    let mutex = Kind::Row.mutex(&postgres.url(), "a").await;
    let guard = mutex.lock().await.unwrap();
    let token = guard.token();
    let operator = client(&postgres.url()).await;
    let delete = async move { operator.execute("DELETE FROM fenced_lock.row_locks", &[]).await };
    let deletion = tokio::spawn(delete);
    queue_length(&mutex, 2).await;
    let waiting = mutex.clone();
    let waiter = tokio::spawn(async move { waiting.lock().await });
    queue_length(&mutex, 3).await;
    guard.unlock().await.unwrap();
    assert_eq!(within("it is deleted", deletion).await.unwrap().unwrap(), 1);
    let ended = within("the waiter is told", waiter).await.unwrap().unwrap_err();
    assert!(matches!(ended, LockError::Lost), "{ended}");
    assert!(mutex.lock().await.unwrap().token() > token);
}

/// Goal: a server that is older than the statements need is an error that says so, at once and for all backends.
/// Method: a function before the server's own one tells a lie about its version.
#[tokio::test]
async fn a_server_that_is_too_old_is_an_error() {
    let Some(postgres) = private().await else { return };
    let lie = "CREATE SCHEMA lies;
        CREATE FUNCTION lies.current_setting(text) RETURNS text LANGUAGE sql AS
        $$ SELECT CASE $1 WHEN 'server_version_num' THEN '130014' ELSE pg_catalog.current_setting($1) END $$";
    client(&postgres.url()).await.batch_execute(lie).await.unwrap();
    let url = format!("{}?options=-c%20search_path=lies,pg_catalog", postgres.url());
    let options = PostgresOptions::new(url);
    let queue = Arc::new(fenced_lock::PostgresBackend::new(&options).unwrap());
    let opened = [
        Session::open(queue, SessionOptions::new(LONG)).await,
        Kind::Advisory.open_with(&options, LONG).await,
        Kind::Row.open_with(&options, LONG).await,
    ];
    for refused in opened {
        let said = refused.as_ref().unwrap_err().to_string();
        assert!(said.contains("PostgreSQL 14 or later is needed, and this is 13"), "{said}");
        assert_eq!(kind_of(refused), BackendErrorKind::Permanent);
    }
}
