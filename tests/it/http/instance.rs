//! Goal: the program `flash-sale serve` starts in any order, and stops without losing an order.
//! Method: the real program as a process, over servers of the test's own.

use std::net::SocketAddr;
use std::process::{ExitStatus, Stdio};

use etcd_client::{AlarmAction, AlarmType};
use fenced_lock::Session;
use hyper::Method;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::NamedTempFile;
use testkit::client::Connection;
use testkit::copies::restart_with;
use testkit::ports::{address_in, free_ports};
use testkit::shared::{fresh_database, fresh_lock_name, shared_endpoint};
use testkit::wait::{DEADLINE, eventually};
use testkit::{
    EtcdOptions, OwnedDir, PrivateEtcd, PrivateRedis, Proxy, RedisOptions, Sentinels, probe,
};
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixDatagram;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::program::run;
use crate::support::etcd::session;

const PROGRAM: &str = env!("CARGO_BIN_EXE_flash-sale");

/// The servers and the lock of one sale.
pub(super) struct Servers {
    etcd: String,
    redis: String,
    lock_name: String,
}

impl Servers {
    pub(super) async fn shared() -> Self {
        Self::at(shared_endpoint().await, fresh_database().await)
    }

    fn at(etcd: String, redis: String) -> Self {
        Self { etcd, redis, lock_name: fresh_lock_name() }
    }

    /// Starts the program with these variables, and waits until it listens.
    pub(super) async fn start(&self, variables: &[(&str, &str)]) -> Instance {
        self.start_by(Command::new(PROGRAM), variables).await
    }

    /// The same by a command that takes the program's arguments.
    async fn start_by(&self, command: Command, variables: &[(&str, &str)]) -> Instance {
        let mut command = self.command(command);
        command.envs(variables.iter().copied());
        Instance::start(command).await
    }

    fn command(&self, mut command: Command) -> Command {
        command
            .args(["serve", "--admin-token", "s3cret", "--etcd", &self.etcd])
            .args(["--redis", &self.redis, "--lock-name", &self.lock_name])
            .envs([("FLASH_SALE_LISTEN", "127.0.0.1:0"), ("FLASH_SALE_LOCK_TTL", "5s")])
            .kill_on_drop(true);
        command
    }

    /// How many claims are in the queue for the lock, as this session sees it.
    async fn claims(&self, session: &Session) -> usize {
        session.mutex(&self.lock_name).unwrap().queue().await.unwrap().len()
    }
}

/// A running program.
pub(crate) struct Instance {
    child: Child,
    log: NamedTempFile,
    pub(crate) address: SocketAddr,
}

impl Instance {
    /// Starts the program by this command, and waits until it listens.
    pub(crate) async fn start(mut command: Command) -> Self {
        let log = NamedTempFile::new().unwrap();
        let child = command.stderr(log.reopen().unwrap()).spawn().unwrap();
        let address = address_in(log.path()).await;
        Self { child, log, address }
    }

    /// The status of `GET path`, once the program listens.
    async fn status(&self, path: &str) -> Option<u16> {
        let answer = probe::http(Method::GET, self.address.port(), path, "").await;
        answer.ok().map(|(status, _)| status.as_u16())
    }

    pub(super) async fn until_ready(&self) {
        eventually("the instance is ready", async || self.status("/readyz").await == Some(200))
            .await;
    }

    /// Starts a sale when the instance is ready, over the connection that is returned.
    pub(super) async fn start_sale(&self, units: u32) -> Connection {
        self.until_ready().await;
        let mut buyer = Connection::open(self.address).await;
        buyer.send(start_of(units)).await;
        assert_eq!(buyer.answer().await.status, 200);
        buyer
    }

    pub(super) fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)).unwrap();
        kill_process(pid, signal).unwrap();
    }

    async fn exit(&mut self) -> (ExitStatus, String) {
        let status = timeout(DEADLINE, self.child.wait()).await.expect("it exits in time").unwrap();
        (status, self.log())
    }

    /// Stops it in order, and returns its log.
    pub(super) async fn stop(&mut self) -> String {
        self.signal(Signal::TERM);
        let (status, log) = self.exit().await;
        assert_eq!(status.code(), Some(0), "{log}");
        log
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.log.path()).unwrap()
    }
}

/// The request that starts a sale.
fn start_of(units: u32) -> String {
    let body = format!("{{\"stock\":{units}}}");
    let head = "PUT /stock HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer s3cret\r\nContent-Length";
    format!("{head}: {}\r\n\r\n{body}", body.len())
}

