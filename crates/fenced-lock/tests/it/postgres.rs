//! What is particular to the queue in a table of PostgreSQL.

use std::process::Stdio;
use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use fenced_lock::{
    Backend, BackendErrorKind, Guard, LockError, PostgresBackend, PostgresOptions, Session,
    SessionOptions,
};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use rustix::process::{Pid, Signal, kill_process};
use testkit::wait::{eventually, within};
use testkit::{PostgresOptions as ServerOptions, PrivatePostgres, Proxy, ReplicatedPostgres, Way};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::process::Command;

use super::lab::{Lab, TTL, queue_length, queue_of};
use super::lab_postgres::{PostgresLab, client, private};

/// Longer than any wait of a test, so that what waits for a lease to end fails.
const LONG: Duration = Duration::from_mins(20);

async fn open_with(options: &PostgresOptions, ttl: Duration) -> Result<Session, LockError> {
    let backend = PostgresBackend::new(options)?;
    Session::open(Arc::new(backend), SessionOptions::new(ttl)).await
}

async fn session(url: &str, ttl: Duration) -> Session {
    open_with(&PostgresOptions::new(url), ttl).await.unwrap()
}

fn kind_of<T: std::fmt::Debug>(result: Result<T, LockError>) -> BackendErrorKind {
    match result.unwrap_err() {
        LockError::Backend(error) => error.kind,
        other => panic!("not an error of the backend: {other}"),
    }
}

/// Goal: a waiter is told by a message that it is first. Method: leases that outlive the test, so that no timer helps.
#[tokio::test]
async fn a_grant_is_pushed() {
    let Some(postgres) = private().await else { return };
    let ours = session(&postgres.url(), LONG).await.mutex("a").unwrap();
    let theirs = session(&postgres.url(), LONG).await.mutex("a").unwrap();
    let guard = ours.lock().await.unwrap();
    let waiter = tokio::spawn(async move { theirs.lock().await });
    queue_length(&ours, 2).await;
    guard.unlock().await.unwrap();
    drop(within("the waiter is granted", waiter).await.unwrap().unwrap());
}

/// Goal: who waits or holds sends nothing but renewals. Method: for a second, the server sees no new request.
#[tokio::test]
async fn a_wait_costs_no_requests() {
    let Some(postgres) = private().await else { return };
    let operator = client(&postgres.url()).await;
    let session = session(&postgres.url(), LONG).await;
    let mutex = session.mutex("a").unwrap();
    let guard = mutex.lock().await.unwrap();
    let mut waiters = tokio::task::JoinSet::new();
    for number in 0..20 {
        let waiting = mutex.clone();
        waiters.spawn(async move { waiting.lock().await });
        queue_length(&mutex, number + 2).await;
    }
    let latest = async || {
        let latest = "SELECT max(query_start)::text FROM pg_stat_activity
            WHERE starts_with(application_name, 'fenced-lock')";
        operator.query_one(latest, &[]).await.unwrap().get::<_, String>(0)
    };
    eventually("there is nothing to ask", async || {
        let before = latest().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        before == latest().await
    })
    .await;
    assert!(!guard.is_lost());
}

/// Goal: a waiter whose message is lost with the connection learns that it is first when it is connected again.
#[tokio::test]
async fn a_lost_message_is_made_up_for() {
    let Some(postgres) = private().await else { return };
    let proxy = Proxy::to(postgres.port()).await.unwrap();
    let ours = session(&postgres.url(), LONG).await.mutex("a").unwrap();
    let theirs = session(&postgres.url_of("postgres", proxy.port()), LONG).await;
    let theirs = theirs.mutex("a").unwrap();
    let guard = ours.lock().await.unwrap();
    let waiter = tokio::spawn(async move { theirs.lock().await });
    queue_length(&ours, 2).await;
    proxy.refuse();
    guard.unlock().await.unwrap();
    proxy.admit();
    drop(within("the waiter is granted", waiter).await.unwrap().unwrap());
}

