//! What the contract needs of a backend: clients of it, and ways to break things.

use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use etcd_client::{Client, GetOptions};
use fenced_lock::{
    Backend, BackendErrorKind, EtcdBackend, EtcdOptions, GrantToken, LockError, MemoryBackend,
    Mutex, Session, SessionOptions, Token,
};
use hyper::Method;
use testkit::server::{Kind, Private};
use testkit::shared::shared_endpoint;
use testkit::wait::eventually;
use testkit::{EtcdOptions as ServerOptions, PrivateEtcd, Proxy, Run, probe, run};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

pub(crate) use super::faulty::{kind_of, queue_length, queue_of, unseen_waiter, waiter};

/// The TTL in the contract: short, since some tests wait for it to pass, but no shorter than a busy machine may stand still.
pub(crate) const TTL: Duration = Duration::from_secs(3);

/// A TTL that outlives what a test does to a server.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// A TTL that no test waits for.
pub(crate) const HOUR: Duration = Duration::from_hours(1);

/// The number that a token has for a store, if it is one.
pub(crate) fn number_of(token: impl GrantToken) -> i64 {
    let token: &dyn Any = &token;
    token.downcast_ref().map_or(0, |token: &Token| token.revision())
}

/// A lock service that can be broken.
pub(crate) trait Lab {
    /// The token of its grants.
    type Token: GrantToken;

    /// A client of the service, as a process of its own would have one.
    fn backend(&self) -> Arc<dyn Backend<Token = Self::Token>>;

    /// Ends a lease as an operator would.
    async fn revoke(&self, lease: i64);

    /// Deletes a claim as an operator would.
    async fn delete(&self, key: &str);

    /// A lock name that no other test uses.
    fn name(&self) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        format!("lock-{}", NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// A session of a client of its own.
    async fn session(&self) -> Session<Self::Token> {
        self.session_called("").await
    }

    async fn session_called(&self, label: &str) -> Session<Self::Token> {
        opened(self.backend(), SessionOptions::new(TTL).label(label)).await
    }

    async fn session_for(&self, ttl: Duration) -> Session<Self::Token> {
        opened(self.backend(), SessionOptions::new(ttl)).await
    }

    /// The mutex of `name` in a session of its own.
    async fn mutex(&self, name: &str) -> Mutex<Self::Token> {
        self.session().await.mutex(name).unwrap()
    }

    /// Two mutexes of one new name, each in a session of its own.
    async fn two_mutexes(&self) -> [Mutex<Self::Token>; 2] {
        let name = self.name();
        [self.mutex(&name).await, self.mutex(&name).await]
    }
}

/// Opens a session. A busy machine may take longer than a request may, or than the session would last.
pub(crate) async fn opened<T: GrantToken>(
    backend: Arc<dyn Backend<Token = T>>,
    options: SessionOptions,
) -> Session<T> {
    let mut session = None;
    eventually("a session opens", async || {
        let opened = Session::open(Arc::clone(&backend), options.clone()).await;
        let is_late = |error: &LockError| {
            error.is_retryable() || matches!(error, LockError::SessionLost { .. })
        };
        let is_late = opened.as_ref().is_err_and(is_late);
        session = (!is_late).then(|| opened.unwrap());
        session.is_some()
    })
    .await;
    session.unwrap()
}

/// A lab that another process can find.
pub(crate) trait FoundLab: Lab + Sized {
    /// Where the service is.
    fn address(&self) -> String;

    fn at(address: &str) -> Self;

    /// This test binary again, as this worker. `variables` are its environment.
    fn start_worker(&self, worker: &str, variables: &[(&str, &str)]) -> Run {
        self.start_worker_by(&[], worker, variables)
    }

    /// The same behind a command that runs it.
    fn start_worker_by(&self, behind: &[&str], worker: &str, variables: &[(&str, &str)]) -> Run {
        let mut command = run::worker(behind, worker);
        let lab = std::any::type_name::<Self>();
        command.envs([("LOCK_LAB", lab), ("LOCK_ADDRESS", &self.address())]);
        Run::start(command.envs(variables.iter().copied()))
    }

    /// The same service, where it is one server, through a proxy.
    async fn behind_proxy(&self) -> (Proxy, Self) {
        let address = self.address();
        let (_, port) = address.rsplit_once(':').unwrap();
        let port = port.split(|c: char| !c.is_ascii_digit()).next().unwrap();
        let proxy = Proxy::to(port.parse().unwrap()).await.unwrap();
        let address = address.replace(&format!(":{port}"), &format!(":{}", proxy.port()));
        (proxy, Self::at(&address))
    }
}

/// A lab whose service is one server, which a test can cut off, kill and watch.
pub(crate) trait ServerLab: FoundLab<Token = Token> {
    type Kind: Kind;

