//! Goal: the program `flash-sale serve` starts in any order, and stops without losing an order.
//! Method: the real program as a process, over servers of the test's own.

use std::net::SocketAddr;
use std::process::ExitStatus;

use fenced_lock::Session;
use hyper::Method;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::NamedTempFile;
use testkit::client::Connection;
use testkit::copies::restart_with;
use testkit::ports::address_in;
use testkit::shared::{fresh_database, fresh_lock_name, shared_endpoint};
use testkit::wait::{DEADLINE, eventually};
use testkit::{EtcdOptions, OwnedDir, PrivateEtcd, PrivateRedis, RedisOptions, Sentinels, probe};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use crate::program::run;
use crate::support::etcd::session;

const PROGRAM: &str = env!("CARGO_BIN_EXE_flash-sale");

/// A running program.
struct Instance {
    child: Child,
    log: NamedTempFile,
    address: SocketAddr,
}

impl Instance {
    /// Starts it, and waits until it listens.
    async fn start(etcd: &str, redis: &str, lock_name: &str) -> Self {
        Self::start_by(Command::new(PROGRAM), etcd, redis, lock_name).await
    }

    /// The same, by a command that takes the program's arguments.
    async fn start_by(mut command: Command, etcd: &str, redis: &str, lock_name: &str) -> Self {
        // a program inherits "ignore", which `nohup` sets, but not a handler: so SIGHUP has its default there
        let _handler = signal(SignalKind::hangup()).unwrap();
        let log = NamedTempFile::new().unwrap();
        let child = command
            .args(["serve", "--admin-token", "s3cret", "--listen", "127.0.0.1:0"])
            .args(["--etcd", etcd, "--redis", redis, "--lock-name", lock_name, "--lock-ttl", "5s"])
            .stderr(log.reopen().unwrap())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let address = address_in(log.path()).await;
        Self { child, log, address }
    }

    /// The status of `GET path`, once the program listens.
    async fn status(&self, path: &str) -> Option<u16> {
        let answer = probe::http(Method::GET, self.address.port(), path, "").await;
        answer.ok().map(|(status, _)| status.as_u16())
    }

    async fn until_ready(&self) {
        eventually("the instance is ready", async || self.status("/readyz").await == Some(200))
            .await;
    }

    fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)).unwrap();
        kill_process(pid, signal).unwrap();
    }

    async fn exit(&mut self) -> (ExitStatus, String) {
        let status = timeout(DEADLINE, self.child.wait()).await.expect("it exits in time").unwrap();
        (status, self.log())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.log.path()).unwrap()
    }
}

/// How many claims are in the queue for the lock `name`.
async fn claims(session: &Session, name: &str) -> usize {
    session.mutex(name).unwrap().queue().await.unwrap().len()
}

/// Starts a sale of 5 units, over the connection that is returned.
async fn start_sale_of_five(instance: &Instance) -> Connection {
    let mut buyer = Connection::open(instance.address).await;
    buyer
        .send("PUT /stock HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer s3cret\r\nContent-Length: 11\r\n\r\n{\"stock\":5}")
        .await;
    assert_eq!(buyer.answer().await.status, 200);
    buyer
}

/// Goal: a second Ctrl-C does not wait for the order in flight.
#[tokio::test]
async fn a_later_interrupt_ends_it_at_once() {
    let etcd = PrivateEtcd::start(EtcdOptions::default()).await.unwrap();
    let mut instance = Instance::start(&etcd.endpoint(), &fresh_database().await, "lock").await;
    instance.until_ready().await;
    let mut buyer = start_sale_of_five(&instance).await;
    let session = session(&etcd.endpoint(), "test").await;
    let _guard = session.mutex("lock").unwrap().lock().await.unwrap();
    buyer.send_get("/stock/reduce").await;
    eventually("the order waits", async || claims(&session, "lock").await == 2).await;
    instance.signal(Signal::INT);
    eventually("nobody new is let in", async || instance.status("/readyz").await.is_none()).await;
    // the first ones may still be an echo
    eventually("it ends", async || {
        instance.signal(Signal::INT);
        instance.child.try_wait().unwrap().is_some()
    })
    .await;
    let (status, log) = instance.exit().await;
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("a second Ctrl-C"), "{log}");
}

