//! PostgreSQL: how the contract has its locks, and what is particular to the queue in a table.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fenced_lock::{
    Backend, BackendError, BackendErrorKind, Claim, Guard, LockError, Mutex,
    PostgresAdvisoryBackend, PostgresBackend, PostgresOptions, PutMode, Session, SessionKeeper,
    SessionOptions, Token,
};
use testkit::wait::{eventually, within};
use testkit::{
    PostgresOptions as ServerOptions, PrivatePgBouncer, PrivatePostgres, ReplicatedPostgres,
};
use tokio::sync::OnceCell;
use tokio::time::timeout;
use tokio_postgres::{Client, NoTls};

use super::lab::{
    FoundLab, HOUR, LONG, Lab, ServerLab, TTL, assert_refused, kind_of, opened, queue_length,
    queue_of, server_that_says, unseen_waiter, waiter, with,
};

/// A server with room for the claims that wait in it, each with a connection. Statics are not dropped: its guardian ends
/// it with the process.
static POSTGRES: OnceCell<PrivatePostgres> = OnceCell::const_new();

/// The address of a database that no other test uses, on a server that the tests of this process share, if PostgreSQL is
/// installed.
pub(crate) async fn fresh_database() -> Option<String> {
    fresh_database_in("UTF8").await
}

async fn fresh_database_in(encoding: &str) -> Option<String> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    if !testkit::postgres::can_test() {
        return None;
    }
    let settings = vec!["max_connections=1000".to_owned()];
    let options = ServerOptions { settings, ..ServerOptions::default() };
    let start = async || PrivatePostgres::start(options).await.unwrap();
    let url = POSTGRES.get_or_init(start).await.url();
    let name = format!("test_{}", NEXT.fetch_add(1, Ordering::Relaxed));
    // without a template that somebody else copies at the moment
    let create = format!("CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}'");
    client(&url).await.batch_execute(&create).await.unwrap();
    let (server, _) = url.rsplit_once('/').unwrap();
    Some(format!("{server}/{name}"))
}

pub(crate) async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A lock of PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockKind {
    /// A queue in a table.
    Queue,
    /// The server itself lets its clients wait.
    Advisory,
}

pub(crate) const KINDS: [LockKind; 2] = [LockKind::Advisory, LockKind::Queue];

impl LockKind {
    pub(crate) fn backend(
        self,
        options: &PostgresOptions,
    ) -> Result<Arc<dyn Backend<Token = Token>>, BackendError> {
        Ok(match self {
            Self::Queue => Arc::new(PostgresBackend::new(options)?),
            Self::Advisory => Arc::new(PostgresAdvisoryBackend::new(options)?),
        })
    }

    pub(crate) async fn open(
        self,
        options: &PostgresOptions,
        ttl: Duration,
    ) -> Result<Session, LockError> {
        Session::open(self.backend(options)?, SessionOptions::new(ttl)).await
    }
}

pub(crate) struct PostgresLab {
    pub(crate) kind: LockKind,
    url: String,
}

impl PostgresLab {
    /// A database of its own, if PostgreSQL is installed.
    pub(crate) async fn shared(kind: LockKind) -> Option<Self> {
        Some(Self { kind, url: fresh_database().await? })
    }

