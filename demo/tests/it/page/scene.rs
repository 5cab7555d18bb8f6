//! The servers behind a page: a demo, or a single instance over servers that the test can stop.

use std::process::Stdio;

use hyper::Method;
use rustix::process::{Pid, Signal, kill_process};
use testkit::wait::{eventually, within};
use testkit::{EtcdOptions, PrivateEtcd, PrivateRedis, RedisOptions, ports, probe};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use super::browser::{DESKTOP, Tab};

const PROGRAM: &str = env!("CARGO_BIN_EXE_demo");

/// The demo, as users run it: two instances and servers of its own. It ends with this value.
pub(super) struct Demo {
    _process: Child,
    pub(super) port: u16,
}

impl Demo {
    /// Starts the demo and waits until its first sale is over.
    pub(super) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// The same with these flags.
    pub(super) async fn start_with(flags: &[&str]) -> Self {
        Self::start_at(ports::reserve(&[0, 10, 20, 30]), flags).await
    }

    /// The same with its first instance on this port.
    pub(super) async fn start_at(port: u16, flags: &[&str]) -> Self {
        let mut command = program();
        command.args(["--port", &port.to_string()]).args(flags);
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let serves = async {
            while let Some(line) = lines.next_line().await.unwrap() {
                if line.contains("Serving until Ctrl-C.") {
                    return;
                }
            }
            panic!("the demo ended before it served");
        };
        within("the demo serves", serves).await;
        // reads on, so that the demo can write
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Self { _process: process, port }
    }

    pub(super) fn url(&self) -> String {
        url(self.port)
    }

    /// Opens its page and waits until that is live.
    pub(super) async fn live_page(&self) -> Tab {
        let page = Tab::open(&self.url(), DESKTOP).await;
        page.until_reads("#link-text", "live").await;
        page
    }
}

/// An etcd, a Redis, an instance over them and its control. The test can stop and restart all but the last.
pub(super) struct Shop {
    pub(super) etcd: PrivateEtcd,
    pub(super) redis: PrivateRedis,
    instance: Option<Child>,
    port: u16,
    control: u16,
    _control: Child,
}

impl Shop {
    /// Starts all three, with a sale of `stock` units.
    pub(super) async fn selling(stock: u64) -> Self {
        let shop = Self::empty(&[]).await;
        shop.sell(stock).await;
        shop
    }

    /// The same without a sale; `flags` are the instance's.
    pub(super) async fn empty(flags: &[&str]) -> Self {
        let etcd = PrivateEtcd::start(EtcdOptions::default()).await.unwrap();
        let redis = PrivateRedis::start(RedisOptions::default()).await.unwrap();
        let [port, control] = ports::free_ports().unwrap();
        let mut command = program();
        command.args(["control", "--listen", &format!("127.0.0.1:{control}")]);
        command.args(["--instances", &format!("http://127.0.0.1:{port}")]);
        let _control = command.stderr(Stdio::null()).spawn().unwrap();
        let mut shop = Self { etcd, redis, instance: None, port, control, _control };
        shop.start_instance(flags).await;
        shop
    }

    /// Starts the instance, at the same port each time.
    pub(super) async fn start_instance(&mut self, flags: &[&str]) {
        let mut command = program();
        command.args(["serve", "--lock-ttl", "5s"]);
        command.args(["--listen", &format!("127.0.0.1:{}", self.port)]);
        command.args(["--control", &format!("http://127.0.0.1:{}", self.control)]);
        command.args(["--etcd", &self.etcd.endpoint(), "--redis", &self.redis.url()]).args(flags);
        self.instance = Some(command.stderr(Stdio::null()).spawn().unwrap());
        let is_ready = async || {
            let answer = probe::http(Method::GET, self.port, "/readyz", "").await;
            answer.is_ok_and(|(status, _)| status == 200)
        };
        eventually("the instance is ready", is_ready).await;
    }

    /// Starts an instance of the service alone, in this process. Returns its address.
    pub(super) async fn serve_alone(&self) -> String {
        #[derive(clap::Parser)]
        struct Service {
            #[command(flatten)]
            config: flash_sale::config::Config,
        }
        let [port] = ports::free_ports().unwrap();
        let Service { config } = clap::Parser::parse_from([
            "serve",
            &format!("--listen=127.0.0.1:{port}"),
            &format!("--etcd={}", self.etcd.endpoint()),
            &format!("--redis={}", self.redis.url()),
        ]);
        tokio::spawn(flash_sale::serve::serve(config));
        let is_ready = async || {
            let answer = probe::http(Method::GET, port, "/readyz", "").await;
            answer.is_ok_and(|(status, _)| status == 200)
        };
        eventually("the service is ready", is_ready).await;
        url(port)
    }

    /// Sends the instance a signal.
    pub(super) fn signal_instance(&self, signal: Signal) {
        let pid = self
            .instance
            .as_ref()
            .and_then(Child::id)
            .and_then(|id| Pid::from_raw(id.try_into().ok()?));
        kill_process(pid.expect("it runs"), signal).unwrap();
    }

    /// Ends the instance at once.
    pub(super) async fn kill_instance(&mut self) {
        self.instance.take().expect("it runs").kill().await.unwrap();
    }

    /// Starts a new sale.
    pub(super) async fn sell(&self, stock: u64) {
        let body = format!("{{\"stock\":{stock}}}");
        let answer = probe::http(Method::PUT, self.port, "/stock", body).await.unwrap();
        assert_eq!(answer.0, 200, "{}", answer.1);
    }

    pub(super) fn url(&self) -> String {
        url(self.port)
    }
}

fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}/")
}

/// The program, without the settings of the environment. It ends with the test.
fn program() -> Command {
    let mut command = Command::new(PROGRAM);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FLASH_SALE_") {
            command.env_remove(name);
        }
    }
    command.kill_on_drop(true);
    command
}
