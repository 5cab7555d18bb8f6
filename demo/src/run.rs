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
use super::screen::{Tone, paragraph, say};
use super::upkeep::supervise;
use crate::control::{Control, NewRun, Verdict};
use crate::instance::Guard;

/// Short, so that a viewer soon sees the effect of a pause or a kill.
const LOCK_TTL: &str = "3s";

/// Long enough to pay, and short enough to see an unpaid unit come back.
const HOLD_SECONDS: u32 = 120;

const PASS: u8 = 0;
const FAIL: u8 = 1;
const NO_VERDICT: u8 = 2;

/// Starts everything, sells out under load, prints the verdict, serves until a signal comes, and leaves nothing behind. Errors go
/// to standard error.
///
/// The exit code is 0 if every unit was sold exactly once, 1 if not, and 2 without a verdict; 128 and the signal's number if a
/// signal came before the verdict.
pub async fn run(options: DemoOptions) -> ExitCode {
    let code = run_until_signal(&options).await.unwrap_or_else(|error| {
        print_error(&ErrorChain(error.as_ref()).to_string());
        NO_VERDICT
    });
    code.into()
}

/// Returns errors that come before the start. Prints later ones, and then stops everything.
async fn run_until_signal(options: &DemoOptions) -> Result<u8> {
    let ports = options.ports()?;
    if options.forward && options.lock != Guard::Lock {
        bail!("--forward needs the guard etcd");
    }
    if options.holds && (options.once || options.lock != Guard::Lock) {
        bail!("--holds needs the guard etcd, and goes on after the verdict: leave --once out");
    }
    check_ports(&ports)?;
    // a sale takes a file for each connection; if this fails, the limit on open files is reported later
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let mut signals = Signals::listen().context("signals cannot be listened to")?;
    let dir = OwnedDir::create().context("no temporary directory could be made")?;

    let (mut cluster, mut verdict) = (None, None);
    let show = Show { options, ports };
    let ending = tokio::select! {
        ending = signals.next() => Some(ending),
        result = show.run(&dir, &mut cluster, &mut verdict) => {
            if let Err(error) = result {
                print_error(&ErrorChain(error.as_ref()).to_string());
            }
            None
        }
    };
    if ending.is_some() {
        say("");
        say("Stopping. Press Ctrl-C again to stop at once.");
    }
    match stop(cluster, dir, &mut signals).await {
        Ok(()) if ending.is_some() => say("Everything is stopped and removed."),
        Ok(()) => {}
        Err(error) => print_error(&format!("not everything is stopped: {error}")),
    }
    let without_verdict = ending.map_or(NO_VERDICT, signals::exit_code);
    Ok(verdict.unwrap_or(without_verdict))
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

/// The state that all steps share.
struct Show<'a> {
    options: &'a DemoOptions,
    ports: Vec<u16>,
}