    /// How many requests a waiter may cost, from its claim to its release, the looks of a test included.
    const REQUESTS_OF_A_WAITER: u64;

    /// A server of the test's own.
    async fn start() -> (Private<Self::Kind>, Self);

    async fn crash(server: &mut Private<Self::Kind>) {
        server.kill().await.unwrap();
    }

    /// How many requests this server of the test's own has had.
    async fn requests(&self, server: &Private<Self::Kind>) -> u64;

    /// How many claims and sessions this server has.
    async fn claims_and_sessions(&self, server: &Private<Self::Kind>) -> (u64, u64);
}

/// Options with some of them set.
pub(crate) fn with<O>(mut options: O, set: impl FnOnce(&mut O)) -> O {
    set(&mut options);
    options
}

/// Checks that this was refused for good, and that the error says so.
pub(crate) fn assert_refused<T: std::fmt::Debug>(result: Result<T, LockError>, said: &str) {
    let text = format!("{:#}", result.as_ref().unwrap_err());
    assert!(text.contains(said), "{text}");
    assert_eq!(kind_of(result), BackendErrorKind::Permanent, "{text}");
}

/// The address of a server that says one thing, to everything.
pub(crate) async fn server_that_says(answer: &'static str) -> SocketAddr {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut client, _) = server.accept().await.unwrap();
            let mut request = [0; 4096];
            while client.read(&mut request).await.is_ok_and(|length| length > 0) {
                // the client sends some commands at once
                if client.write_all(answer.repeat(4).as_bytes()).await.is_err() {
                    break;
                }
            }
        }
    });
    address
}

/// How many calls of this gRPC method etcd has `started`, or `handled` to their end.
pub(crate) async fn metric(etcd: &PrivateEtcd, what: &str, method: &str) -> u64 {
    let (_, page) = probe::http(Method::GET, etcd.port(), "/metrics", "").await.unwrap();
    let begin = format!("grpc_server_{what}_total{{");
    let method = format!("grpc_method=\"{method}\"");
    let lines = page.lines().filter(|line| line.starts_with(&begin) && line.contains(&method));
    lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}

#[derive(Default)]
pub(crate) struct MemoryLab {
    service: MemoryBackend,
}

impl Lab for MemoryLab {
    type Token = Token;

    fn backend(&self) -> Arc<dyn Backend<Token = Token>> {
        Arc::new(self.service.clone())
    }

    async fn revoke(&self, lease: i64) {
        self.service.revoke(lease);
    }

    async fn delete(&self, key: &str) {
        self.service.delete(key);
    }
}

pub(crate) struct EtcdLab {
    endpoint: String,
}

impl EtcdLab {
    /// An etcd that the tests of this process share, each with locks of its own.
    pub(crate) async fn shared() -> Self {
        Self { endpoint: shared_endpoint().await }
    }

    pub(crate) fn of(etcd: &PrivateEtcd) -> Self {
        Self { endpoint: etcd.endpoint() }
    }

    pub(crate) fn backend_of_its_own(&self) -> Arc<EtcdBackend> {
        Arc::new(EtcdBackend::new(EtcdOptions::new([&self.endpoint])).unwrap())
    }

    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// A client of the server itself, past the library.
    pub(crate) async fn client(&self) -> Client {
        Client::connect([&self.endpoint], None).await.unwrap()
    }
}

impl Lab for EtcdLab {
    type Token = Token;

    fn backend(&self) -> Arc<dyn Backend<Token = Token>> {
        self.backend_of_its_own()
    }

    async fn revoke(&self, lease: i64) {
        self.client().await.lease_revoke(lease).await.unwrap();
    }

    async fn delete(&self, key: &str) {
        self.client().await.delete(key, None).await.unwrap();
    }
}

impl FoundLab for EtcdLab {
    fn address(&self) -> String {
        self.endpoint.clone()
    }

    fn at(address: &str) -> Self {
        Self { endpoint: address.to_owned() }
    }
}

impl ServerLab for EtcdLab {
    type Kind = testkit::etcd::Etcd;

    const REQUESTS_OF_A_WAITER: u64 = 5;

    async fn start() -> (PrivateEtcd, Self) {
        let etcd = PrivateEtcd::start(ServerOptions::default()).await.unwrap();
        let lab = Self::of(&etcd);
        (etcd, lab)
    }

    async fn requests(&self, etcd: &PrivateEtcd) -> u64 {
        metric(etcd, "started", "Range").await + metric(etcd, "started", "Txn").await
    }

    async fn claims_and_sessions(&self, _: &PrivateEtcd) -> (u64, u64) {
        let mut client = self.client().await;
        let all = GetOptions::new().with_all_keys().with_count_only();
        let claims = client.get("", Some(all)).await.unwrap().count();
        (claims.unsigned_abs(), client.leases().await.unwrap().leases().len() as u64)
    }
}
