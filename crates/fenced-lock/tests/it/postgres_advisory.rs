//! What is particular to advisory locks of PostgreSQL.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{
    BackendErrorKind, LockError, Mutex, PostgresAdvisoryBackend, PostgresOptions, Session,
    SessionOptions,
};
use rustix::process::{Pid, Signal, kill_process};
use testkit::wait::{eventually, within};
use testkit::{PostgresOptions as ServerOptions, PrivatePostgres, Proxy};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::lab::{Lab, TTL, queue_length, queue_of};
use super::lab_postgres::{AdvisoryLab, client, private};

/// Longer than any wait of a test, so that what waits for a lease to end fails.
const LONG: Duration = Duration::from_mins(20);

async fn open(url: &str, ttl: Duration) -> Result<Session, LockError> {
    let backend = PostgresAdvisoryBackend::new(&PostgresOptions::new(url))?;
    Session::open(Arc::new(backend), SessionOptions::new(ttl)).await
}

async fn mutex(url: &str, name: &str) -> Mutex {
    open(url, LONG).await.unwrap().mutex(name).unwrap()
}

/// A session of `psql`.
struct Psql {
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    _process: Child,
}

impl Psql {
    fn start(url: &str) -> Self {
        let mut process = Command::new(testkit::postgres::psql())
            .args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { input: process.stdin.take().unwrap(), output, _process: process }
    }

    /// Calls a function with the key of a lock, as the documentation says.
    async fn send(&mut self, function: &str, name: &str) {
        let line = format!("SELECT 'answer', {function}(hashtextextended('{name}', 0));\n");
        self.input.write_all(line.as_bytes()).await.unwrap();
    }

    async fn answer(&mut self) -> String {
        within("psql answers", self.output.next_line()).await.unwrap().unwrap()
    }
}

/// Goal: what `psql` holds, the library waits for, and sees in the queue.
#[tokio::test]
async fn the_library_waits_for_psql() {
    let Some(lab) = AdvisoryLab::shared().await else { return };
    let mutex = lab.mutex(&lab.name()).await;
    let mut psql = Psql::start(lab.url());
    psql.send("pg_advisory_lock", mutex.name()).await;
    assert_eq!(psql.answer().await, "answer|");
    assert!(mutex.try_lock().await.unwrap().is_none());
    let waiting = mutex.clone();
    let waiter = tokio::spawn(async move { waiting.lock().await });
    queue_length(&mutex, 2).await;
    let queue = mutex.queue().await.unwrap();
    assert_eq!((&queue[0].label, queue[0].token), (&None, None), "a foreign claim");
    assert!(!waiter.is_finished());
    psql.send("pg_advisory_unlock", mutex.name()).await;
    assert_eq!(psql.answer().await, "answer|t");
    drop(within("the library is granted", waiter).await.unwrap().unwrap());
}

/// Goal: what the library holds, `psql` waits for, and a claim of the library behind it waits for both.
#[tokio::test]
async fn psql_waits_for_the_library() {
    let Some(lab) = AdvisoryLab::shared().await else { return };
    let mutex = lab.mutex(&lab.name()).await;
    let guard = mutex.lock().await.unwrap();
    let mut psql = Psql::start(lab.url());
    psql.send("pg_try_advisory_lock", mutex.name()).await;
    assert_eq!(psql.answer().await, "answer|f");
    psql.send("pg_advisory_lock", mutex.name()).await;
    queue_length(&mutex, 2).await;
    let waiting = mutex.clone();
    let waiter = tokio::spawn(async move { waiting.lock().await });
    queue_length(&mutex, 3).await;
    guard.unlock().await.unwrap();
    assert_eq!(psql.answer().await, "answer|");
    assert!(!waiter.is_finished());
    drop(psql);
    drop(within("the library is granted", waiter).await.unwrap().unwrap());
}

async fn holder(lab: &AdvisoryLab, name: &str, ttl: Duration, file: &std::path::Path) -> Child {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "postgres_advisory::holding_worker"])
        .envs([("LOCK_WORKER_URL", lab.url()), ("LOCK_WORKER_NAME", name)])
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

fn told(file: &std::path::Path) -> String {
    std::fs::read_to_string(file).unwrap_or_default()
}

#[tokio::test]
#[ignore = "run by other tests"]
async fn holding_worker() {
    let Ok(url) = std::env::var("LOCK_WORKER_URL") else { return };
    let told = |what: &str| std::env::var(format!("LOCK_WORKER_{what}")).unwrap();
    let ttl = Duration::from_secs(told("TTL").parse().unwrap());
    let session = open(&url, ttl).await.unwrap();
    let guard = session.mutex(&told("NAME")).unwrap().lock().await.unwrap();
    std::fs::write(told("FILE"), format!("{} held", guard.token())).unwrap();
    guard.lost().await;
    std::fs::write(told("FILE"), "lost").unwrap();
}