async fn leases(client: &mut etcd_client::Client) -> Vec<i64> {
    let leases = client.leases().await.unwrap();
    leases.leases().iter().map(etcd_client::LeaseStatus::id).collect()
}

/// Goal: several signals one after the other stop it as one does: new connections are refused, all orders that wait are answered,
/// claim and lease are given up, and the exit status is 0.
#[tokio::test]
async fn signals_in_a_row_drop_no_order() {
    let etcd = PrivateEtcd::start(EtcdOptions::default()).await.unwrap();
    let session = session(&etcd.endpoint(), "test").await;
    let mut client = etcd_client::Client::connect([etcd.endpoint()], None).await.unwrap();
    for signals in [[Signal::TERM, Signal::TERM], [Signal::INT, Signal::TERM]] {
        let servers = Servers::at(etcd.endpoint(), fresh_database().await);
        let mut instance = servers.start(&[]).await;
        let mut buyers = vec![instance.start_sale(5).await];
        for _ in 0..4 {
            buyers.push(Connection::open(instance.address).await);
        }
        let mut idle = Connection::open(instance.address).await;
        let guard = session.mutex(&servers.lock_name).unwrap().lock().await.unwrap();
        for buyer in &mut buyers {
            buyer.send_get("/stock/reduce").await;
        }
        eventually("the orders wait", async || {
            idle.get("/metrics").await.body.contains("\nflash_sale_orders_waiting 5\n")
        })
        .await;

        instance.signal(signals[0]);
        eventually("it stops", async || instance.log().contains("stopping after")).await;
        instance.signal(signals[1]);
        eventually("nobody new is let in", async || instance.status("/readyz").await.is_none())
            .await;
        assert!(idle.is_closed().await, "{signals:?}");
        guard.unlock().await.unwrap();
        for buyer in &mut buyers {
            let answer = buyer.answer().await;
            assert_eq!(answer.status, 200, "{signals:?}: {answer:?}");
            assert_eq!(answer.header("connection"), Some("close"));
        }
        let (status, log) = instance.exit().await;
        assert_eq!(status.code(), Some(0), "{signals:?}: {log}");
        assert_eq!(servers.claims(&session).await, 0, "{signals:?}");
        let leases = leases(&mut client).await;
        assert_eq!(leases, [session.lease().id], "only the test's own lease is left");
    }
}

/// Goal: an instance that is asked to stop while Redis is silent waits for no answer of it, however long orders may wait and
/// the stop may take: each buyer is told what is known, and the claim is given up. Method: the silence outlasts the
/// instance. With batches of one order, two orders are sent, and the third one waits.
#[tokio::test]
async fn it_stops_while_redis_is_silent() {
    let redis = PrivateRedis::start(RedisOptions::default()).await.unwrap();
    let proxy = Proxy::to(redis.port()).await.unwrap();
    let behind_proxy = format!("redis://127.0.0.1:{}", proxy.port());
    let servers = Servers::at(shared_endpoint().await, behind_proxy);
    let session = session(&servers.etcd, "test").await;
    let mut instance = servers
        .start(&[
            ("FLASH_SALE_WAIT_TIMEOUT", "10m"),
            ("FLASH_SALE_SHUTDOWN_GRACE", "1h"),
            ("FLASH_SALE_BATCH_SIZE", "1"),
        ])
        .await;
    let mut buyers = vec![instance.start_sale(9).await];
    assert_eq!(buyers[0].get("/stock/reduce").await.status, 200);
    for _ in 0..2 {
        buyers.push(Connection::open(instance.address).await);
    }
    let mut idle = Connection::open(instance.address).await;
    proxy.freeze();
    for buyer in &mut buyers {
        buyer.send_get("/stock/reduce").await;
    }
    eventually("one waits", async || {
        idle.get("/metrics").await.body.contains("\nflash_sale_orders_waiting 1\n")
    })
    .await;
    assert_eq!(servers.claims(&session).await, 1);
    instance.signal(Signal::TERM);
    let mut told = Vec::new();
    for buyer in &mut buyers {
        let answer = buyer.answer().await;
        let problem: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
        told.push((answer.status, problem["type"].as_str().unwrap().to_owned()));
    }
    told.sort();
    let known = [(503, "stopping"), (504, "outcome-unknown"), (504, "outcome-unknown")];
    assert_eq!(told, known.map(|(status, word)| (status, word.to_owned())));
    let (status, log) = instance.exit().await;
    assert_eq!(status.code(), Some(0), "{log}");
    assert_eq!(servers.claims(&session).await, 0, "{log}");
}