impl Show<'_> {
    async fn run(
        &self,
        dir: &OwnedDir,
        cluster: &mut Option<Cluster>,
        verdict: &mut Option<u8>,
    ) -> Result<()> {
        let DemoOptions { requests, stock, once, .. } = *self.options;
        say("starting private servers and the instances; all is removed at the end");
        let page = self.ports[self.ports.len() - 1];
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, page)).await;
        let listener = listener.context("the page has no port")?;
        let cluster = cluster.insert(servers(dir).await?);
        self.instances(cluster, page).await?;
        let control = Control::of(cluster);
        let serving = Arc::clone(&control).serve(listener);
        let _serving = AbortOnDropHandle::new(tokio::spawn(serving));
        let hints = self.hints(cluster);
        let report = |text: &str| paragraph(Tone::Warning, "note  ", text);
        let mut upkeep = pin!(supervise(cluster, report));

        let [buyers, units] = [count(requests, "buyer"), count(stock, "unit")];
        say(&format!("\n{buyers} come for {units}\n"));
        let wanted = NewRun { stock, requests, ..NewRun::default() };
        let run = tokio::select! {
            run = control.run(wanted) => run,
            never = &mut upkeep => match never {},
        };
        let run = run.map_err(|problem| anyhow!("{}", problem.detail()))?;
        let judged = run.verdict.ok_or_else(|| anyhow!(run.error.unwrap_or_default()))?;
        self.print_verdict(&judged, run.elapsed_ms);
        *verdict = Some(if judged.pass { PASS } else { FAIL });
        if once {
            return Ok(());
        }
        if self.options.holds {
            self.hold().await?;
        }
        say(&hints);
        match upkeep.await {}
    }

    /// Starts a sale with holds, for a shop.
    async fn hold(&self) -> Result<()> {
        let (_, instances) = self.ports.split_last().expect("there is the page's");
        let body = json!({"stock": self.options.stock, "hold_seconds": HOLD_SECONDS}).to_string();
        let started = probe::http(Method::PUT, instances[0], "/stock", body).await;
        let (status, answer) = started.context("the sale with holds got no answer")?;
        if status != StatusCode::OK {
            bail!("the sale with holds did not start: {answer}");
        }
        let units = count(self.options.stock, "unit");
        // two are enough for a shop that outlives one
        let urls: Vec<_> = instances.iter().take(2).copied().map(cluster::url).collect();
        let urls = urls.join(",");
        say(&format!(
            "
A new sale: {units}, held for {HOLD_SECONDS} s each until they are paid. A shop:
  python3 examples/shop/shop.py \\
    --sale {urls}
A run on the page replaces this sale: start the demo with --holds again then."
        ));
        Ok(())
    }

    fn print_verdict(&self, verdict: &Verdict, elapsed_ms: u64) {
        let DemoOptions { stock, requests, instances, .. } = *self.options;
        let (tone, label) =
            if verdict.pass { (Tone::Good, "PASS  ") } else { (Tone::Bad, "FAIL  ") };
        let [units, buyers] = [count(stock, "unit"), count(requests, "buyer")];
        let instances = count(instances.into(), "instance");
        let text = &verdict.text;
        let text = format!("{units}, {buyers}, {instances}. {text} All in {elapsed_ms} ms.");
        paragraph(tone, label, &text);
    }

    async fn instances(&self, cluster: &mut Cluster, page: u16) -> Result<()> {
        let DemoOptions { lock, forward, instances, .. } = *self.options;
        let mut flags = vec![
            format!("--control={}", cluster::url(page)),
            format!("--lock={}", lock.name()),
            format!("--lock-ttl={LOCK_TTL}"),
        ];
        if forward {
            flags.push("--peer-listen=127.0.0.1:0".to_owned());
            say("orders go to the instance that holds the lock");
        }
        say(&format!("guard of the sale: {}", lock.description()));
        let spec = Spec { instances: instances.into(), flags: &flags, ..Spec::default() };
        for &port in self.ports.iter().filter(|port| **port != page) {
            cluster.start(port, spec).await?;
        }
        for instance in &mut cluster.instances {
            instance.until_ready().await?;
            say(&format!("instance {} answers on {}", instance.port, instance.url()));
        }
        Ok(())
    }

    /// The things that a viewer can try while the demo serves.
    fn hints(&self, cluster: &Cluster) -> String {
        let stock = self.options.stock;
        let url = |at: usize| cluster.instances[at].url();
        let (first, last) = (url(0), url(cluster.instances.len() - 1));
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

async fn servers(dir: &OwnedDir) -> Result<Cluster> {
    let cluster = Cluster::open(dir, 1, EtcdOptions::default(), RedisOptions::default()).await?;
    for (name, port) in [("etcd", cluster.etcd[0].port()), ("Redis", cluster.redis.port())] {
        say(&format!("{name} answers on 127.0.0.1:{port}"));
    }
    Ok(cluster)
}

/// Fails early if a port is taken.
fn check_ports(ports: &[u16]) -> Result<()> {
    for &port in ports {
        if let Err(error) = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            if error.kind() == io::ErrorKind::AddrInUse {
                bail!(
                    "port {port} is taken: stop what listens there or choose another with --port"
                );
            }
            bail!("port {port} cannot be used ({error}): choose another with --port");
        }
    }
    Ok(())
}

fn count(n: u64, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

fn print_error(text: &str) {
    logging::say(&format!("demo: {text}"));
}
