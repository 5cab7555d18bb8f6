//! What the contract needs of a backend: clients of it, and ways to break things.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use etcd_client::Client;
use fenced_lock::{
    Backend, EtcdBackend, EtcdOptions, GrantToken, MemoryBackend, Mutex, Session, SessionOptions,
    Token,
};
use hyper::Method;
#[cfg(any(feature = "file", feature = "redis"))]
use rustix::process::{Pid, Signal, kill_process};
use testkit::shared::shared_endpoint;
use testkit::wait::eventually;
use testkit::{PrivateEtcd, probe};
use tokio::process::{Child, Command};

/// The TTL in the contract: short, since some tests wait for it to pass.
pub(crate) const TTL: Duration = Duration::from_secs(2);

/// A lock service that can be broken.
pub(crate) trait Lab {
    /// What its grants carry.
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
        let options = SessionOptions { label: label.into(), ..SessionOptions::new(TTL) };
        Session::open(self.backend(), options).await.unwrap()
    }

    /// The mutex of `name` in a session of its own.
    async fn mutex(&self, name: &str) -> Mutex<Self::Token> {
        self.session().await.mutex(name).unwrap()
    }
}

/// The keys in the queue of a lock, the holder's first.
pub(crate) async fn queue_of<T: GrantToken>(mutex: &Mutex<T>) -> Vec<String> {
    mutex.queue().await.unwrap().into_iter().map(|entry| entry.key).collect()
}

/// Waits until the queue is so long.
pub(crate) async fn queue_length<T: GrantToken>(mutex: &Mutex<T>, length: usize) {
    let what = format!("a queue of {length} for {}", mutex.name());
    eventually(&what, async || queue_of(mutex).await.len() == length).await;
}

/// This test binary again, as the test `worker`, which is told this by its environment.
pub(crate) fn run_again<const N: usize>(worker: &str, told: [(&str, &str); N]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", worker])
        .envs(told)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// Sends a signal to a process that runs.
#[cfg(any(feature = "file", feature = "redis"))]
pub(crate) fn signal(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id().unwrap()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
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
        Self::at(shared_endpoint().await)
    }

    pub(crate) fn of(etcd: &PrivateEtcd) -> Self {
        Self { endpoint: etcd.endpoint() }
    }

    pub(crate) fn at(endpoint: impl Into<String>) -> Self {
        Self { endpoint: endpoint.into() }
    }

    pub(crate) fn backend_of_its_own(&self) -> Arc<EtcdBackend> {
        Arc::new(EtcdBackend::new(EtcdOptions::new([&self.endpoint])).unwrap())
    }

    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// A client past the library, to look and meddle.
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