    /// The same kind of lock on a server of the test's own.
    pub(crate) async fn private(&self, options: ServerOptions) -> (PrivatePostgres, Self) {
        let postgres = PrivatePostgres::start(options).await.unwrap();
        let lab = Self { kind: self.kind, url: postgres.url() };
        (postgres, lab)
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The address for another user.
    pub(crate) fn url_of(&self, user: &str) -> String {
        self.url.replace("//postgres@", &format!("//{user}@"))
    }

    /// A client of the server itself, past the library.
    pub(crate) async fn client(&self) -> Client {
        client(&self.url).await
    }

    /// How many connections of this library the database has.
    pub(crate) async fn connections(&self) -> i64 {
        let count = "SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND starts_with(application_name, 'fenced-lock')";
        self.client().await.query_one(count, &[]).await.unwrap().get(0)
    }

    /// The server processes of the database that wait for a lock of theirs.
    pub(crate) async fn blocked(&self) -> Vec<i32> {
        let waiting = "SELECT pid FROM pg_stat_activity
            WHERE datname = current_database() AND wait_event_type = 'Lock'";
        let rows = self.client().await.query(waiting, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Ends the connections whose names begin so, and waits for their ends.
    async fn terminate(&self, name: &str) {
        let terminate = "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity
            WHERE starts_with(application_name, $1)";
        self.client().await.query(terminate, &[&name]).await.unwrap();
    }
}

impl Lab for PostgresLab {
    type Token = Token;

    fn backend(&self) -> Arc<dyn Backend<Token = Token>> {
        self.kind.backend(&PostgresOptions::new(&self.url)).unwrap()
    }

    async fn revoke(&self, lease: i64) {
        if self.kind != LockKind::Queue {
            return self.terminate(&format!("fenced-lock {lease:x}")).await;
        }
        let delete = "DELETE FROM fenced_lock.leases WHERE id = $1";
        self.client().await.execute(delete, &[&lease]).await.unwrap();
    }

    async fn delete(&self, key: &str) {
        let (name, claim) = key.rsplit_once('/').unwrap();
        if self.kind != LockKind::Queue {
            return self.terminate(&format!("fenced-lock {claim} ")).await;
        }
        let (lease, number) = claim.split_once('-').unwrap();
        let (lease, number) =
            (i64::from_str_radix(lease, 16).unwrap(), number.parse::<i64>().unwrap());
        let delete =
            "DELETE FROM fenced_lock.claims WHERE name = $1 AND lease = $2 AND number = $3";
        self.client().await.execute(delete, &[&name, &lease, &number]).await.unwrap();
    }
}

impl FoundLab for PostgresLab {
    fn address(&self) -> String {
        format!("{:?} {}", self.kind, self.url)
    }

    fn at(address: &str) -> Self {
        let (kind, url) = address.split_once(' ').unwrap();
        let kind = if kind == "Queue" { LockKind::Queue } else { LockKind::Advisory };
        Self { kind, url: url.to_owned() }
    }
}

/// The queue in a table.
impl ServerLab for PostgresLab {
    type Kind = testkit::postgres::Postgres;

    const REQUESTS_OF_A_WAITER: u64 = 10;

    async fn start() -> (PrivatePostgres, Self) {
        let postgres = PrivatePostgres::start(ServerOptions::default()).await.unwrap();
        let lab = Self { kind: LockKind::Queue, url: postgres.url() };
        (postgres, lab)
    }

    /// SIGKILL would leave its other processes running.
    async fn crash(postgres: &mut PrivatePostgres) {
        postgres.crash().await.unwrap();
    }

    async fn requests(&self, postgres: &PrivatePostgres) -> u64 {
        let count =
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'postgres'";
        postgres.run(count).await.unwrap().parse().unwrap()
    }

    async fn claims_and_sessions(&self, postgres: &PrivatePostgres) -> (u64, u64) {
        let count = async |table| {
            let count = format!("SELECT count(*) FROM fenced_lock.{table}");
            postgres.run(&count).await.unwrap().parse().unwrap()
        };
        (count("claims").await, count("leases").await)
    }
}

/// Goal: one name takes one connection for its requests, and a hundred names share a few. Method: the session takes one more for
/// requests of its own, and another one for its messages.
#[tokio::test]
async fn names_share_a_few_connections() {
    let Some(lab) = PostgresLab::shared(LockKind::Queue).await else { return };
    let session = lab.session_for(HOUR).await;
    for (names, most) in [(1, 3), (100, 9)] {
        for number in 0..names {
            drop(session.mutex(&number.to_string()).unwrap().lock().await.unwrap());
        }
        let connections = lab.connections().await;
        assert!((2..=most).contains(&connections), "{connections} for {names}");
    }
}

/// A mutex of a session with these options, and an operator who keeps the row of its name locked until `COMMIT`.
async fn behind_a_locked_row(
    lab: &PostgresLab,
    options: PostgresOptions,
    ttl: Duration,
) -> (Mutex, Client) {
    let backend = LockKind::Queue.backend(&options).unwrap();
    let mutex = opened(backend, SessionOptions::new(ttl)).await.mutex("a").unwrap();
    // a busy machine may take longer than these options allow
    eventually("a first tenure", async || match mutex.lock().await {
        Ok(guard) => guard.unlock().await.is_ok(),
        Err(_) => false,
    })
    .await;
    let operator = lab.client().await;
    let lock = "BEGIN; UPDATE fenced_lock.names SET last = last + 1";
    operator.batch_execute(lock).await.unwrap();
    (mutex, operator)
}

/// Goal: what was sent on a connection that is lost is not carried out later. A pooler that loses its connection to the server
/// under a request (pgbouncer#714) leaves open whether the request is done: the claim is sent again, not given up. Method: a
/// claim waits in the server for a row that an operator keeps locked; its connection, or the pooler's, is cut, which the server
/// does not notice. When the library itself has connected again, the old server process is gone.
#[tokio::test]
async fn nothing_is_carried_out_late() {
    for is_pooled in [false, true] {
        let Some(lab) = PostgresLab::shared(LockKind::Queue).await else { return };
        if is_pooled && !PrivatePgBouncer::can_test() {
            return;
        }
        let (proxy, proxied) = lab.behind_proxy().await;
        let (mut url, mut pooler) = (proxied.url().to_owned(), None);
        if is_pooled {
            let started = PrivatePgBouncer::start(proxy.port(), &["pool_mode=session"]);
            let pooler = pooler.insert(started.await.unwrap());
            let [from, to] = [proxy.port(), pooler.port()].map(|port| format!(":{port}/"));
            url = url.replace(&from, &to);
        }
        // the server ends a statement after half of this
        let options = with(PostgresOptions::new(url), |options| options.request_timeout = HOUR);
        let (mutex, operator) = behind_a_locked_row(&lab, options, HOUR).await;
        let waiter = unseen_waiter(&mutex);
        eventually("the claim waits in the server", async || lab.blocked().await.len() == 1).await;
        let old = lab.blocked().await[0];
        proxy.cut();
        let is_new = |pid: &i32| *pid != old;
        eventually("it is sent again", async || lab.blocked().await.iter().any(is_new)).await;
        let is_alone = lab.blocked().await.len() == 1;
        assert!(is_alone || is_pooled, "the first request is not there any more");
        operator.batch_execute("COMMIT").await.unwrap();
        drop(within("it is granted", waiter).await.unwrap().unwrap());
        queue_length(&mutex, 0).await;
    }
}

/// Goal: a statement that waits for a row that another program keeps locked ends with an answer, and does not delay a renewal.
#[tokio::test]
async fn a_locked_row_ends_no_session() {
    let Some(lab) = PostgresLab::shared(LockKind::Queue).await else { return };
    let options = with(PostgresOptions::new(lab.url()), |options| {
        options.request_timeout = Duration::from_millis(500);
    });
    let (mutex, operator) = behind_a_locked_row(&lab, options, TTL).await;
    timeout(TTL * 2, mutex.lock()).await.unwrap_err();
    operator.batch_execute("COMMIT").await.unwrap();
    // in the same session
    drop(within("it is granted", mutex.lock()).await.unwrap());
    queue_length(&mutex, 0).await;
}

/// Goal: what is done remains done if only its message is refused: a release, the end of a session, and that of an expired lease.
/// The next claim is granted all the same. Method: a function that comes before the server's own one refuses the next
/// messages.
#[tokio::test]
async fn a_refused_message_undoes_nothing() {
    for code in ["53100", "54000"] {
        let Some(lab) = PostgresLab::shared(LockKind::Queue).await else { return };
        let operator = lab.client().await;
        let fault = format!(
            "CREATE SCHEMA faults; CREATE SEQUENCE faults.calls;
            CREATE FUNCTION faults.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
                IF nextval('faults.calls') BETWEEN 1000 AND 1001 THEN
                    RAISE EXCEPTION 'refused' USING ERRCODE = '{code}';
                END IF;
                PERFORM pg_catalog.pg_notify($1, $2);
            END $$"
        );
        operator.batch_execute(&fault).await.unwrap();
        let refuse = async |messages| {
            let next = format!("SELECT setval('faults.calls', {})", 1001 - messages);
            operator.batch_execute(&next).await.unwrap();
        };
        let url = format!("{}?options=-c%20search_path=faults,pg_catalog", lab.url());
        let lab = PostgresLab { url, ..lab };
        let (ours, theirs) = (lab.session_for(LONG).await, lab.session_for(LONG).await);
        let refusing = async |messages, guard: Guard, next: &Session| {
            let waiter = waiter(&next.mutex("a").unwrap(), 2).await;
            eventually("the holder is told", async || guard.is_contended()).await;
            refuse(messages).await;
            (guard, waiter)
        };
        let guard = ours.mutex("a").unwrap().lock().await.unwrap();
        let (guard, next) = refusing(1, guard, &theirs).await;
        guard.unlock().await.unwrap();
        let guard = within("it is granted", next).await.unwrap().unwrap();
        let (_guard, next) = refusing(2, guard, &ours).await;
        within("an end", theirs.close()).await.unwrap();
        let guard = within("it is granted", next).await.unwrap().unwrap();
        guard.unlock().await.unwrap();

        let backend = lab.backend();
        let lease = backend.open(TTL).await.unwrap();
        let claim = Claim::new("a", lease.id, 1);
        backend.put(&claim, &PutMode::AtEnd).await.unwrap().unwrap();
        let next = waiter(&ours.mutex("a").unwrap(), 2).await;
        refuse(2).await;
        drop(within("it is granted", next).await.unwrap().unwrap());
    }
}

/// Goal: clients that come at once to a database without tables all find them. Tables that any process makes anew are another
/// cluster, also to a client that knew the old ones.
#[tokio::test]
async fn tables_are_made_once() {
    for is_another in [false, true] {
        let Some(lab) = PostgresLab::shared(LockKind::Queue).await else { return };
        futures_util::future::join_all((0..10).map(|_| lab.session_for(HOUR))).await;
        let keeper = SessionKeeper::start(lab.backend(), SessionOptions::new(TTL));
        let guard = keeper.lock("a").await.unwrap();
        lab.client().await.batch_execute("DROP SCHEMA fenced_lock CASCADE").await.unwrap();
        if is_another {
            lab.session_for(HOUR).await;
        }
        within("the holder is told", guard.lost()).await;
        let token = within("another session", keeper.lock("a")).await.unwrap().token();
        assert_eq!(guard.token().partial_cmp(&token), None);
    }
}

/// Goal: the rights that the text of the tables names are enough where an operator made the tables; a user without them gets an
/// error that says so.
#[tokio::test]
async fn rights_are_needed_and_enough() {
    let Some(lab) = PostgresLab::shared(LockKind::Queue).await else { return };
    let operator = lab.client().await;
    operator.batch_execute("CREATE ROLE table_user LOGIN").await.unwrap();
    let options = PostgresOptions::new(lab.url_of("table_user"));
    assert_refused(LockKind::Queue.open(&options, HOUR).await, "permission denied for database");

    let text = include_str!("../../src/postgres/schema.sql");
    operator.batch_execute(text).await.unwrap();
    assert_eq!(kind_of(LockKind::Queue.open(&options, HOUR).await), BackendErrorKind::Permanent);
    let grants = text.lines().filter_map(|line| line.strip_prefix("--   "));
    let grants: String = grants.filter(|line| line.starts_with("GRANT")).collect();
    let grants = grants.replace("TO app", "TO table_user");
    operator.batch_execute(&grants).await.unwrap();
    let session = LockKind::Queue.open(&options, HOUR).await.unwrap();
    let mutex = session.mutex("a").unwrap();
    mutex.lock().await.unwrap().requeue().await.unwrap().unlock().await.unwrap();
    assert!(mutex.try_lock().await.unwrap().is_some());

    // the claim is there, although not all can be done: so it is asked for again
    operator.batch_execute("REVOKE SELECT ON fenced_lock.leases FROM table_user").await.unwrap();
    let waiter = unseen_waiter(&mutex);
    let claims = async || {
        let count = "SELECT count(*) FROM fenced_lock.claims";
        operator.query_one(count, &[]).await.unwrap().get::<_, i64>(0)
    };
    eventually("the claim is there", async || claims().await == 1).await;
    operator.batch_execute("GRANT SELECT ON fenced_lock.leases TO table_user").await.unwrap();
    drop(within("a grant", waiter).await.unwrap().unwrap());
    eventually("nothing is left", async || claims().await == 0).await;

    // a release that was done but not synced is repeated, and not reported as a loss
    let guard = mutex.lock().await.unwrap();
    let sync = "FUNCTION pg_logical_emit_message(boolean, text, text)";
    operator.batch_execute(&format!("REVOKE EXECUTE ON {sync} FROM public")).await.unwrap();
    let unlock = tokio::spawn(guard.unlock());
    eventually("it is released", async || claims().await == 0).await;
    assert_eq!(kind_of(LockKind::Queue.open(&options, HOUR).await), BackendErrorKind::Permanent);
    operator.batch_execute(&format!("GRANT EXECUTE ON {sync} TO public")).await.unwrap();
    within("it is told", unlock).await.unwrap().unwrap();

    operator.batch_execute("REVOKE INSERT ON fenced_lock.claims FROM table_user").await.unwrap();
    assert_eq!(kind_of(mutex.lock().await), BackendErrorKind::Permanent);
    assert!(!session.is_lost(), "it is no loss to other names");
}

/// Goal: a malformed address and a missing database are permanent errors, the latter not while another host of the address may
/// come back. A server that is no PostgreSQL cannot be told from one that breaks off, and is transient.
#[tokio::test]
async fn a_wrong_server_is_an_error() {
    let Some(lab) = PostgresLab::shared(LockKind::Queue).await else { return };
    for url in ["postgres://127.0.0.1:port/x", "http://127.0.0.1"] {
        let refused = PostgresBackend::new(&PostgresOptions::new(url)).unwrap_err();
        assert_eq!(refused.kind, BackendErrorKind::Permanent, "{url:?}: {refused}");
    }
    assert_refused(LockKind::Queue.open(&PostgresOptions::new(""), HOUR).await, "host");
    let missing = PostgresOptions::new(format!("{}_missing", lab.url()));
    assert_refused(LockKind::Queue.open(&missing, HOUR).await, "does not exist");
    // the other host may come back
    let hosts = format!("{}_missing", lab.url()).replace('@', "@127.0.0.1:1,");
    let refused = LockKind::Queue.open(&PostgresOptions::new(hosts), HOUR).await;
    assert_eq!(kind_of(refused), BackendErrorKind::Transient);

    let other = server_that_says("HTTP/1.1 400 Bad Request\r\n\r\n").await;
    let options = PostgresOptions::new(format!("postgres://app@{other}/x"));
    let refused = LockKind::Queue.open(&options, HOUR).await;
    assert_eq!(kind_of(refused), BackendErrorKind::Transient);
}

/// A server and its standby, if PostgreSQL is installed.
async fn replicated(is_synchronous: bool) -> Option<ReplicatedPostgres> {
    if !testkit::postgres::can_test() {
        return None;
    }
    Some(ReplicatedPostgres::start(is_synchronous).await.unwrap())
}

/// Goal: a server that is set to accept no writes is a permanent error that says what to do, also when it is set so while a
/// session is open; a standby is not, since it may be promoted.
#[tokio::test]
async fn a_server_without_writes() {
    let Some(servers) = replicated(false).await else { return };
    let open = async |kind: LockKind, server: &PrivatePostgres| {
        kind.open(&PostgresOptions::new(server.url()), HOUR).await
    };
    let mutex = open(LockKind::Queue, &servers.primary).await.unwrap().mutex("a").unwrap();
    let guard = mutex.lock().await.unwrap();
    let standby = open(LockKind::Queue, &servers.replica).await;
    assert_eq!(kind_of(standby), BackendErrorKind::Transient);
    let set = "ALTER SYSTEM SET default_transaction_read_only = on";
    servers.primary.run(set).await.unwrap();
    servers.primary.run("SELECT pg_reload_conf()").await.unwrap();
    let said = "set default_transaction_read_only to off";
    for kind in KINDS {
        assert_refused(open(kind, &servers.primary).await, said);
    }
    assert_refused(within("an answer", mutex.lock()).await, said);
    servers.primary.run("ALTER SYSTEM RESET default_transaction_read_only").await.unwrap();
    servers.primary.run("SELECT pg_reload_conf()").await.unwrap();
    within("a release", guard.unlock()).await.unwrap();
    drop(within("a grant", mutex.lock()).await.unwrap());
}

/// Goal: an encrypted connection checks the server's certificate, also that of each claim; a wrong password and a
/// connection without encryption are refused.
#[tokio::test]
async fn connections_are_encrypted() {
    if !testkit::postgres::can_test() {
        return;
    }
    let options = ServerOptions { secured: true, ..ServerOptions::default() };
    let postgres = PrivatePostgres::start(options).await.unwrap();
    postgres.run("CREATE ROLE app LOGIN SUPERUSER PASSWORD 'secret'").await.unwrap();
    let ca = std::fs::read(postgres.certificates().unwrap().ca()).unwrap();
    // a busy machine takes its time for a handshake
    let of = |url: String| {
        with(PostgresOptions::new(url), |options| {
            (options.ca, options.request_timeout) = (Some(ca.clone()), LONG);
        })
    };
    let url = |user: &str| postgres.url_of(user, postgres.port());
    for kind in KINDS {
        let open = async |options: PostgresOptions| kind.open(&options, HOUR).await;
        let mutex = open(of(url("app:secret"))).await.unwrap().mutex("a").unwrap();
        let guard = mutex.lock().await.unwrap().requeue().await.unwrap();
        assert_eq!(queue_of(&mutex).await, [guard.key()]);
        guard.unlock().await.unwrap();

        assert_refused(open(of(url("app:wrong"))).await, "authentication failed");
        assert_refused(open(PostgresOptions::new(url("app:secret"))).await, "certificate");
        let other_name = of(url("app:secret").replace("127.0.0.1", "localhost"));
        assert_refused(open(other_name).await, "certificate");
        let plain = url("app:secret").replace("?sslmode=require", "");
        assert_refused(open(PostgresOptions::new(plain)).await, "");
    }
}

/// Goal: a server so far away that it takes longer to connect than a request may take is reached all the same.
#[tokio::test]
async fn to_connect_may_take_longer_than_a_request() {
    let Some(lab) = PostgresLab::shared(LockKind::Queue).await else { return };
    let (proxy, proxied) = lab.behind_proxy().await;
    proxy.delay(Duration::from_millis(80));
    let options = with(PostgresOptions::new(proxied.url()), |options| {
        options.request_timeout = Duration::from_millis(400);
    });
    let backend = LockKind::Queue.backend(&options).unwrap();
    eventually("a session opens", async || backend.open(LONG).await.is_ok()).await;
}

/// Goal: a synchronous standby has every token that was given, and nothing is granted that it lacks; when a failover undoes a
/// release, the next grant still stands. Method: nothing is sent to the standby, so the requests of a claim are given up, and a
/// release is seen by the next in the queue but not answered; then a failover.
#[tokio::test]
async fn a_synchronous_standby_repeats_no_token() {
    let Some(mut servers) = replicated(true).await else { return };
    let options = with(PostgresOptions::new(servers.url()), |options| {
        options.request_timeout = Duration::from_millis(300);
        options.standby_is_synchronous = true;
    });
    let open = async || {
        opened(LockKind::Queue.backend(&options).unwrap(), SessionOptions::new(HOUR)).await
    };
    let (session, other) = (open().await, open().await);
    let mutex = session.mutex("a").unwrap();
    let guard = mutex.lock().await.unwrap();
    let first = guard.token();
    guard.unlock().await.unwrap();
    let guard = session.mutex("released").unwrap().lock().await.unwrap();
    let next = waiter(&other.mutex("released").unwrap(), 2).await;
    servers.hold_writes_back().await.unwrap();
    let releasing = tokio::spawn(guard.unlock());
    let next = within("the next one is granted", next).await.unwrap().unwrap();
    assert!(!releasing.is_finished(), "the standby does not have it");
    let before = servers.address.connections();
    let claim = tokio::spawn(async move { mutex.lock().await });
    eventually("the claim is sent again", async || servers.address.connections() > before + 6)
        .await;
    assert!(!claim.is_finished(), "the standby does not have it");
    servers.primary.crash().await.unwrap();
    servers.fail_over().await.unwrap();
    let guard = within("the claim is granted", claim).await.unwrap().unwrap();
    assert!(guard.token() > first, "{} after {first}", guard.token());
    within("the release is repeated", releasing).await.unwrap().unwrap();
    assert_eq!(queue_of(&session.mutex("released").unwrap()).await, [next.key()]);
}

/// Goal: what was answered survives a crash. Method: a server that syncs only what it must, and a crash after each answer.
#[tokio::test]
async fn a_crash_takes_no_answer_back() {
    let Some(lab) = PostgresLab::shared(LockKind::Queue).await else { return };
    let settings = vec!["wal_writer_delay=10s".to_owned()];
    let (mut postgres, lab) =
        lab.private(ServerOptions { settings, ..ServerOptions::default() }).await;
    let mutex = lab.session_for(HOUR).await.mutex("a").unwrap();
    let mut crash = async || {
        postgres.crash().await.unwrap();
        postgres.restart().await.unwrap();
        lab.session_for(HOUR).await.mutex("a").unwrap()
    };
    let guard = mutex.lock().await.unwrap();
    let first = guard.token();
    queue_length(&crash().await, 1).await;
    let guard = guard.requeue().await.unwrap();
    assert!(guard.token() > first);
    queue_length(&crash().await, 1).await;
    guard.unlock().await.unwrap();
    queue_length(&crash().await, 0).await;
}

/// Goal: a standby that lags and takes over grants a number for the second time, under another cluster id, so that a store can
/// tell the two grants apart.
#[tokio::test]
async fn a_standby_that_lags_repeats_a_number_of_another_cluster() {
    let Some(mut servers) = replicated(false).await else { return };
    let open = async |servers: &ReplicatedPostgres| {
        LockKind::Queue.open(&PostgresOptions::new(servers.url()), HOUR).await.unwrap()
    };
    let ours = open(&servers).await.mutex("a").unwrap();
    servers.hold_writes_back().await.unwrap();
    let held = within("the lock is granted", ours.lock()).await.unwrap();
    servers.primary.crash().await.unwrap();
    servers.fail_over().await.unwrap();
    let theirs = open(&servers).await.mutex("a").unwrap();
    let next = within("the lock is granted again", theirs.lock()).await.unwrap();
    assert_eq!(next.token().revision(), held.token().revision());
    assert_ne!(next.token().cluster(), held.token().cluster());
}

/// Goal: the SQL in the docs of `Token` accepts the largest token and later ones, and refuses an earlier one and another
/// cluster's.
#[tokio::test]
async fn the_documented_fence() {
    let Some(lab) = PostgresLab::shared(LockKind::Queue).await else { return };
    let store = lab.client().await;
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

/// Goal: a database without Unicode takes any label and any name, and each name is a lock of its own.
#[tokio::test]
async fn a_database_without_unicode() {
    for encoding in ["LATIN1", "SQL_ASCII"] {
        for kind in KINDS {
            let Some(url) = fresh_database_in(encoding).await else { return };
            let lab = PostgresLab { kind, url };
            let session = lab.session_called("x \u{1f389} \u{e9} \0 y").await;
            let mut guards = Vec::new();
            for name in ["a", "\u{e9}", "c3a9", "\u{e8}", "\u{1f389}"] {
                let mutex = session.mutex(name).unwrap();
                let guard = within("a grant", mutex.lock()).await.unwrap();
                let guard = within("a hand-over", guard.requeue()).await.unwrap();
                assert!(lab.mutex(name).await.try_lock().await.unwrap().is_none(), "{name:?}");
                let entry = mutex.queue().await.unwrap().remove(0);
                assert_eq!(entry.key, guard.key());
                let label = entry.label.unwrap();
                assert!(label.starts_with("x ") && label.ends_with(" y"), "{label:?}");
                guards.push(guard);
            }
            let last = guards.pop().unwrap();
            let waiter = waiter(&lab.mutex(last.name()).await, 2).await;
            last.unlock().await.unwrap();
            drop(within("it is told", waiter).await.unwrap().unwrap());
        }
    }
}