/// Goal: a crash of the server takes neither a hold nor a place in the queue, and no token comes twice.
#[tokio::test]
async fn a_crash_of_the_server_is_no_matter() {
    let Some(mut postgres) = private().await else { return };
    let (ours, theirs) =
        (session(&postgres.url(), LONG).await, session(&postgres.url(), LONG).await);
    let held = ours.mutex("held").unwrap().lock().await.unwrap();
    let theirs = theirs.mutex("b").unwrap();
    let guard = theirs.lock().await.unwrap();
    let mutex = ours.mutex("b").unwrap();
    let waiting = mutex.clone();
    let waiter = tokio::spawn(async move { waiting.lock().await });
    queue_length(&theirs, 2).await;
    postgres.crash().await.unwrap();
    postgres.restart().await.unwrap();
    let first = guard.token();
    guard.unlock().await.unwrap();
    let next = within("the waiter is granted", waiter).await.unwrap().unwrap();
    assert!(next.token() > first);
    assert!(!held.is_lost());
    let token = held.token();
    assert!(held.hand_over().await.unwrap().token() > token);
}

/// Goal: while the server is away, what is asked of it waits for it.
#[tokio::test]
async fn a_lock_waits_for_the_server() {
    let Some(mut postgres) = private().await else { return };
    let session = session(&postgres.url(), LONG).await;
    let mutex = session.mutex("a").unwrap();
    postgres.crash().await.unwrap();
    assert_eq!(kind_of(mutex.try_lock().await), BackendErrorKind::Transient);
    assert!(!session.is_answered());
    let waiting = mutex.clone();
    let waiter = tokio::spawn(async move { waiting.lock().await });
    postgres.restart().await.unwrap();
    let guard = within("the server is back", waiter).await.unwrap().unwrap();
    postgres.crash().await.unwrap();
    let unlocking = tokio::spawn(guard.unlock());
    postgres.restart().await.unwrap();
    within("it is released", unlocking).await.unwrap().unwrap();
    queue_length(&mutex, 0).await;
}

/// Goal: a request whose answer got lost has been carried out once: a claim is found again, a release counts, a try
/// leaves nothing behind.
#[tokio::test]
async fn a_lost_answer_is_no_matter() {
    let Some(postgres) = private().await else { return };
    let proxy = Proxy::to(postgres.port()).await.unwrap();
    let session = session(&postgres.url_of("postgres", proxy.port()), LONG).await;
    let mutex = session.mutex("a").unwrap();
    proxy.swallow(1);
    let guard = within("the claim is found again", mutex.lock()).await.unwrap();
    assert_eq!(queue_of(&mutex).await, [guard.key()]);
    proxy.swallow(1);
    let first = guard.token();
    let guard = within("it is handed over once", guard.hand_over()).await.unwrap();
    assert!(guard.token() > first);
    assert_eq!(queue_of(&mutex).await, [guard.key()]);
    proxy.swallow(1);
    within("it is released", guard.unlock()).await.unwrap();
    assert!(queue_of(&mutex).await.is_empty());
    proxy.swallow(1);
    assert_eq!(kind_of(mutex.try_lock().await), BackendErrorKind::Transient);
    queue_length(&mutex, 0).await;
    assert_eq!(proxy.swallowed_answers(), 4);
}

/// Goal: a request that got lost on its way is sent again.
#[tokio::test]
async fn a_lost_request_is_repeated() {
    let Some(postgres) = private().await else { return };
    let proxy = Proxy::to(postgres.port()).await.unwrap();
    let session = session(&postgres.url_of("postgres", proxy.port()), LONG).await;
    let mutex = session.mutex("a").unwrap();
    let lose = async |proxy: &Proxy| {
        eventually("the request is under way", async || proxy.holds_something()).await;
        proxy.cut();
        proxy.release();
    };
    proxy.hold(Way::There);
    let (guard, ()) = tokio::join!(mutex.lock(), lose(&proxy));
    let guard = guard.unwrap();
    assert_eq!(queue_of(&mutex).await, [guard.key()]);
    proxy.hold(Way::There);
    let (unlocked, ()) = tokio::join!(guard.unlock(), lose(&proxy));
    unlocked.unwrap();
    assert!(queue_of(&mutex).await.is_empty());
}

