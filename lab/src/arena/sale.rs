//! The sale under a lock: its speed, and what a fault of the holder does to the stock under each fence.

use std::io;
use std::time::Duration;

use demo::baselines::Fence;
use demo::cluster::{Cluster, Spec};
use demo::control::{self, NewRun, Side};
use demo::load::{ENDLESS_STOCK, Load};
use demo::locks::{LockMode, LockServers};
use loadtest::Report;
use serde::Serialize;
use testkit::ports::free_ports;
use testkit::{EtcdOptions, OwnedDir, RedisOptions, probe};
use tokio::time::{sleep, timeout};

use super::options::Fault;
use crate::error::LabError;
use crate::experiment::Trials;

/// The TTL of the sessions in a sale: short, since a takeover waits for it.
const TTL: &str = "2s";

/// How long an instance that was killed may take to end.
const ENDING: Duration = Duration::from_secs(30);

/// How long one run may take.
const LONGEST_RUN: Duration = Duration::from_mins(2);

/// How often a run is checked.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The instances of a sale.
const INSTANCES: usize = 2;

/// The connections of the combined load.
const CONNECTIONS: usize = 128;

/// A run of the sale.
#[derive(Clone, Debug)]
struct Run {
    /// Why the run did not pass.
    fault: Option<String>,
    /// Whether its fault happened.
    is_hit: bool,
    /// The units that were sold too many, by the verdict; `None` without one.
    oversold: Option<u64>,
    millis: f64,
}

/// Trials with a fault of the holder under one fence.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Oversold {
    pub(super) fault: Fault,
    pub(super) fence: &'static str,
    /// Trials in which the fault hit the holder and the sale was judged. The others are among the faults.
    pub(super) trials: u32,
    /// Trials in which more was sold than there was.
    pub(super) broken: u32,
    pub(super) most_units: u64,
    /// From the first order to the last answer, in the slowest trial.
    pub(super) slowest_ms: f64,
    /// Trials that failed in another way, or are missing.
    pub(super) faults: Vec<String>,
}

/// The speed of a sale, per second.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Speed {
    /// Orders, if each grant serves all orders that wait in its process.
    pub(super) combined: f64,
    /// Orders, if each order takes the lock for itself.
    pub(super) single: f64,
    /// Handovers between two instances in that mode, one client each.
    pub(super) handovers: f64,
}

/// The servers of a sale under this lock.
pub(super) async fn open(lock: LockMode, dir: &OwnedDir) -> Result<Cluster, LabError> {
    let redis = RedisOptions::default();
    let members = lock.etcd_members();
    let mut cluster = Cluster::open(dir, members, EtcdOptions::default(), redis).await?;
    cluster.lock = LockServers::start(lock, &cluster.dir).await?;
    Ok(cluster)
}

/// Stops instances and servers.
pub(super) async fn close(mut cluster: Cluster) -> Result<(), LabError> {
    cluster.stop().await.map_err(LabError::system("a server does not stop"))?;
    cluster.remove().await.map_err(LabError::system("a directory cannot be removed"))
}

/// Starts the instances and waits until they are ready.
async fn start_instances(
    cluster: &mut Cluster,
    lock: LockMode,
    more: &[&str],
) -> Result<(), LabError> {
    let ports: [u16; INSTANCES] = free_ports().map_err(LabError::system("no port is free"))?;
    let flags = [&["--lock-ttl", TTL], more].concat();
    let flags: Vec<_> = flags.into_iter().map(str::to_owned).collect();
    let spec = Spec { lock, instances: INSTANCES, flags: &flags, ..Spec::default() };
    for port in ports {
        cluster.start(port, spec).await?;
    }
    for instance in &mut cluster.instances {
        instance.until_ready().await?;
    }
    Ok(())
}

/// Ends the instances; the next sale has an empty store, since another fence is of another cluster.
async fn end_sale(cluster: &mut Cluster) -> Result<(), LabError> {
    let stopped = cluster.stop_instances().await;
    stopped.map_err(LabError::system("an instance does not stop"))?;
    let emptied = probe::redis(cluster.redis.port(), "FLUSHALL").await;
    emptied.map(drop).map_err(LabError::system("Redis cannot be emptied"))
}

/// 500 buyers at once for 300 units: the time to the last answer in milliseconds, or what went wrong.
pub(super) async fn burst(
    cluster: &mut Cluster,
    lock: LockMode,
) -> Result<Result<f64, String>, LabError> {
    start_instances(cluster, lock, &[]).await?;
    let wanted = NewRun {
        stock: 300,
        requests: 500,
        guard: Some(lock.name().to_owned()),
        fence: Some(true),
        fault: None,
    };
    let run = run(cluster, &wanted).await?;
    end_sale(cluster).await?;
    Ok(run.fault.map_or(Ok(run.millis), Err))
}

