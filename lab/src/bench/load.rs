//! One load on a contender's instances.

use loadtest::Report;

use super::contender::Contender;
use super::etcd_cost;
use crate::error::LabError;
use demo::cluster::Cluster;
use demo::load::{Load, TIMEOUT};

/// The time limit of an order: the slowest contenders serve hundreds of them one by one.
const ORDER_TIMEOUT: &str = "10m";

/// The orders of a load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Orders {
    pub(super) requests: usize,
    pub(super) connections: usize,
    /// The units to begin with; `None` leaves the sale as it is.
    pub(super) stock: Option<u64>,
    /// How many of the instances they go to.
    pub(super) instances: usize,
    /// The number of items; `None` is the default item alone.
    pub(super) items: Option<usize>,
    /// Orders a second, for an open loop; `None`: each connection sends its next order after the answer.
    pub(super) rate: Option<f64>,
}

/// Compacts etcd, so that no load pays for earlier ones; sends the orders and waits for the report.
pub(super) async fn run(
    cluster: &Cluster,
    contender: Contender,
    orders: Orders,
) -> Result<Report, LabError> {
    etcd_cost::compact(&cluster.etcd[0].endpoint()).await?;
    Ok(start(cluster, contender, orders)?.report(TIMEOUT).await?)
}

/// Starts to send the orders.
pub(super) fn start(
    cluster: &Cluster,
    contender: Contender,
    orders: Orders,
) -> Result<Load, LabError> {
    let mut args = Vec::new();
    let mut flag = |name: &str, value: String| args.extend([name.to_owned(), value]);
    flag("--requests", orders.requests.to_string());
    flag("--concurrency", orders.connections.to_string());
    if let Some(rate) = orders.rate {
        flag("--rate", rate.to_string());
    }
    flag("--timeout", ORDER_TIMEOUT.to_owned());
    flag("--process", format!("etcd={}", cluster.etcd[0].pid()));
    flag("--process", format!("redis={}", cluster.redis.pid()));
    for instance in &cluster.instances {
        flag("--process", format!("instances={}", instance.child.pid()));
    }
    if contender.sells() {
        if let Some(stock) = orders.stock {
            flag("--stock", stock.to_string());
        }
        if let Some(items) = orders.items {
            flag("--items", items.to_string());
        }
        args.push("--alone".to_owned());
    } else {
        flag("--probe-path", "/healthz".to_owned());
    }
    args.extend(cluster.urls().into_iter().take(orders.instances));
    Ok(Load::start(cluster, &args, false)?)
}

/// The fault of a load, if there is one.
pub(super) fn fault(load: &Report) -> Option<String> {
    let settled = load.acknowledged + load.sold_out + load.answered;
    if !load.pass {
        Some(load.verdict.clone())
    } else if usize::try_from(settled) != Ok(load.requests) {
        Some(format!("{settled} of {} requests were answered", load.requests))
    } else {
        None
    }
}

/// CPU time of a process by request, in microseconds.
pub(super) fn cpu_micros(load: &Report, process: &str) -> Option<f64> {
    let requests = u32::try_from(load.requests).ok().filter(|requests| *requests > 0)?;
    Some(load.cpu_seconds.get(process)? * 1e6 / f64::from(requests))
}

/// Handovers a second.
pub(super) fn handovers_per_second(load: &Report) -> f64 {
    let handovers = u32::try_from(load.turns.handovers).unwrap_or(u32::MAX);
    if load.duration_seconds > 0.0 { f64::from(handovers) / load.duration_seconds } else { 0.0 }
}