/// Goal: what was sent on a connection that is lost is not carried out later. Method: a claim waits in the server for
/// a row that an operator keeps locked; its connection is cut, which the server does not notice. When the
/// library has connected again, the old server process is gone.
#[tokio::test]
async fn nothing_is_carried_out_late() {
    let Some(postgres) = private().await else { return };
    let proxy = Proxy::to(postgres.port()).await.unwrap();
    let options = PostgresOptions {
        // the server ends a statement after half of this
        request_timeout: LONG,
        ..PostgresOptions::new(postgres.url_of("postgres", proxy.port()))
    };
    let session = open_with(&options, LONG).await.unwrap();
    let mutex = session.mutex("a").unwrap();
    mutex.lock().await.unwrap().unlock().await.unwrap();
    let mut operator = client(&postgres.url()).await;
    let observer = client(&postgres.url()).await;
    let blocked = async || {
        let waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        let rows = observer.query(waiting, &[]).await.unwrap();
        rows.iter().map(|row| row.get::<_, i32>(0)).collect::<Vec<_>>()
    };
    let transaction = operator.transaction().await.unwrap();
    transaction.execute("UPDATE fenced_lock.names SET last = last + 1", &[]).await.unwrap();
    let waiting = mutex.clone();
    let waiter = tokio::spawn(async move { waiting.lock().await });
    eventually("the claim waits in the server", async || blocked().await.len() == 1).await;
    let old = blocked().await[0];
    proxy.cut();
    eventually("it is sent again", async || blocked().await.iter().any(|pid| *pid != old)).await;
    assert_eq!(blocked().await.len(), 1, "the first request is not there any more");
    transaction.commit().await.unwrap();
    drop(within("it is granted", waiter).await.unwrap().unwrap());
    queue_length(&mutex, 0).await;
}

/// Goal: a statement that waits for a row that another program keeps locked ends with an answer, and holds up no
/// renewal.
#[tokio::test]
async fn a_locked_row_ends_no_session() {
    let Some(postgres) = private().await else { return };
    let options = PostgresOptions {
        request_timeout: Duration::from_millis(500),
        ..PostgresOptions::new(postgres.url())
    };
    let session = open_with(&options, TTL).await.unwrap();
    let mutex = session.mutex("a").unwrap();
    mutex.lock().await.unwrap().unlock().await.unwrap();
    let mut operator = client(&postgres.url()).await;
    let transaction = operator.transaction().await.unwrap();
    transaction.execute("UPDATE fenced_lock.names SET last = last + 1", &[]).await.unwrap();
    let limited = mutex.lock_timeout(TTL * 2).await;
    assert!(matches!(limited, Err(LockError::Timeout { .. })), "{limited:?}");
    assert!(!session.is_lost());
    transaction.commit().await.unwrap();
    drop(within("it is granted", mutex.lock()).await.unwrap());
    queue_length(&mutex, 0).await;
}

