//! Runs the demo.

use std::io;
use std::net::Ipv4Addr;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail};
use axum::http::{Method, StatusCode};
use flash_sale::error_chain::ErrorChain;
use flash_sale::logging;
use serde_json::json;
use testkit::cluster::{self, Cluster, Spec};
use testkit::probe;
use testkit::signals::{self, Signals};
use testkit::{EtcdOptions, LOCK_NAME, OwnedDir, RedisOptions};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::options::DemoOptions;
use super::screen::{GREEN, RED, paragraph, say};
use super::upkeep::supervise;
use crate::control::{Control, NewRun, Verdict};
use crate::instance::Guard;

/// Short, so that a viewer soon sees the effect of a pause or a kill.
const LOCK_TTL: &str = "3s";

/// Long enough to pay, and short enough to see an unpaid unit come back.
const HOLD_SECONDS: u32 = 120;

/// Starts everything, sells out under load, prints the verdict, serves until a signal comes, and leaves nothing behind. Errors
/// after the start go to standard error.
///
/// The exit code is 0 if every unit was sold exactly once, 1 if not, and 2 without a verdict; 128 and the signal's number if a
/// signal came before the verdict.
///
/// # Errors
/// Nothing can be started.
pub async fn run(options: &DemoOptions) -> Result<ExitCode> {
    if options.forward && options.lock != Guard::Lock {
        bail!("--forward needs the guard etcd");
    }
    if options.holds && (options.once || options.lock != Guard::Lock) {
        bail!("--holds needs the guard etcd, and goes on after the verdict: leave --once out");
    }
    for port in options.ports()? {
        if let Err(error) = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            bail!(
                "port {port} is not free: stop what listens there or choose another with --port ({error})"
            );
        }
    }
    // a sale takes a file for each connection; if this fails, the limit on open files is reported later
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let mut signals = Signals::listen().context("signals cannot be listened to")?;
    let dir = OwnedDir::create().context("no temporary directory could be made")?;

    let (mut cluster, mut is_passed) = (None, None);
    let ending = tokio::select! {
        ending = signals.next() => Some(ending),
        result = options.show(&dir, &mut cluster, &mut is_passed) => {
            if let Err(error) = result {
                logging::say(&format!("demo: {}", ErrorChain(error.as_ref())));
            }
            None
        }
    };
    if ending.is_some() {
        say("\nStopping. Press Ctrl-C again to stop at once.");
    }
    match stop(cluster, dir, &mut signals).await {
        Ok(()) if ending.is_some() => say("Everything is stopped and removed."),
        Ok(()) => {}
        Err(error) => logging::say(&format!("demo: not everything is stopped: {error}")),
    }
    let without_verdict = ending.map_or(2, signals::exit_code);
    Ok(is_passed.map_or(without_verdict, |is_passed| u8::from(!is_passed)).into())
}

/// Stops and removes everything in order; after another signal, at once.
async fn stop(cluster: Option<Cluster>, dir: OwnedDir, signals: &mut Signals) -> io::Result<()> {
    // a failure does not keep the other parts from ending, even after an interrupted start
    let mut done = Ok(());
    if let Some(mut cluster) = cluster {
        tokio::select! {
            stopped = cluster.stop() => done = stopped,
            _ = signals.next() => cluster.kill().await,
        }
        done = done.and(cluster.remove().await);
    }
    dir.remove().await.and(done)
}