/// Goal: an instance that is asked to stop is not ready first, and serves everything for the time of `--drain-delay`. A
/// second Ctrl-C waits neither for that nor for an order.
#[tokio::test]
async fn it_drains_before_it_stops() {
    let servers = Servers::shared().await;
    let mut instance = servers.start(&[("FLASH_SALE_DRAIN_DELAY", "1h")]).await;
    let buyer = instance.start_sale(5).await;
    instance.signal(Signal::TERM);
    eventually("it is not ready", async || instance.status("/readyz").await == Some(503)).await;
    let refused = Connection::open(instance.address).await.get("/readyz").await;
    refused.assert_problem(503, "stopping");
    assert_eq!(refused.header("connection"), Some("close"));
    // who is connected is told to go elsewhere
    for mut buyer in [buyer, Connection::open(instance.address).await] {
        let answer = buyer.get("/stock/reduce").await;
        assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
        assert!(buyer.is_closed().await);
    }
    assert_eq!(instance.status("/healthz").await, Some(200));
    let session = session(&servers.etcd, "test").await;
    let _guard = session.mutex(&servers.lock_name).unwrap().lock().await.unwrap();
    let mut buyer = Connection::open(instance.address).await;
    buyer.send_get("/stock/reduce").await;
    eventually("the order waits", async || servers.claims(&session).await == 2).await;
    instance.signal(Signal::INT);
    let (status, log) = instance.exit().await;
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("a second Ctrl-C"), "{log}");
}

/// Goal: with `--admin-listen`, buyers and operators have doors of their own, each with room for `--max-connections`. Without
/// it, the start warns. One line warns that a limit counts all clients of a proxy as one.
#[tokio::test]
async fn operators_have_a_door_of_their_own() {
    let servers = Servers::shared().await;
    // the buyer sends one order below: those of the operator do not count
    let limit = ("FLASH_SALE_RATE_LIMIT", "1/m");
    let instance = servers.start(&[("FLASH_SALE_ADMIN_LISTEN", "127.0.0.1:0"), limit]).await;
    let named = async || {
        let log = instance.log();
        let (_, rest) = log.split_once("operators: http://")?;
        rest.split_whitespace().next()?.parse::<SocketAddr>().ok()
    };
    eventually("the log names the other port", async || named().await.is_some()).await;
    let admin = named().await.unwrap();
    let mut operator = Connection::open(admin).await;
    eventually("it is ready", async || operator.get("/readyz").await.status == 200).await;
    let (_, log) = run(&["health", &format!("http://{admin}/readyz")]).await;
    assert_eq!(log, "");
    let mut buyer = Connection::open(instance.address).await;
    buyer.send(start_of(5)).await;
    buyer.answer().await.assert_problem(405, "method-not-allowed");
    operator.send(start_of(5)).await;
    assert_eq!(operator.answer().await.status, 200);
    assert_eq!(buyer.get("/stock/reduce").await.status, 200);
    assert_eq!(operator.get("/stock/reduce").await.status, 200);
    buyer.get("/metrics").await.assert_problem(404, "not-found");
    assert_eq!(operator.get("/metrics").await.status, 200);
    for _ in 0..2 {
        let header = "X-Forwarded-For: 203.0.113.7";
        buyer.send(format!("POST /stock/reduce HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n")).await;
        buyer.answer().await.assert_problem(429, "rate-limited");
    }
    assert_eq!(instance.log().matches("with --trusted-proxy").count(), 1, "{}", instance.log());
    // the shop's server is an operator with as many connections as it has buyers
    let mut shops = Vec::new();
    for nth in 0..330 {
        let mut shop = Connection::open(admin).await;
        assert_eq!(shop.get("/stock").await.status, 200, "{nth}");
        shops.push(shop);
    }
    let is_warned = |instance: &Instance| instance.log().contains("set --admin-listen");
    assert!(!is_warned(&instance));
    assert!(is_warned(&servers.start(&[]).await));
}

