//! PostgreSQL for the contract.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fenced_lock::{
    Backend, BackendError, LockError, PostgresAdvisoryBackend, PostgresBackend, PostgresOptions,
    Session, SessionOptions, Token,
};
use testkit::{PostgresOptions as ServerOptions, PrivatePostgres};
use tokio::sync::OnceCell;
use tokio_postgres::{Client, NoTls};

use super::lab::{FoundLab, Lab, ServerLab};

/// A server with room for the claims that wait in it, each with a connection. Statics are not dropped: its guardian ends
/// it with the process.
static POSTGRES: OnceCell<PrivatePostgres> = OnceCell::const_new();

/// The address of a database that no other test uses, on a server that the tests of this process share, if PostgreSQL is
/// installed.
pub(crate) async fn fresh_database() -> Option<String> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    if !testkit::postgres::is_installed() {
        return None;
    }
    let settings = vec!["max_connections=1000".to_owned()];
    let options = ServerOptions { settings, ..ServerOptions::default() };
    let start = async || PrivatePostgres::start(options).await.unwrap();
    let url = POSTGRES.get_or_init(start).await.url();
    let name = format!("test_{}", NEXT.fetch_add(1, Ordering::Relaxed));
    // without a template that somebody else copies at the moment
    let create = format!("CREATE DATABASE {name} TEMPLATE template0");
    client(&url).await.batch_execute(&create).await.unwrap();
    let (server, _) = url.rsplit_once('/').unwrap();
    Some(format!("{server}/{name}"))
}

async fn client(url: &str) -> Client {
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
