//! What is no load: the memory of an instance.

use std::time::Duration;

use anyhow::Result;
use loadtest::Report;
use serde::Serialize;
use testkit::LOCK_NAME;
use testkit::wait::until;

use super::case::Case;
use super::options::{BenchOptions, Contender, Measure};
use crate::experiment::{counter, etcd_session, fault, float, in_proc, note};
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
