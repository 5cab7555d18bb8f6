//! PostgreSQL for the contract.

use std::sync::Arc;

use fenced_lock::{
    Backend, BackendError, PostgresAdvisoryBackend, PostgresBackend, PostgresOptions,
    PostgresRowBackend, Token,
};
use testkit::{PostgresOptions as ServerOptions, PrivatePostgres};
use tokio::sync::OnceCell;
use tokio_postgres::{Client, NoTls};

use super::lab::Lab;

/// Statics are not dropped: its guardian ends it with the process.
static POSTGRES: OnceCell<PrivatePostgres> = OnceCell::const_new();

/// Claims that wait in the server take many connections.
static WITH_MANY_CONNECTIONS: OnceCell<PrivatePostgres> = OnceCell::const_new();

/// A client past the library, to look and meddle.
pub(crate) async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A server of the test's own, if PostgreSQL is installed.
pub(crate) async fn private() -> Option<PrivatePostgres> {
    if !testkit::postgres::is_installed() {
        return None;
    }
    Some(PrivatePostgres::start(ServerOptions::default()).await.unwrap())
}

pub(crate) struct PostgresLab {
    url: String,
}

impl PostgresLab {
    /// A server that the tests of this process share, each with locks of its own, if PostgreSQL is installed.
    pub(crate) async fn shared() -> Option<Self> {
        if !testkit::postgres::is_installed() {
            return None;
        }
        let start = async || PrivatePostgres::start(ServerOptions::default()).await.unwrap();
        Some(Self::at(POSTGRES.get_or_init(start).await.url()))
    }

    pub(crate) fn at(url: impl Into<String>) -> Self {
        Self { url: url.into() }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) async fn client(&self) -> Client {
        client(&self.url).await
    }
}

impl Lab for PostgresLab {
    type Token = Token;

    fn backend(&self) -> Arc<dyn Backend<Token = Token>> {
        Arc::new(PostgresBackend::new(&PostgresOptions::new(&self.url)).unwrap())
    }

    async fn revoke(&self, lease: i64) {
        let client = self.client().await;
        client.execute("DELETE FROM fenced_lock.leases WHERE id = $1", &[&lease]).await.unwrap();
    }

    async fn delete(&self, key: &str) {
        let (name, claim) = key.rsplit_once('/').unwrap();
        let (lease, number) = claim.split_once('-').unwrap();
        let (lease, number) =
            (i64::from_str_radix(lease, 16).unwrap(), number.parse::<i64>().unwrap());
        let delete =
            "DELETE FROM fenced_lock.claims WHERE name = $1 AND lease = $2 AND number = $3";
        self.client().await.execute(delete, &[&name, &lease, &number]).await.unwrap();
    }
}

/// A lock of PostgreSQL for which the server itself lets its clients wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Advisory,
    Row,
}

impl Kind {
    pub(crate) fn backend(
        self,
        options: &PostgresOptions,
    ) -> Result<Arc<dyn Backend<Token = Token>>, BackendError> {
        Ok(match self {
            Self::Advisory => Arc::new(PostgresAdvisoryBackend::new(options)?),
            Self::Row => Arc::new(PostgresRowBackend::new(options)?),
        })
    }
}

pub(crate) struct ServerWaitLab {
    pub(crate) kind: Kind,
    url: String,
}

impl ServerWaitLab {
    /// A server that the tests of this process share, each with locks of its own, if PostgreSQL is installed.
    pub(crate) async fn shared(kind: Kind) -> Option<Self> {
        if !testkit::postgres::is_installed() {
            return None;
        }
        let settings = vec!["max_connections=1000".to_owned()];
        let options = ServerOptions { settings, ..ServerOptions::default() };
        let start = async || PrivatePostgres::start(options).await.unwrap();
        let url = WITH_MANY_CONNECTIONS.get_or_init(start).await.url();
        Some(Self { kind, url })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

/// Ends the connections whose names begin so, and waits for their ends.
pub(crate) async fn terminate(client: &Client, name: &str) {
    let terminate = "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity
        WHERE starts_with(application_name, $1)";
    client.query(terminate, &[&name]).await.unwrap();
}

impl Lab for ServerWaitLab {
    type Token = Token;

    fn backend(&self) -> Arc<dyn Backend<Token = Token>> {
        self.kind.backend(&PostgresOptions::new(&self.url)).unwrap()
    }

    async fn revoke(&self, lease: i64) {
        terminate(&client(&self.url).await, &format!("fenced-lock {lease:x}")).await;
    }

    async fn delete(&self, key: &str) {
        let (_, claim) = key.rsplit_once('/').unwrap();
        terminate(&client(&self.url).await, &format!("fenced-lock {claim} ")).await;
    }
}
