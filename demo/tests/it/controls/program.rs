//! A running `demo serve`, told to do without something or to stop somewhere.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use hyper::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use testkit::client::{Answer, Connection};
use testkit::ports::address_in;
use testkit::probe;
use testkit::wait::{eventually, within};
use tokio::process::{Child, Command};

/// A running program. It is killed when this is dropped.
pub(super) struct Program {
    child: Child,
    address: SocketAddr,
    dir: TempDir,
}

impl Program {
    /// Starts it over these servers, with these flags besides, and waits until it can sell. `DIR` in a
    /// flag is a directory of its own.
    pub(super) async fn start(etcd: &str, redis: &str, lock_name: &str, flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().to_str().unwrap();
        let log = dir.path().join("stderr");
        let child = Command::new(env!("CARGO_BIN_EXE_demo"))
            .args(["serve", "--listen", "127.0.0.1:0"])
            .args(["--etcd", etcd, "--redis", redis, "--lock-name", lock_name])
            .args(flags.iter().map(|flag| flag.replace("DIR", own)))
            .stderr(std::fs::File::create(&log).unwrap())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let address = address_in(&log).await;
        let program = Self { child, address, dir };
        eventually("the program is ready", async || {
            let answer = probe::http(Method::GET, address.port(), "/readyz", "").await;
            answer.is_ok_and(|(status, _)| status.as_u16() == 200)
        })
        .await;
        program
    }

    /// A file of its own directory, which stands for `DIR/name` in its flags.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Makes that file.
    pub(super) fn ask_for(&self, name: &str) -> PathBuf {
        let path = self.file(name);
        std::fs::write(&path, "").unwrap();
        path
    }

    /// Starts a sale of the default item.
    pub(super) async fn sell(&self, stock: u32) {
        let body = format!("{{\"stock\":{stock}}}");
        let mut connection = Connection::open(self.address).await;
        let length = body.len();
        let head =
            format!("PUT /stock HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n");
        connection.send(head + body.as_str()).await;
        assert_eq!(connection.answer().await.status, 200);
    }

    /// Sends an order of the default item, whose answer is left to be read.
    pub(super) async fn send_order(&self, id: &str) -> Connection {
        self.send_order_of("", id).await
    }

    /// The same for the item that the query names.
    pub(super) async fn send_order_of(&self, query: &str, id: &str) -> Connection {
        let mut connection = Connection::open(self.address).await;
        let line = format!("POST /stock/reduce{query} HTTP/1.1\r\nHost: test\r\n");
        connection.send(format!("{line}Idempotency-Key: {id}\r\nContent-Length: 0\r\n\r\n")).await;
        connection
    }

    pub(super) async fn order(&self, id: &str) -> Answer {
        self.send_order(id).await.answer().await
    }

    pub(super) async fn connection(&self) -> Connection {
        Connection::open(self.address).await
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
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
        let pid = self.child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits until it is stopped.
    pub(super) async fn until_stopped(&self) {
        let stat = PathBuf::from(format!("/proc/{}/stat", self.child.id().unwrap()));
        eventually("the program is stopped", async || is_stopped(&stat)).await;
    }

    pub(super) async fn exit(&mut self) -> ExitStatus {
        within("the program ends", self.child.wait()).await.unwrap()
    }
}

fn is_stopped(stat: &Path) -> bool {
    let stat = std::fs::read_to_string(stat).unwrap();
    // the name before it may have any characters
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}
