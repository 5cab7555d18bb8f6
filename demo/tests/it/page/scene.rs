//! The servers behind a page: a demo, or a single instance over servers that the test can stop.

use rustix::process::Signal;
use testkit::{EtcdOptions, PrivateEtcd, PrivateRedis, RedisOptions, ports};
use tokio::process::Child;

use super::browser::{DESKTOP, Tab};
use crate::launch::{self, ALL, Demo};

impl Demo {
    /// Starts a demo with these flags, and waits until its first sale is over.
    pub(super) async fn with(flags: &[&str]) -> Self {
        Self::on_port(ports::reserve(&ALL), flags).await
    }

    /// The same, with its first instance on this port.
    pub(super) async fn on_port(port: u16, flags: &[&str]) -> Self {
        let mut demo = Self::start_at(port, flags, |command| {
            // its files may outlive the test a little
            command.env_remove("TMPDIR");
        });
        demo.until_it_says("Serving until Ctrl-C.").await;
        demo
    }

    pub(super) fn url(&self) -> String {
        url(self.port)
    }

    /// Opens its page and waits until the page is live.
    pub(super) async fn live_page(&self) -> Tab {
        let page = Tab::open(&self.url(), DESKTOP).await;
        page.until_reads("#link-text", "connected").await;
        // the first events may come before the control's first look
        page.until_shown("#run[aria-disabled=false]").await;
        page
    }
}

/// An etcd, a Redis, an instance over them and its control. The test can stop and restart all but the control.
pub(super) struct Shop {
    pub(super) etcd: PrivateEtcd,
    pub(super) redis: PrivateRedis,
    instance: Option<Child>,
    pub(super) port: u16,
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

    /// The same without a sale. `flags` are the instance's.
    pub(super) async fn empty(flags: &[&str]) -> Self {
        let etcd = PrivateEtcd::start(EtcdOptions::default()).await.unwrap();
        let redis = PrivateRedis::start(RedisOptions::default()).await.unwrap();
        let [port, control] = ports::free_ports().unwrap();
        let instances = format!("http://127.0.0.1:{port}");
        let process = launch::start("control", control, &["--instances", &instances]).await;
        let mut shop = Self { etcd, redis, instance: None, port, control, _control: process };
        shop.start_instance(flags).await;
        shop
    }

    /// Starts the instance, at the same port each time.
    pub(super) async fn start_instance(&mut self, flags: &[&str]) {
        let control = format!("http://127.0.0.1:{}", self.control);
        let (etcd, redis) = (self.etcd.endpoint(), self.redis.url());
        let own = ["--lock-ttl", "5s", "--control", &control, "--etcd", &etcd, "--redis", &redis];
        let flags = [&own[..], flags].concat();
        self.instance = Some(launch::start("serve", self.port, &flags).await);
    }

    pub(super) fn signal_instance(&self, signal: Signal) {
        launch::signal(self.instance.as_ref().expect("it runs"), signal);
    }

    /// Ends the instance at once.
    pub(super) async fn kill_instance(&mut self) {
        self.instance.take().expect("it runs").kill().await.unwrap();
    }

    /// Starts a new sale.
    pub(super) async fn sell(&self, stock: u64) {
        launch::sell(self.port, stock).await;
    }

    pub(super) fn url(&self) -> String {
        url(self.control)
    }
}

fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}/")
}
