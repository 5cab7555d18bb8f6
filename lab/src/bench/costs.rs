//! What is no load: the memory of an instance, and the least that a handover costs.

use std::time::Duration;

use anyhow::Result;
use etcd_client::Client;
use loadtest::Report;
use serde::Serialize;
use testkit::LOCK_NAME;
use testkit::wait::until;
use tokio::time::Instant;

use super::case::Case;
use super::options::{BenchOptions, Contender, Measure};
use crate::experiment::{Spread, counter, etcd_session, fault, float, in_proc, note};
use demo::cluster::Cluster;
use demo::load::TIMEOUT;

/// How long it may take until all orders wait.
const PATIENCE: Duration = Duration::from_mins(2);

/// Memory of one instance in bytes, and the load that waited.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Memory {
    pub(super) idle: u64,
    pub(super) waiting: u64,
    /// How many orders waited, each on a connection of its own.
    pub(super) orders: usize,
    load: Report,
}

impl Memory {
    /// For each waiting order, its connection included.
    pub(super) fn kibibytes_of_an_order(&self) -> f64 {
        float(self.waiting.saturating_sub(self.idle)) / float(self.orders.max(1)) / 1024.0
    }

    pub(super) fn fault(&self) -> Option<String> {
        fault(&self.load).map(|fault| format!("memory: {fault}"))
    }
}

/// Holds the lock from outside while orders wait for it; `None` where there is no `/proc`.
pub(super) async fn memory(
    cluster: &mut Cluster,
    options: &BenchOptions,
) -> Result<Option<Memory>> {
    Contender::Combined.start(cluster, 1, None).await?;
    let (pid, port) = (cluster.instances[0].child.pid(), cluster.instances[0].port);
    let usual = Case { instances: 1, ..Case::usual(Measure::Memory, Contender::Combined, options) };
    // starts the sale
    let first = Case { requests: 1, connections: 1, ..usual.clone() };
    first.start(cluster, None)?.report(TIMEOUT).await?;
    let Some(idle) = resident_bytes(pid) else {
        cluster.stop_instances().await?;
        return Ok(None);
    };

    let session = etcd_session("bench", &[cluster.etcd[0].endpoint()]).await?;
    let guard = session.mutex(LOCK_NAME)?.lock().await?;
    let orders = options.full_or_short(10_000, 50);
    note(&format!("memory: {orders} waiting orders"));
    let waiting = Case { requests: orders, connections: orders, stock: None, ..usual };
    let load = waiting.start(cluster, None)?;
    until("all orders wait", PATIENCE, async || {
        let waiting = counter(port, "flash_sale_orders_waiting").await;
        anyhow::Ok(usize::try_from(waiting).is_ok_and(|waiting| waiting >= orders))
    })
    .await?;
    let waiting = resident_bytes(pid).unwrap_or(idle);
    guard.unlock().await?;
    session.close().await?;
    let load = load.report(TIMEOUT).await?;
    cluster.stop_instances().await?;
    Ok(Some(Memory { idle, waiting, orders, load }))
}

/// Bytes of memory that are in RAM.
fn resident_bytes(pid: u32) -> Option<u64> {
    let resident = in_proc(&format!("{pid}/status"), "VmRSS")?;
    Some(resident.strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

/// Times in microseconds, one client, nothing else going on.
#[derive(Clone, Debug, Serialize)]
pub(super) struct EtcdCost {
    /// From sending a put to its answer.
    pub(super) commit: Spread,
    /// From sending a put until another client's watch reports it.
    pub(super) commit_and_notification: Spread,
}

/// Measures so many commits.
pub(super) async fn etcd_cost(endpoint: &str, commits: usize) -> Result<EtcdCost> {
    const KEY: &str = "bench/commit";
    let mut writer = Client::connect([endpoint], None).await?;
    let mut watcher = Client::connect([endpoint], None).await?;
    let mut watch = watcher.watch(KEY, None).await?;
    let (mut commit, mut notified) = (Vec::new(), Vec::new());
    for _ in 0..commits {
        let sent = Instant::now();
        let put = async {
            writer.put(KEY, "", None).await?;
            Ok::<_, etcd_client::Error>(sent.elapsed())
        };
        let event = async {
            // the answer that the watcher was created has no events
            while watch.message().await?.is_some_and(|message| message.events().is_empty()) {}
            Ok(sent.elapsed())
        };
        let (put, event) = tokio::try_join!(put, event)?;
        commit.push(put.as_secs_f64() * 1e6);
        notified.push(event.as_secs_f64() * 1e6);
    }
    let of = |micros| Spread::of(micros).unwrap_or_default();
    Ok(EtcdCost { commit: of(commit), commit_and_notification: of(notified) })
}