/// Orders a second, with `requests` of them combined, and fewer one by one.
pub(super) async fn speed(
    cluster: &mut Cluster,
    lock: LockMode,
    requests: usize,
) -> Result<Speed, LabError> {
    start_instances(cluster, lock, &["--wait-timeout", "5m", "--hold", "combined"]).await?;
    load(cluster, requests / 10 + 1, CONNECTIONS).await?;
    let combined = load(cluster, requests, CONNECTIONS).await?;
    end_sale(cluster).await?;
    start_instances(cluster, lock, &["--wait-timeout", "5m", "--hold", "request"]).await?;
    let few = requests / 20 + 1;
    load(cluster, few / 10 + 1, CONNECTIONS).await?;
    let single = load(cluster, few, CONNECTIONS).await?;
    let turns = load(cluster, few, INSTANCES).await?;
    end_sale(cluster).await?;
    let handovers = u32::try_from(turns.turns.handovers).unwrap_or(u32::MAX);
    Ok(Speed {
        combined: combined.answers_per_second,
        single: single.answers_per_second,
        handovers: f64::from(handovers) / turns.duration_seconds.max(f64::MIN_POSITIVE),
    })
}

async fn load(cluster: &Cluster, requests: usize, connections: usize) -> Result<Report, LabError> {
    let flags = [
        ("--requests", requests.to_string()),
        ("--concurrency", connections.to_string()),
        ("--stock", ENDLESS_STOCK.to_string()),
        ("--timeout", "5m".to_owned()),
    ];
    let args = flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]);
    let args: Vec<_> = args.chain(["--alone".to_owned()]).chain(cluster.urls()).collect();
    Ok(Load::start(cluster, &args, false)?.report(LONGEST_RUN * 5).await?)
}

/// Sales with a fault of the holder between reading and writing, without a fence or with this one.
pub(super) async fn oversold(
    lock: LockMode,
    fault: Fault,
    fence: Fence,
    dir: &OwnedDir,
    trials: &Trials,
) -> Result<Oversold, LabError> {
    let wanted = NewRun {
        stock: 60,
        requests: 100,
        guard: Some(lock.name().to_owned()),
        fence: Some(fence != Fence::None),
        fault: Some(match fault {
            Fault::Kill => control::Fault::Kill,
            _ => control::Fault::Pause,
        }),
    };
    let worker = async |runs: &mut Vec<Run>| {
        let mut cluster = open(lock, dir).await?;
        let flags: &[&str] = match fence {
            Fence::Store => &["--fence", "store"],
            Fence::Lock | Fence::None => &[],
        };
        start_instances(&mut cluster, lock, flags).await?;
        while trials.next().is_some() {
            runs.push(run(&cluster, &wanted).await?);
            if fault == Fault::Kill {
                revive(&mut cluster).await?;
            }
        }
        close(cluster).await
    };
    let (runs, mut faults) = trials.run(usize::MAX, worker).await?;
    let mut counted = Vec::new();
    for run in runs {
        let what = match (run.is_hit, run.oversold, run.fault) {
            (false, _, _) => Some("the fault did not hit the holder".to_owned()),
            (_, None, fault) => Some(fault.unwrap_or_else(|| "no verdict".to_owned())),
            (_, Some(oversold), fault) => {
                counted.push((oversold, run.millis));
                // without a fence, units oversold are the result
                fault.filter(|_| fence != Fence::None || oversold == 0)
            }
        };
        let of_run =
            |what| format!("a sale with a {}, fence: {}: {what}", fault.name(), fence.name());
        faults.extend(what.map(of_run));
    }
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    Ok(Oversold {
        fault,
        fence: fence.name(),
        trials: count(counted.len()),
        broken: count(counted.iter().filter(|(oversold, _)| *oversold > 0).count()),
        most_units: counted.iter().map(|(oversold, _)| *oversold).max().unwrap_or_default(),
        slowest_ms: counted.iter().map(|(_, millis)| *millis).fold(0.0, f64::max),
        faults,
    })
}

/// Carries out a run.
async fn run(cluster: &Cluster, wanted: &NewRun) -> Result<Run, LabError> {
    let side = Side::of(cluster);
    let ended = async {
        let begun = side.begin(wanted.clone(), None).await;
        let mut run = begun.map_err(|problem| io::Error::other(problem.detail().to_owned()))?;
        while !run.is_over() {
            sleep(LOOK_EVERY).await;
            run = side.current_run().unwrap_or(run);
        }
        Ok(run)
    };
    let ended = timeout(LONGEST_RUN, ended).await;
    let ended = ended.unwrap_or_else(|elapsed| Err(elapsed.into()));
    let run = ended.map_err(LabError::system("a run cannot be started"))?;
    let passes = run.verdict.as_ref().is_some_and(|verdict| verdict.pass);
    let oversold = run.verdict.as_ref().map(|verdict| verdict.oversold);
    let text = run.verdict.map(|verdict| verdict.text).or(run.error);
    #[allow(clippy::cast_precision_loss, reason = "a run takes minutes at most")]
    let millis = run.elapsed_ms as f64;
    Ok(Run {
        fault: (!passes).then(|| text.unwrap_or_else(|| "a run without a verdict".to_owned())),
        is_hit: run.hit_ms.is_some(),
        oversold,
        millis,
    })
}

/// Restarts the second instance, which was killed.
async fn revive(cluster: &mut Cluster) -> Result<(), LabError> {
    let Cluster { instances, program, dir, .. } = cluster;
    let ended = timeout(ENDING, instances[1].child.wait()).await;
    ended
        .unwrap_or_else(|elapsed| Err(elapsed.into()))
        .map_err(LabError::system("an instance does not end"))?;
    instances[1].start_again(program, dir).await?;
    Ok(instances[1].until_ready().await?)
}