/// Goal: a service under `nohup` outlives its terminal. systemd learns when an instance listens and when it stops.
#[tokio::test]
async fn it_fits_what_started_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let systemd = UnixDatagram::bind(&path).unwrap();
    let told = async || {
        let mut state = [0; 100];
        let length = timeout(DEADLINE, systemd.recv(&mut state)).await.expect("it tells").unwrap();
        String::from_utf8(state[..length].to_vec()).unwrap()
    };
    let mut command = Command::new("nohup");
    command.arg(PROGRAM);
    let variables = [("NOTIFY_SOCKET", path.to_str().unwrap())];
    let mut instance = Servers::shared().await.start_by(command, &variables).await;
    assert_eq!(told().await, "READY=1");
    instance.until_ready().await;
    instance.signal(Signal::HUP);
    assert_eq!(instance.status("/readyz").await, Some(200));
    let log = instance.stop().await;
    assert!(log.contains("SIGTERM: stopping"), "{log}");
    assert_eq!(told().await, "STOPPING=1");
}

/// Goal: an operator finds the lines of the log that belong to a request by the id in its answer: a warning, and with
/// `debug` all of them.
#[tokio::test]
async fn the_log_has_the_ids_of_requests() {
    let mut redis = PrivateRedis::start(RedisOptions::default()).await.unwrap();
    let servers = Servers::at(shared_endpoint().await, redis.url());
    let mut instance = servers.start(&[("FLASH_SALE_LOG", "info,flash_sale=debug")]).await;
    instance.until_ready().await;
    redis.kill().await.unwrap();
    let mut buyer = Connection::open(instance.address).await;
    buyer.send("GET /stock/reduce HTTP/1.1\r\nHost: test\r\nX-Request-Id: trace-17\r\n\r\n").await;
    let answer = buyer.answer().await;
    answer.assert_problem(503, "store-unavailable");
    assert_eq!(answer.header("x-request-id"), Some("trace-17"));
    let log = instance.stop().await;
    let lines: Vec<_> = log.lines().filter(|line| line.contains("trace-17")).collect();
    let has =
        |words: &[&str]| lines.iter().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(has(&["WARN", "request_id=\"trace-17\"", "the store does not answer"]), "{log}");
    assert!(has(&["request{id=\"trace-17\"", "answered", "status=503"]), "{log}");
}

/// Goal: an instance whose log nobody reads goes on: it sells, counts the lines that are lost, and stops in order
/// (moby/moby#22502). Once somebody reads, the log says how many were lost, and ends with its last line.
/// Method: standard error is a pipe, and the lines are long.
#[tokio::test]
async fn a_log_that_nobody_reads_stops_nothing() {
    for is_read_later in [false, true] {
        let servers = Servers::shared().await;
        let [port] = free_ports().unwrap();
        let mut command = servers.command(Command::new(PROGRAM));
        let listen = format!("127.0.0.1:{port}");
        command.envs([("FLASH_SALE_LISTEN", &*listen), ("FLASH_SALE_LOG", "debug")]);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let log = NamedTempFile::new().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        eventually("it listens", async || Connection::try_open(address).await.is_ok()).await;
        let mut instance = Instance { child, log, address };
        let mut buyer = instance.start_sale(5).await;
        let path = format!("/{}", "x".repeat(8_000));
        for _ in 0..600 {
            assert_eq!(buyer.get(&path).await.status, 404);
        }
        assert_eq!(buyer.get("/stock/reduce").await.status, 200);
        let metrics = buyer.get("/metrics").await.body;
        let (_, dropped) = metrics.split_once("\nflash_sale_log_lines_dropped_total ").unwrap();
        assert!(!dropped.starts_with("0\n"), "{dropped}");
        let reading = tokio::spawn(async move {
            let mut text = String::new();
            if is_read_later {
                stderr.read_to_string(&mut text).await.unwrap();
            } else {
                // open, and unread, to the end of the test
                std::mem::forget(stderr);
            }
            text
        });
        instance.signal(Signal::TERM);
        let (status, _) = instance.exit().await;
        assert_eq!(status.code(), Some(0));
        let text = reading.await.unwrap();
        if is_read_later {
            assert!(text.contains("lines of the log were dropped"), "{}", text.len());
            assert!(text.ends_with("stopped\n"), "{:?}", text.lines().last());
        }
    }
}