/// Goal: a holder that is stopped beyond its lease is succeeded, by a grant with a larger token, and learns of its loss
/// when it goes on.
#[tokio::test]
async fn a_stopped_holder_is_succeeded() {
    let Some(lab) = PostgresLab::shared().await else { return };
    let mutex = lab.mutex(&lab.name()).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("told");
    let told = || std::fs::read_to_string(&file).unwrap_or_default();
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "postgres::holding_worker"])
        .envs([("LOCK_WORKER_URL", lab.url()), ("LOCK_WORKER_NAME", mutex.name())])
        .env("LOCK_WORKER_FILE", &file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    eventually("it holds the lock", async || told().ends_with("held")).await;
    let token: i64 = told().split(' ').next().unwrap().parse().unwrap();
    let pid = Pid::from_raw(holder.id().unwrap().cast_signed()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let guard = within("the next is served", mutex.lock()).await.unwrap();
    assert!(guard.token().revision() > token);
    kill_process(pid, Signal::CONT).unwrap();
    assert!(within("the worker ends", holder.wait()).await.unwrap().success());
    assert!(told().ends_with("lost"));
    assert!(!guard.is_lost());
}

#[tokio::test]
#[ignore = "run by a_stopped_holder_is_succeeded"]
async fn holding_worker() {
    let Ok(url) = std::env::var("LOCK_WORKER_URL") else { return };
    let (name, file) =
        (std::env::var("LOCK_WORKER_NAME").unwrap(), std::env::var("LOCK_WORKER_FILE").unwrap());
    let guard = PostgresLab::at(url).mutex(&name).await.lock().await.unwrap();
    std::fs::write(&file, format!("{} held", guard.token())).unwrap();
    guard.lost().await;
    std::fs::write(&file, "lost").unwrap();
}

/// Goal: 100 waiters of two sessions are served in their order, and a thousand names are held at once.
#[tokio::test]
async fn a_hundred_waiters_and_a_thousand_names() {
    let Some(postgres) = private().await else { return };
    let sessions = [session(&postgres.url(), LONG).await, session(&postgres.url(), LONG).await];
    let mutex = sessions[0].mutex("queue").unwrap();
    let holder = mutex.lock().await.unwrap();
    let turns = Arc::new(StdMutex::new(Vec::new()));
    let mut waiters = tokio::task::JoinSet::new();
    for number in 0..100 {
        let mutex = sessions[number % 2].mutex("queue").unwrap();
        let turns = Arc::clone(&turns);
        waiters.spawn(async move {
            let guard = mutex.lock().await.unwrap();
            turns.lock().unwrap().push(number);
            guard.unlock().await.unwrap();
        });
        queue_length(&mutex_of(&sessions[0]), number + 2).await;
    }
    holder.unlock().await.unwrap();
    within("all are served", waiters.join_all()).await;
    assert_eq!(*turns.lock().unwrap(), (0..100).collect::<Vec<_>>());

    let names = (0..1000).map(|number| sessions[0].mutex(&format!("name-{number}")).unwrap());
    let locks = names.map(async |mutex| mutex.lock().await);
    let locks = stream::iter(locks).buffer_unordered(1000).try_collect::<Vec<Guard>>();
    let guards = within("all are granted", locks).await.unwrap();
    assert!(guards.iter().all(|guard| !guard.is_lost()));
    drop(guards);
    sessions[0].close().await.unwrap();
    let left = client(&postgres.url()).await;
    let left = left.query_one("SELECT count(*) FROM fenced_lock.claims", &[]).await.unwrap();
    assert_eq!(left.get::<_, i64>(0), 0);
}

fn mutex_of(session: &Session) -> fenced_lock::Mutex {
    session.mutex("queue").unwrap()
}

/// Goal: clients that come at once to a database without tables all find them; tables that were made anew give
/// tokens of another cluster, so a store takes none of them for a later one.
#[tokio::test]
async fn tables_are_made_once() {
    let Some(postgres) = private().await else { return };
    let url = postgres.url();
    let clients = (0..10).map(|_| session(&url, LONG));
    let sessions = futures_util::future::join_all(clients).await;
    let first = sessions[0].mutex("a").unwrap().lock().await.unwrap().token();
    let operator = client(&postgres.url()).await;
    operator.batch_execute("DROP SCHEMA fenced_lock CASCADE").await.unwrap();
    let session = session(&url, LONG).await;
    let second = session.mutex("a").unwrap().lock().await.unwrap().token();
    assert_ne!(first.cluster(), second.cluster());
    assert_eq!(first.partial_cmp(&second), None);
}

/// Goal: the rights that the tables' text names are enough where an operator made the tables, and without them it is
/// an error that says so.
#[tokio::test]
async fn rights_are_needed_and_enough() {
    let Some(postgres) = private().await else { return };
    let operator = client(&postgres.url()).await;
    operator.batch_execute("CREATE ROLE app LOGIN").await.unwrap();
    let url = postgres.url_of("app", postgres.port());
    let options = PostgresOptions::new(&url);
    let refused = open_with(&options, LONG).await;
    let said = refused.as_ref().unwrap_err().to_string();
    assert!(said.contains("permission denied for database"), "{said}");
    assert_eq!(kind_of(refused), BackendErrorKind::Permanent);

    let text = include_str!("../../src/postgres/schema.sql");
    operator.batch_execute(text).await.unwrap();
    assert_eq!(kind_of(open_with(&options, LONG).await), BackendErrorKind::Permanent);
    let grants = text.lines().filter_map(|line| line.strip_prefix("--   "));
    let grants: String = grants.filter(|line| line.starts_with("GRANT")).collect();
    operator.batch_execute(&grants).await.unwrap();
    let session = open_with(&options, LONG).await.unwrap();
    let mutex = session.mutex("a").unwrap();
    mutex.lock().await.unwrap().hand_over().await.unwrap().unlock().await.unwrap();
    assert!(mutex.try_lock().await.unwrap().is_some());

    operator.batch_execute("REVOKE INSERT ON fenced_lock.claims FROM app").await.unwrap();
    assert_eq!(kind_of(mutex.lock().await), BackendErrorKind::Permanent);
    assert!(!session.is_lost(), "it is no loss to other names");
}

/// Goal: an address that is none and a database that is none can never work; a server that accepts no writes can
/// later, and one that is no PostgreSQL cannot be told from one that breaks off.
#[tokio::test]
async fn a_wrong_server_is_an_error() {
    let Some(postgres) = private().await else { return };
    for url in ["", "postgres://127.0.0.1:port/x", "http://127.0.0.1"] {
        let refused = PostgresBackend::new(&PostgresOptions::new(url)).unwrap_err();
        assert_eq!(refused.kind, BackendErrorKind::Permanent, "{url:?}: {refused}");
    }
    let missing = postgres.url().replace("/postgres", "/missing");
    let refused = open_with(&PostgresOptions::new(missing), LONG).await;
    assert_eq!(kind_of(refused), BackendErrorKind::Permanent);

    let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("postgres://app@{}/x", other.local_addr().unwrap());
    let answer = async {
        let (mut stream, _) = other.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
    };
    let options = PostgresOptions::new(url);
    let (refused, ()) = tokio::join!(open_with(&options, LONG), answer);
    assert_eq!(kind_of(refused), BackendErrorKind::Transient);

    let url = format!("{}?options=-c%20default_transaction_read_only=on", postgres.url());
    let refused = open_with(&PostgresOptions::new(url), LONG).await;
    assert_eq!(kind_of(refused), BackendErrorKind::Transient);
}

/// Goal: an encrypted connection checks the server's certificate; a wrong password and a connection without
/// encryption are refused.
#[tokio::test]
async fn connections_are_encrypted() {
    if !testkit::postgres::is_installed() {
        return;
    }
    let options = ServerOptions { secured: true, ..ServerOptions::default() };
    let postgres = PrivatePostgres::start(options).await.unwrap();
    let ca = std::fs::read(postgres.certificates().unwrap().ca()).unwrap();
    let of = |url: String| PostgresOptions { ca: Some(ca.clone()), ..PostgresOptions::new(url) };
    let operator = PostgresBackend::new(&of(postgres.url())).unwrap();
    operator.open(TTL).await.unwrap();
    let url = |user: &str| postgres.url_of(user, postgres.port());
    let refused = open_with(&of(url("app:secret")), LONG).await;
    assert_eq!(kind_of(refused), BackendErrorKind::Permanent, "there is no such user");
    psql(&postgres, "CREATE ROLE app LOGIN SUPERUSER PASSWORD 'secret'").await;
    let session = open_with(&of(url("app:secret")), LONG).await.unwrap();
    session.mutex("a").unwrap().lock().await.unwrap().unlock().await.unwrap();

    let refused = open_with(&of(url("app:wrong")), LONG).await;
    assert_eq!(kind_of(refused), BackendErrorKind::Permanent);
    let not_trusted = open_with(&PostgresOptions::new(url("app:secret")), LONG).await;
    let said = not_trusted.as_ref().unwrap_err().to_string();
    assert!(said.contains("certificate"), "{said}");
    assert_eq!(kind_of(not_trusted), BackendErrorKind::Permanent);
    let other_name = of(url("app:secret").replace("127.0.0.1", "localhost"));
    assert_eq!(kind_of(open_with(&other_name, LONG).await), BackendErrorKind::Permanent);
    let plain = PostgresOptions::new(url("app:secret").replace("?sslmode=require", ""));
    assert_eq!(kind_of(open_with(&plain, LONG).await), BackendErrorKind::Permanent);
}

/// Goal: a synchronous standby has every token that was given, and nothing is granted that it lacks. Method: a claim
/// whose requests are given up, since the standby gets nothing, and then a failover.
#[tokio::test]
async fn a_synchronous_standby_repeats_no_token() {
    if !testkit::postgres::is_installed() {
        return;
    }
    let mut servers = ReplicatedPostgres::start(true).await.unwrap();
    let request_timeout = Duration::from_millis(300);
    let options = PostgresOptions {
        request_timeout,
        standby_is_synchronous: true,
        ..PostgresOptions::new(servers.url())
    };
    let mut opened = None;
    // a busy machine may take longer than such a request
    eventually("a session is open", async || {
        opened = open_with(&options, LONG).await.ok();
        opened.is_some()
    })
    .await;
    let mutex = opened.unwrap().mutex("a").unwrap();
    let guard = mutex.lock().await.unwrap();
    let first = guard.token();
    guard.unlock().await.unwrap();
    servers.hold_writes_back().await.unwrap();
    let before = servers.address().connections();
    let claim = tokio::spawn(async move { mutex.lock().await });
    eventually("the claim is sent again", async || servers.address().connections() > before + 2)
        .await;
    assert!(!claim.is_finished(), "the standby does not have it");
    servers.fail_over().await.unwrap();
    let guard = within("the claim is granted", claim).await.unwrap().unwrap();
    assert!(guard.token() > first, "{} after {first}", guard.token());
}

/// Goal: a standby that lags, and takes over, gives a number again, under another cluster id, so that a store can tell the two
/// grants apart.
#[tokio::test]
async fn a_standby_that_lags_repeats_a_number_of_another_cluster() {
    if !testkit::postgres::is_installed() {
        return;
    }
    let mut servers = ReplicatedPostgres::start(false).await.unwrap();
    let ours = session(&servers.url(), LONG).await.mutex("a").unwrap();
    servers.hold_writes_back().await.unwrap();
    let held = within("the lock is granted", ours.lock()).await.unwrap();
    servers.fail_over().await.unwrap();
    let theirs = session(&servers.url(), LONG).await.mutex("a").unwrap();
    let next = within("the lock is granted again", theirs.lock()).await.unwrap();
    assert_eq!(next.token().revision(), held.token().revision());
    assert_ne!(next.token().cluster(), held.token().cluster());
}

/// Runs a statement as the superuser, by the real client.
async fn psql(postgres: &PrivatePostgres, statement: &str) {
    let mut psql = Command::new(testkit::postgres::psql());
    let ended = psql.args([&postgres.url(), "-c", statement]).stdout(Stdio::null()).status().await;
    assert!(ended.unwrap().success());
}

/// Goal: the check for SQL in the docs of `Token` accepts the largest token and later ones, and refuses an earlier one
/// and another cluster's.
#[tokio::test]
async fn the_documented_fence() {
    let Some(postgres) = private().await else { return };
    let store = client(&postgres.url()).await;
    let docs = include_str!("../../src/token.rs");
    let (_, docs) = docs.split_once("```sql\n/// -- ").unwrap();
    let (table, docs) = docs.split_once('\n').unwrap();
    let (check, _) = docs.split_once("/// ```").unwrap();
    store.batch_execute(table).await.unwrap();
    let check = check.replace("/// ", "");
    let write = async |cluster: &str, revision: i64| {
        store.query_opt(&check, &[&"a", &cluster, &revision]).await.unwrap().is_some()
    };
    assert!(write("7", 5).await && write("7", 5).await && write("7", 6).await);
    assert!(!write("7", 5).await && !write("8", 7).await);
    assert!(write("7", 7).await);
}