/// Goal: a holder that is stopped beyond its lease is succeeded, by a grant with a larger token, and learns of its loss
/// when it goes on. The connection of a stopped process lives, so this takes the server's timeout.
#[tokio::test]
async fn a_stopped_holder_is_succeeded() {
    let Some(lab) = AdvisoryLab::shared().await else { return };
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

/// Goal: a holder whose process ends is succeeded at once, and not after its TTL.
#[tokio::test]
async fn a_killed_holder_is_succeeded_at_once() {
    let Some(lab) = AdvisoryLab::shared().await else { return };
    let mutex = lab.mutex(&lab.name()).await;
    let dir = tempfile::tempdir().unwrap();
    let mut holder = holder(&lab, mutex.name(), LONG, &dir.path().join("told")).await;
    holder.start_kill().unwrap();
    drop(within("the next is served", mutex.lock()).await.unwrap());
}

/// Goal: a hold that lasts longer than its TTL lives on, and so does one that waited for so long.
#[tokio::test]
async fn a_long_hold_and_a_long_wait_live_on() {
    let Some(lab) = AdvisoryLab::shared().await else { return };
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
#[tokio::test]
async fn an_unused_session_ends_its_connections() {
    let Some(postgres) = private().await else { return };
    let operator = client(&postgres.url()).await;
    let connections = async || {
        let count = "SELECT count(*) FROM pg_stat_activity
            WHERE starts_with(application_name, 'fenced-lock')";
        operator.query_one(count, &[]).await.unwrap().get::<_, i64>(0)
    };
    let guard = mutex(&postgres.url(), "a").await.lock().await.unwrap();
    tokio::time::sleep(TTL).await;
    assert_eq!(connections().await, 2, "the guard keeps the session alive");
    assert!(!guard.is_lost());
    drop(guard);
    eventually("all connections have ended", async || connections().await == 0).await;
}

/// Goal: what is not promised: a crash of the server takes the locks with the connections. Their holders are told,
/// and no token comes twice.
#[tokio::test]
async fn a_crash_of_the_server_takes_the_locks() {
    let Some(mut postgres) = private().await else { return };
    let session = open(&postgres.url(), TTL).await.unwrap();
    let guard = session.mutex("a").unwrap().lock().await.unwrap();
    let token = guard.token();
    postgres.crash().await.unwrap();
    within("the holder is told", guard.lost()).await;
    within("the session is lost", session.lost()).await;
    postgres.restart().await.unwrap();
    let next = mutex(&postgres.url(), "a").await.lock().await.unwrap();
    assert!(next.token() > token);
}

/// Goal: a connection that is cut at a release or a wait leaves nothing behind, though the server does not notice
/// it; the claims are told.
#[tokio::test]
async fn a_cut_connection_leaves_nothing_behind() {
    let Some(postgres) = private().await else { return };
    let proxy = Proxy::to(postgres.port()).await.unwrap();
    let observer = mutex(&postgres.url(), "a").await;
    let through = postgres.url_of("postgres", proxy.port());
    let ours = mutex(&through, "a").await;
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

    for answers in 1..8 {
        let ours = mutex(&through, "a").await;
        proxy.swallow(answers);
        if let Ok(guard) = within("an end", ours.lock_timeout(TTL)).await {
            drop(guard);
        }
        proxy.swallow(0);
        queue_length(&observer, 0).await;
    }
}

/// Goal: what is not promised: each claim takes a connection, and the server has only so many. One too many is
/// refused, and no loss to the others.
#[tokio::test]
async fn each_claim_takes_a_connection() {
    if !testkit::postgres::is_installed() {
        return;
    }
    let settings = vec!["max_connections=20".to_owned()];
    let options = ServerOptions { settings, ..ServerOptions::default() };
    let postgres = PrivatePostgres::start(options).await.unwrap();
    let session = open(&postgres.url(), LONG).await.unwrap();
    let mut guards = Vec::new();
    let error = loop {
        match session.mutex(&format!("name-{}", guards.len())).unwrap().lock().await {
            Ok(guard) => guards.push(guard),
            Err(error) => break error,
        }
    };
    assert!(guards.len() < 20);
    let refused = |error: &LockError| matches!(error, LockError::Backend(error) if error.kind == BackendErrorKind::Refused);
    assert!(refused(&error), "{error}");
    assert!(guards.iter().all(|guard| !guard.is_lost()));
    guards.pop().unwrap().unlock().await.unwrap();
    let mutex = session.mutex("another").unwrap();
    eventually("there is room", async || match mutex.lock().await {
        Ok(_) => true,
        Err(error) => {
            assert!(refused(&error), "{error}");
            false
        }
    })
    .await;
}

/// Goal: what is not promised: a holder does not know whether others wait, and has to take it that they do.
#[tokio::test]
async fn contention_is_not_known() {
    let Some(lab) = AdvisoryLab::shared().await else { return };
    let guard = lab.mutex(&lab.name()).await.lock().await.unwrap();
    tokio::time::sleep(TTL).await;
    assert!(guard.is_contended());
}

/// Goal: rights to count the grants are needed, and enough.
#[tokio::test]
async fn rights_are_needed_and_enough() {
    let Some(postgres) = private().await else { return };
    let operator = client(&postgres.url()).await;
    let text = include_str!("../../src/postgres/schema.sql");
    operator.batch_execute("CREATE ROLE app LOGIN").await.unwrap();
    operator.batch_execute(text).await.unwrap();
    operator.batch_execute("GRANT USAGE ON SCHEMA fenced_lock TO app").await.unwrap();
    let url = postgres.url_of("app", postgres.port());
    let refused = open(&url, LONG).await.unwrap_err();
    let is_permanent =
        matches!(&refused, LockError::Backend(e) if e.kind == BackendErrorKind::Permanent);
    assert!(is_permanent, "{refused}");
    let grant = "GRANT SELECT, INSERT, UPDATE ON fenced_lock.names TO app";
    operator.batch_execute(grant).await.unwrap();
    let mutex = mutex(&url, "a").await;
    let guard = mutex.lock().await.unwrap().hand_over().await.unwrap();
    assert_eq!(mutex.queue().await.unwrap()[0].token, Some(guard.token()));
}