/// Goal: signals that follow each other at once stop it as one does: new connections are refused, all orders that wait
/// are answered, claim and lease are given up, and the exit status is 0. A terminal that goes away is such a signal.
#[tokio::test]
async fn signals_in_a_row_drop_no_order() {
    let etcd = PrivateEtcd::start(EtcdOptions::default()).await.unwrap();
    let session = session(&etcd.endpoint(), "test").await;
    let mut client = etcd_client::Client::connect([etcd.endpoint()], None).await.unwrap();
    for signals in [
        [Signal::TERM, Signal::TERM],
        [Signal::HUP, Signal::HUP],
        [Signal::INT, Signal::INT],
        [Signal::INT, Signal::TERM],
    ] {
        let redis = fresh_database().await;
        let mut instance = Instance::start(&etcd.endpoint(), &redis, "lock").await;
        instance.until_ready().await;
        let mut buyers = vec![start_sale_of_five(&instance).await];
        for _ in 0..4 {
            buyers.push(Connection::open(instance.address).await);
        }
        let mut idle = Connection::open(instance.address).await;
        assert_eq!(idle.get("/healthz").await.status, 200);
        let guard = session.mutex("lock").unwrap().lock().await.unwrap();
        for buyer in &mut buyers {
            buyer.send_get("/stock/reduce").await;
        }
        let all_wait = async || {
            let metrics = probe::http(Method::GET, instance.address.port(), "/metrics", "").await;
            metrics.unwrap().1.contains("\nflash_sale_orders_waiting 5\n")
        };
        eventually("the orders wait", all_wait).await;

        instance.signal(signals[0]);
        eventually("nobody new is let in", async || instance.status("/readyz").await.is_none())
            .await;
        assert!(idle.is_closed().await, "{signals:?}");
        instance.signal(signals[1]);
        eventually("it is noticed", async || instance.log().contains("stopping already")).await;
        guard.unlock().await.unwrap();
        for buyer in &mut buyers {
            let answer = buyer.answer().await;
            assert_eq!(answer.status, 200, "{signals:?}: {answer:?}");
            assert_eq!(answer.header("connection"), Some("close"));
        }
        let (status, log) = instance.exit().await;
        assert_eq!(status.code(), Some(0), "{signals:?}: {log}");
        assert_eq!(claims(&session, "lock").await, 0, "{signals:?}");
        let leases = client.leases().await.unwrap();
        let leases: Vec<i64> = leases.leases().iter().map(etcd_client::LeaseStatus::id).collect();
        assert_eq!(leases, [session.lease().id], "only the test's own lease is left");
    }
}

/// Goal: a service under `nohup` outlives its terminal.
#[tokio::test]
async fn under_nohup_it_outlives_its_terminal() {
    let (etcd, redis) = (shared_endpoint().await, fresh_database().await);
    let mut command = Command::new("nohup");
    command.arg(PROGRAM);
    let mut instance = Instance::start_by(command, &etcd, &redis, &fresh_lock_name()).await;
    instance.until_ready().await;
    instance.signal(Signal::HUP);
    assert_eq!(instance.status("/readyz").await, Some(200));
    instance.signal(Signal::TERM);
    let (status, log) = instance.exit().await;
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("SIGTERM: stopping") && !log.contains("SIGHUP"), "{log}");
}

