//! Memory of an instance, idle and with many waiting orders.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{BackendError, EtcdBackend, EtcdOptions, LockError, Session, SessionOptions};
use loadtest::Report;
use serde::Serialize;
use testkit::LOCK_NAME;
use tokio::time::{Instant, sleep};

use super::contender::{Contender, leave};
use super::load::{self, Orders};
use super::scale::Scale;
use crate::error::LabError;
use demo::cluster::Cluster;
use demo::load::{ENDLESS_STOCK, TIMEOUT};

/// How often the instance is checked.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// It is at rest after this many checks in a row without work.
const QUIET_LOOKS: u32 = 5;

/// Ticks of 10 ms between two checks that do not count as work: timers and keepalives.
const QUIET_TICKS: u64 = 1;

/// How long the orders may take to come to rest.
const REST_TIMEOUT: Duration = Duration::from_mins(2);

/// Memory of one instance in bytes, and the load that waited.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Memory {
    pub(super) idle: u64,
    pub(super) waiting: u64,
    /// How many orders waited, each on a connection of its own.
    pub(super) orders: usize,
    pub(super) load: Report,
}

impl Memory {
    /// Bytes for each waiting order, its connection included.
    pub(super) fn for_each_order(&self) -> u64 {
        self.waiting.saturating_sub(self.idle) / u64::try_from(self.orders.max(1)).unwrap_or(1)
    }
}

/// Holds the lock from outside while orders wait for it; `None` where there is no `/proc`.
pub(super) async fn measure(
    cluster: &mut Cluster,
    scale: &Scale,
) -> Result<Option<Memory>, LabError> {
    Contender::Combined.start(cluster, 1).await?;
    let pid = cluster.instances[0].child.pid();
    let orders = |requests, stock| Orders {
        requests,
        connections: requests,
        stock,
        instances: 1,
        items: None,
        rate: None,
    };
    // also starts the sale
    load::run(cluster, Contender::Combined, orders(1, Some(ENDLESS_STOCK))).await?;
    if open_files(pid).is_some() {
        // the files of that load must be closed before the count
        at_rest(pid, 0).await?;
    }
    let (Some(idle), Some(files)) = (resident_bytes(pid), open_files(pid)) else {
        leave(cluster).await?;
        return Ok(None);
    };

    let backend = EtcdBackend::new(EtcdOptions::new([cluster.etcd[0].endpoint()]));
    let backend = backend.map_err(|error: BackendError| LockError::from(error))?;
    let options =
        SessionOptions { label: "bench".into(), ..SessionOptions::new(Duration::from_secs(30)) };
    let session = Session::open(Arc::new(backend), options).await?;
    let guard = session.mutex(LOCK_NAME)?.lock().await?;
    let running = load::start(cluster, Contender::Combined, orders(scale.waiting, None))?;
    at_rest(pid, files + scale.waiting).await?;
    let waiting = resident_bytes(pid).unwrap_or(idle);
    guard.unlock().await?;
    session.close().await?;
    let load = running.report(TIMEOUT).await?;
    leave(cluster).await?;
    Ok(Some(Memory { idle, waiting, orders: scale.waiting, load }))
}

/// Waits until all connections are open and the instance has nothing more to do.
async fn at_rest(pid: u32, files: usize) -> Result<(), LabError> {
    let deadline = Instant::now() + REST_TIMEOUT;
    let (mut quiet, mut earlier) = (0, 0);
    while quiet < QUIET_LOOKS {
        if Instant::now() >= deadline {
            return Err(LabError::NotInTime {
                what: "the waiting orders come to rest",
                seconds: REST_TIMEOUT.as_secs(),
            });
        }
        sleep(LOOK_INTERVAL).await;
        let ticks = cpu_ticks(pid).unwrap_or(0);
        let is_quiet = ticks.saturating_sub(earlier) <= QUIET_TICKS
            && open_files(pid).is_some_and(|open| open >= files);
        quiet = if is_quiet { quiet + 1 } else { 0 };
        earlier = ticks;
    }
    Ok(())
}

/// Bytes of memory that are in RAM.
fn resident_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// How many files and connections are open.
fn open_files(pid: u32) -> Option<usize> {
    Some(fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count())
}

/// Ticks of CPU time, user and kernel.
fn cpu_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // counted behind the name, which may hold anything
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + system)
}