/// Goal: at the start, an operator learns which members of etcd are too old, away or out of space. An instance is not ready while
/// etcd has no space.
#[tokio::test]
async fn the_state_of_etcd_is_checked() {
    let etcd = PrivateEtcd::start(EtcdOptions::default()).await.unwrap();
    let mut client = etcd_client::Client::connect([etcd.endpoint()], None).await.unwrap();
    client.alarm(AlarmAction::Activate, AlarmType::Nospace, None).await.unwrap();
    let [nobody] = free_ports().unwrap();
    let endpoints = format!("{},http://127.0.0.1:{nobody}", etcd.endpoint());
    let instance = Servers::at(endpoints, fresh_database().await).start(&[]).await;
    let warned = |words: &[&str]| {
        let log = instance.log();
        log.lines()
            .any(|line| line.contains("WARN") && words.iter().all(|word| line.contains(word)))
    };
    let member = etcd.endpoint();
    eventually("it warns of the alarm", async || warned(&[&member, "NOSPACE", "disarm"])).await;
    let nobody = format!("127.0.0.1:{nobody}");
    eventually("it names who is away", async || warned(&[&nobody, "cannot be reached"])).await;
    eventually("it is not ready", async || {
        let told = probe::http(Method::GET, instance.address.port(), "/readyz", "").await;
        told.is_ok_and(|(status, text)| status == 503 && text.contains("lock-unavailable"))
    })
    .await;
    client.alarm(AlarmAction::Deactivate, AlarmType::Nospace, None).await.unwrap();
    instance.until_ready().await;
}

/// Goal: an instance can start before its servers: it is alive, not ready, and says why; once they run, with Redis found through
/// a sentinel, it is ready.
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
    let mut instance = Servers::at(etcd.endpoint(), watch.url()).start(&[]).await;
    assert!(instance.log().contains("no sentinel names the primary"), "{}", instance.log());
    eventually("it lives", async || instance.status("/healthz").await == Some(200)).await;
    assert_eq!(instance.status("/readyz").await, Some(503));
    // an outage is logged ever more rarely: the first failure, the second, the fourth and so on
    eventually("etcd was asked again", async || instance.log().contains("failures=4")).await;
    let log = instance.log();
    let failures = log.lines().filter(|line| line.contains("could not open a lock session"));
    let numbers = failures.filter_map(|line| line.rsplit_once("failures=")?.1.parse().ok());
    let numbers: Vec<u64> = numbers.collect();
    assert!(numbers.iter().zip(0..).all(|(number, power)| *number == 1 << power), "{log}");
    assert!(!log.contains("transport::Error"), "an error shows its cause alone: {log}");
    redis.restart().await.unwrap();
    watch.sentinels[2].restart().await.unwrap();
    etcd.restart().await.unwrap();
    instance.until_ready().await;
    instance.stop().await;
}

/// Goal: when the readiness check finds a key without a lease at the head of the lock's queue, the log names the key; a roll-back
/// is one line in the log, not one for each order.
#[tokio::test]
async fn what_stops_a_sale_is_logged_once() {
    let mut redis = PrivateRedis::start(RedisOptions::default()).await.unwrap();
    let servers = Servers::at(shared_endpoint().await, redis.url());
    let mut instance = servers.start(&[]).await;
    let mut buyer = instance.start_sale(5).await;
    // whatever it is called, it makes no second line
    let key = format!("{}/forgotten\nINFO forged", servers.lock_name);
    let mut client = etcd_client::Client::connect([servers.etcd], None).await.unwrap();
    client.put(key.as_str(), "", None).await.unwrap();
    buyer.send_get("/stock/reduce").await;
    eventually("it is in the way", async || instance.status("/readyz").await == Some(503)).await;
    client.delete(key.as_str(), None).await.unwrap();
    assert_eq!(buyer.answer().await.status, 200);
    restart_with(&mut redis, None).await;
    for _ in 0..20 {
        assert_eq!(instance.status("/stock/reduce").await, Some(503));
        assert_eq!(instance.status("/readyz").await, Some(503));
    }
    let log = instance.stop().await;
    assert!(!log.lines().any(|line| line.starts_with("INFO forged")), "{log}");
    for words in [["which has no lease", "forgotten"], ["was rolled back", ""]] {
        let lines: Vec<_> = log.lines().filter(|line| line.contains(words[0])).collect();
        assert_eq!(lines.len(), 1, "{log}");
        assert!(lines[0].contains("ERROR") && lines[0].contains(words[1]), "{log}");
    }
}

/// Goal: a permanent error ends the start with a message that hides the password.
#[tokio::test]
async fn a_wrong_configuration_fails_at_once() {
    let servers = Servers::shared().await;
    let flags = ["serve", "--listen", "127.0.0.1:0", "--redis", "http://:hidden@127.0.0.1"];
    let (code, log) = run(&flags).await;
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("redis://") && !log.contains("hidden"), "{log}");

    let first = servers.start(&[]).await;
    let (code, log) = run(&["serve", "--listen", &first.address.to_string()]).await;
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("Address already in use"), "{log}");
}