/// Goal: an instance can start before its servers: it lives, is not ready and says why, and is ready once they run, Redis
/// by a sentinel.
#[tokio::test]
async fn it_may_start_before_its_servers() {
    let mut etcd = PrivateEtcd::start(EtcdOptions::default()).await.unwrap();
    let dir = OwnedDir::create().unwrap();
    let mut redis = PrivateRedis::start_in(&dir, RedisOptions::default()).await.unwrap();
    let mut watch = Sentinels::start_in(&dir, &redis, 0).await.unwrap();
    etcd.kill().await.unwrap();
    redis.kill().await.unwrap();
    for sentinel in &mut watch.sentinels {
        sentinel.kill().await.unwrap();
    }
    let mut instance = Instance::start(&etcd.endpoint(), &watch.url(), "lock").await;
    assert!(instance.log().contains("no sentinel names the primary"), "{}", instance.log());
    eventually("it lives", async || instance.status("/healthz").await == Some(200)).await;
    assert_eq!(instance.status("/readyz").await, Some(503));
    // an outage is logged ever more rarely
    let log = async || tokio::fs::read_to_string(instance.log.path()).await.unwrap();
    eventually("etcd was asked again", async || log().await.contains("failures=4")).await;
    let lines = log().await;
    assert_eq!(lines.matches("could not open a lock session").count(), 3, "of four");
    assert!(!lines.contains("transport::Error"), "an error shows its cause alone: {lines}");
    redis.restart().await.unwrap();
    watch.sentinels[2].restart().await.unwrap();
    etcd.restart().await.unwrap();
    instance.until_ready().await;
    instance.signal(Signal::TERM);
    let (status, log) = instance.exit().await;
    assert_eq!(status.code(), Some(0), "{log}");
}

/// Goal: the log of a sale that stands still names the first key of the queue, once; a roll-back is one line in it, not one
/// for each order; so is another Redis process.
#[tokio::test]
async fn what_stops_a_sale_is_logged_once() {
    let mut redis = PrivateRedis::start(RedisOptions::default()).await.unwrap();
    let (etcd, lock_name) = (shared_endpoint().await, fresh_lock_name());
    let mut instance = Instance::start(&etcd, &redis.url(), &lock_name).await;
    instance.until_ready().await;
    let mut buyer = start_sale_of_five(&instance).await;
    let key = format!("{lock_name}/forgotten");
    let mut client = etcd_client::Client::connect([etcd], None).await.unwrap();
    client.put(key.as_str(), "", None).await.unwrap();
    buyer.send_get("/stock/reduce").await;
    let log = async || tokio::fs::read_to_string(instance.log.path()).await.unwrap();
    eventually("the log names it", async || log().await.contains(&key)).await;
    client.delete(key.as_str(), None).await.unwrap();
    assert_eq!(buyer.answer().await.status, 200);
    restart_with(&mut redis, None).await;
    for _ in 0..20 {
        assert_eq!(instance.status("/stock/reduce").await, Some(503));
        assert_eq!(instance.status("/readyz").await, Some(503));
    }
    instance.signal(Signal::TERM);
    let (_, log) = instance.exit().await;
    for words in [[&*key, "without a lease"], ["was rolled back", ""]] {
        let lines: Vec<_> = log.lines().filter(|line| line.contains(words[0])).collect();
        assert_eq!(lines.len(), 1, "{log}");
        assert!(lines[0].contains("ERROR") && lines[0].contains(words[1]), "{log}");
    }
    assert_eq!(log.matches("another Redis process answers").count(), 1, "{log}");
}

/// Goal: a permanent error ends the start with a message that hides the password.
#[tokio::test]
async fn a_wrong_configuration_fails_at_once() {
    let etcd = shared_endpoint().await;
    let redis = fresh_database().await;
    let with_password = redis.replace("redis://", "redis://nobody:hidden@");
    for (redis, sentence) in
        [("http://:hidden@127.0.0.1", "redis://"), (with_password.as_str(), "WRONGPASS")]
    {
        let flags = ["serve", "--listen", "127.0.0.1:0", "--etcd", &etcd, "--redis", redis];
        let (code, log) = run(&flags).await;
        assert_eq!(code, Some(1), "{log}");
        assert!(log.contains(sentence) && !log.contains("hidden"), "{log}");
    }

    let mut first = Instance::start(&etcd, &redis, "lock").await;
    first.until_ready().await;
    let (code, log) = run(&["serve", "--listen", &first.address.to_string()]).await;
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("Address already in use"), "{log}");
    first.signal(Signal::TERM);
    first.exit().await;
}
