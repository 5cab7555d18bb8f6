//! A running `lab serve`, told to do without something or to stop somewhere.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};

use fenced_lock::Session;
use hyper::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use testkit::client::{Answer, Connection};
use testkit::ports::free_ports;
use testkit::probe;
use testkit::shared::{Raw, fresh_database, fresh_lock_name, shared_endpoint};
use testkit::wait::{eventually, within};
use tokio::process::Child;

use crate::lab;
use crate::support::etcd::session;

/// A running program. It is killed when this is dropped.
pub(super) struct Program {
    child: Child,
    port: u16,
    dir: TempDir,
    /// The name of its lock.
    pub(super) lock: String,
    redis: String,
}

impl Program {
    /// Starts it with these flags over a store and a lock of its own, with a sale of ten units.
    pub(super) async fn selling(flags: &[&str]) -> Self {
        let redis = fresh_database().await;
        let program =
            Self::start(&shared_endpoint().await, &redis, &fresh_lock_name(), flags).await;
        program.sell(10).await;
        program
    }

    /// Starts it over these servers, with these flags besides, and waits until it can sell. `DIR` in a
    /// flag is a directory of its own.
    pub(super) async fn start(etcd: &str, redis: &str, lock_name: &str, flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().to_str().unwrap();
        let flags: Vec<_> = flags.iter().map(|flag| flag.replace("DIR", own)).collect();
        let servers = ["--etcd", etcd, "--redis", redis, "--lock-name", lock_name];
        let flags = servers.into_iter().chain(flags.iter().map(String::as_str));
        let [port] = free_ports().unwrap();
        let mut program = lab(dir.path(), &["serve", "--listen", &format!("127.0.0.1:{port}")]);
        program.args(flags).stdout(Stdio::null()).stderr(Stdio::null());
        let child = program.spawn().unwrap();
        eventually("the program is ready", async || {
            let answer = probe::http(Method::GET, port, "/readyz", "").await;
            answer.is_ok_and(|(status, _)| status == 200)
        })
        .await;
        Self { child, port, dir, lock: lock_name.to_owned(), redis: redis.to_owned() }
    }

    /// Its store.
    pub(super) async fn redis(&self) -> Raw {
        Raw::connect(&self.redis).await
    }

    /// A session of another client of its lock, which is on the shared etcd.
    pub(super) async fn other_session(&self) -> Session {
        session(&shared_endpoint().await, "other").await
    }

    /// Makes the file `name` in its directory, which its flags name as `DIR/name`.
    pub(super) fn ask_for(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, "").unwrap();
        path
    }

    /// Starts a sale of the default item.
    pub(super) async fn sell(&self, stock: u64) {
        let body = format!("{{\"stock\":{stock}}}");
        let answer = probe::http(Method::PUT, self.port, "/stock", body).await.unwrap();
        assert_eq!(answer.0, 200, "{}", answer.1);
    }

    /// Sends an order, whose answer is left to be read.
    pub(super) async fn send_order(&self, id: &str) -> Connection {
        let mut connection = self.connection().await;
        let line = "POST /stock/reduce HTTP/1.1\r\nHost: test\r\n";
        connection.send(format!("{line}Idempotency-Key: {id}\r\nContent-Length: 0\r\n\r\n")).await;
        connection
    }

    pub(super) async fn order(&self, id: &str) -> Answer {
        self.send_order(id).await.answer().await
    }

    async fn connection(&self) -> Connection {
        Connection::open(SocketAddr::from(([127, 0, 0, 1], self.port))).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.connection().await.get(path).await
    }

    pub(super) async fn json(&self, path: &str) -> Value {
        serde_json::from_str(&self.get(path).await.body).unwrap()
    }

    /// The value of this line of `/metrics`.
    pub(super) async fn metric(&self, name: &str) -> u64 {
        let page = self.get("/metrics").await.body;
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {page}")).parse().unwrap()
    }

    pub(super) fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        kill_process(pid.expect("it runs"), signal).unwrap();
    }

    pub(super) async fn exit(&mut self) -> ExitStatus {
        within("the program ends", self.child.wait()).await.unwrap()
    }
}