impl DemoOptions {
    async fn show(
        &self,
        dir: &OwnedDir,
        cluster: &mut Option<Cluster>,
        is_passed: &mut Option<bool>,
    ) -> Result<()> {
        say("starting private servers and the instances; all is removed at the end");
        let page = self.port_of(self.instances);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, page)).await;
        let listener = listener.context("the page has no port")?;
        let started = Cluster::open(dir, 1, EtcdOptions::default(), RedisOptions::default()).await;
        let cluster = cluster.insert(started?);
        for (name, port) in [("etcd", cluster.etcd[0].port()), ("Redis", cluster.redis.port())] {
            say(&format!("{name} answers on 127.0.0.1:{port}"));
        }
        self.start_instances(cluster).await?;
        let control = Control::of(cluster);
        let serving = Arc::clone(&control).serve(listener);
        let _serving = AbortOnDropHandle::new(tokio::spawn(serving));
        let hints = self.hints(cluster);
        let mut upkeep = pin!(supervise(cluster));

        let [buyers, units] = [count(self.requests, "buyer"), count(self.stock, "unit")];
        say(&format!("\n{buyers} come for {units}\n"));
        let wanted = NewRun { stock: self.stock, requests: self.requests, ..NewRun::default() };
        let run = tokio::select! {
            run = control.run(wanted) => run,
            never = &mut upkeep => match never {},
        };
        let run = run.map_err(|problem| anyhow!("{}", problem.detail()))?;
        let verdict = run.verdict.ok_or_else(|| anyhow!(run.error.unwrap_or_default()))?;
        let Verdict { pass, text, .. } = verdict;
        let (label, colour) = if pass { ("PASS  ", GREEN) } else { ("FAIL  ", RED) };
        let instances = count(self.instances.into(), "instance");
        let text = format!("{units}, {buyers}, {instances}. {text} All in {} ms.", run.elapsed_ms);
        paragraph(colour, label, &text);
        *is_passed = Some(pass);
        if self.once {
            return Ok(());
        }
        if self.holds {
            self.hold().await?;
        }
        say(&hints);
        match upkeep.await {}
    }

    /// Starts a sale with holds, for a shop.
    async fn hold(&self) -> Result<()> {
        let body = json!({"stock": self.stock, "hold_seconds": HOLD_SECONDS}).to_string();
        let started = probe::http(Method::PUT, self.port, "/stock", body).await;
        let (status, answer) = started.context("the sale with holds got no answer")?;
        if status != StatusCode::OK {
            bail!("the sale with holds did not start: {answer}");
        }
        let units = count(self.stock, "unit");
        // two are enough for a shop that outlives one
        let urls = (0..self.instances.min(2)).map(|n| self.url(n)).collect::<Vec<_>>().join(",");
        say(&format!(
            "
A new sale: {units}, held for {HOLD_SECONDS} s each until they are paid. A shop:
  python3 examples/shop/shop.py \\
    --sale {urls}
A run on the page replaces this sale: start the demo with --holds again then."
        ));
        Ok(())
    }

    async fn start_instances(&self, cluster: &mut Cluster) -> Result<()> {
        let (guard, description) = self.lock.words();
        let mut flags = vec![
            format!("--control={}", self.url(self.instances)),
            format!("--lock={guard}"),
            format!("--lock-ttl={LOCK_TTL}"),
        ];
        if self.forward {
            flags.push("--peer-listen=127.0.0.1:0".to_owned());
            say("orders go to the instance that holds the lock");
        }
        say(&format!("guard of the sale: {description}"));
        let spec = Spec { instances: self.instances.into(), flags: &flags, ..Spec::default() };
        for n in 0..self.instances {
            cluster.start(self.port_of(n), spec).await?;
        }
        for instance in &mut cluster.instances {
            instance.until_ready().await?;
            say(&format!("instance {} answers on {}", instance.port, instance.url()));
        }
        Ok(())
    }

    fn url(&self, n: u16) -> String {
        cluster::url(self.port_of(n))
    }

    /// The things that a viewer can try while the demo serves.
    fn hints(&self, cluster: &Cluster) -> String {
        let stock = self.stock;
        let [first, last] = [0, self.instances - 1].map(|n| self.url(n));
        let (redis, etcd) = (cluster.redis.tool_flags(), cluster.etcd[0].tool_flags());
        let logs = cluster.dir.path().display();
        format!(
            "
To try from another terminal, where no call of a demo needs a token:
  curl -X PUT -d '{{\"stock\":{stock}}}' {first}/stock
  curl -i -X POST {first}/stock/reduce
  curl {last}/stock
  curl {last}/orders
  redis-cli {redis} get stock
  curl {first}/lock
  etcdctl {etcd} lock {LOCK_NAME}
    (holds the lock: all orders wait until you press Ctrl-C)
Logs: {logs}

When one script is not enough: crates/fenced-lock/examples/two_stores.rs

Serving until Ctrl-C. See the sale again, slowly: {first}"
        )
    }
}

fn count(n: u64, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}
