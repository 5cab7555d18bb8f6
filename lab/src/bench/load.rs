//! One load on a team of instances.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use testkit::Child;

use super::arena::{Arena, Team};
use super::error::BenchError;
use super::etcd_cost;
use crate::LOADTEST;
use crate::demo::instance::is_setting;

/// The load test bounds each order; this is for what it did not think of.
const TIMEOUT: Duration = Duration::from_hours(1);

/// How long one order may take: the slowest contenders answer hundreds of them one by one.
const ORDER_TIMEOUT: &str = "10m";

/// How long the load test may take to end when asked to.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// How much of what it said is shown when it failed.
const TAIL_BYTES: usize = 2000;

/// More than any load can sell.
pub(super) const ENDLESS_STOCK: u64 = 1_000_000_000;

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Orders {
    pub(super) requests: usize,
    pub(super) connections: usize,
    /// The units to begin with; `None` leaves the sale as it is.
    pub(super) stock: Option<u64>,
    /// How many instances of the team they go to.
    pub(super) instances: usize,
    /// Over how many items they are spread, if not the default one.
    pub(super) items: Option<usize>,
}

/// What the load test found out, as far as it is of interest here.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Load {
    /// Whether every order was accounted for; `None` if nothing was sold.
    pub(super) pass: Option<bool>,
    #[serde(default)]
    pub(super) verdict: String,
    pub(super) requests: usize,
    pub(super) connections: usize,
    #[serde(default)]
    pub(super) acknowledged: usize,
    #[serde(default)]
    pub(super) sold_out: usize,
    /// Requests that were no orders and got a good answer.
    #[serde(default)]
    pub(super) answered: usize,
    pub(super) unknown: usize,
    pub(super) failed: usize,
    pub(super) duration_seconds: f64,
    pub(super) answers_per_second: f64,
    pub(super) latency_microseconds: Option<Percentiles>,
    /// By the name of the instance.
    #[serde(default)]
    pub(super) instances: BTreeMap<String, Share>,
    #[serde(default)]
    pub(super) turns: Turns,
    /// Spent during the load, by process.
    pub(super) cpu_seconds: BTreeMap<String, f64>,
}

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Percentiles {
    pub(super) min: u64,
    pub(super) p50: u64,
    pub(super) p90: u64,
    pub(super) p99: u64,
    pub(super) p99_9: u64,
    pub(super) max: u64,
}

/// What one instance did.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Share {
    pub(super) acknowledged: u64,
    pub(super) share: f64,
}

/// How often the holder changed.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Turns {
    pub(super) handovers: u64,
    pub(super) tokens: u64,
}

/// A load test that runs.
#[derive(Debug)]
pub(super) struct Running {
    child: Child,
    what: String,
}

impl Arena {
    /// Sends the orders and waits for the report. etcd is compacted before, so that no load pays for
    /// the ones before it.
    pub(super) async fn load(&self, team: &Team, orders: Orders) -> Result<Load, BenchError> {
        etcd_cost::compact(&self.etcd.endpoint()).await?;
        self.start_load(team, orders)?.report().await
    }

    /// Starts to send the orders.
    pub(super) fn start_load(&self, team: &Team, orders: Orders) -> Result<Running, BenchError> {
        let mut args = vec![LOADTEST.to_owned()];
        let mut flag = |name: &str, value: String| args.extend([name.to_owned(), value]);
        flag("--requests", orders.requests.to_string());
        flag("--concurrency", orders.connections.to_string());
        flag("--timeout", ORDER_TIMEOUT.to_owned());
        flag("--process", format!("etcd={}", self.etcd.pid()));
        flag("--process", format!("redis={}", self.redis.pid()));
        for instance in &team.instances {
            flag("--process", format!("instances={}", instance.child.pid()));
        }
        if team.contender.sells() {
            if let Some(stock) = orders.stock {
                flag("--stock", stock.to_string());
            }
            if let Some(items) = orders.items {
                flag("--items", items.to_string());
            }
        } else {
            flag("--probe-path", "/healthz".to_owned());
        }
        if team.contender.sells() {
            args.push("--alone".to_owned());
        }
        args.push("--json".to_owned());
        args.extend(team.urls(orders.instances));
        let log = format!("load-{}.log", uuid::Uuid::new_v4().simple());
        let log = self.dir.path().join(log);
        let child = Child::start(&self.program, args, &self.dir, &log, STOP_GRACE, is_setting)
            .map_err(BenchError::system("the load test could not be started"))?;
        Ok(Running { child, what: team.contender.title().to_owned() })
    }
}

impl Running {
    /// Waits for the report.
    pub(super) async fn report(mut self) -> Result<Load, BenchError> {
        let system = BenchError::system("the load test could not be run");
        let status = tokio::time::timeout(TIMEOUT, self.child.wait())
            .await
            .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
            .map_err(&system)?;
        let log = std::fs::read_to_string(self.child.log()).map_err(&system)?;
        // what it says to people comes before the report, in the same file; hundreds of them add up
        let _ = std::fs::remove_file(self.child.log());
        let report = log.find("{\n").and_then(|start| serde_json::from_str(&log[start..]).ok());
        if let (Some(0 | 1), Some(report)) = (status.code(), report) {
            return Ok(report);
        }
        let start = log.floor_char_boundary(log.len().saturating_sub(TAIL_BYTES));
        Err(BenchError::NoReport { what: self.what, log: log[start..].to_owned() })
    }
}

impl Load {
    /// What is wrong with it, if anything is.
    pub(super) fn fault(&self) -> Option<String> {
        let settled = self.acknowledged + self.sold_out + self.answered;
        if self.pass == Some(false) {
            Some(self.verdict.clone())
        } else if settled != self.requests {
            Some(format!("{settled} of {} requests were answered", self.requests))
        } else {
            None
        }
    }

    /// CPU time of a process by request, in microseconds.
    pub(super) fn cpu_micros(&self, process: &str) -> Option<f64> {
        let requests = u32::try_from(self.requests).ok().filter(|requests| *requests > 0)?;
        Some(self.cpu_seconds.get(process)? * 1e6 / f64::from(requests))
    }

    /// Handovers a second.
    pub(super) fn handovers_per_second(&self) -> f64 {
        let handovers = u32::try_from(self.turns.handovers).unwrap_or(u32::MAX);
        if self.duration_seconds > 0.0 { f64::from(handovers) / self.duration_seconds } else { 0.0 }
    }
}
