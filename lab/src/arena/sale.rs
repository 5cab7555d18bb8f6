//! The sale under a lock: the effect of the holder's faults on the stock, under each fence.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use demo::control::{self, Control, NewRun, Run};
use demo::instance::Guard;
use serde::Serialize;
use testkit::cluster::{self, Cluster, Spec};
use testkit::wait::in_time;
use testkit::{EtcdOptions, OwnedDir, RedisOptions};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::options::Fault;
use crate::experiment::Trials;
use crate::locks::{Fence, LockMode, Server, Servers};

/// The TTL of the sessions in a sale: short, because a takeover waits for it.
const TTL: &str = "2s";

/// How long one run may take.
const LONGEST_RUN: Duration = Duration::from_mins(2);

const INSTANCES: usize = 2;

/// Trials with a fault of the holder under one fence.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Oversold {
    pub(super) fault: Fault,
    pub(super) fence: &'static str,
    /// Trials in which the fault hit the holder and the sale was judged. All others are counted as faults.
    pub(super) trials: usize,
    /// Trials in which more units were sold than there were.
    pub(super) broken: usize,
    pub(super) most_units: u64,
    /// From the first order to the last answer, in the slowest trial.
    pub(super) slowest_ms: u64,
}

/// Runs sales with a fault of the holder between reading and writing, under this fence. Returns also the runs that failed in
/// another way.
pub(super) async fn oversold(
    lock: LockMode,
    fault: Fault,
    fence: Fence,
    dir: &OwnedDir,
    trials: &Trials,
) -> Result<(Oversold, Vec<String>)> {
    let wanted = NewRun {
        stock: 60,
        requests: 100,
        guard: Some(Guard::Lock),
        fence: Some(fence != Fence::None),
        fault: Some(match fault {
            Fault::Kill => control::Fault::Kill,
            _ => control::Fault::Pause,
        }),
        sleep_seconds: None,
    };
    let store = (fence == Fence::Store).then(|| "--fence=store".to_owned());
    let own = [format!("--lock-ttl={TTL}"), format!("--lock={}", lock.name())];
    let flags: Vec<_> = own.into_iter().chain(store).collect();
    let worker = async || {
        let (etcd, redis) = (EtcdOptions::default(), RedisOptions::default());
        let mut cluster = Cluster::open(dir, lock.etcd_members(), etcd, redis).await?;
        let servers = match lock.server() {
            Server::Etcd => None,
            _ => Some(Servers::start(lock, 1, &cluster.dir).await?),
        };
        let at = servers.iter().flat_map(Servers::addresses);
        let at = at.map(|address| format!("--lock-at={address}"));
        let flags: Vec<_> = flags.iter().cloned().chain(at).collect();
        let mut runs = Vec::new();
        while trials.next().is_some() {
            // the victim reports to the control that the fault hit it
            let control = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            let address = format!("--control={}", cluster::url(control.local_addr()?.port()));
            let flags = [&flags[..], &[address]].concat();
            for _ in 0..INSTANCES {
                let spec = Spec { instances: INSTANCES, flags: &flags, ..Spec::default() };
                cluster.add(spec).await?;
            }
            runs.push(run(&cluster, control, &wanted).await?);
            cluster.stop_instances().await.context("an instance does not stop")?;
            // the next lock would find the fence of another cluster
            cluster.redis.run::<()>("FLUSHALL").await.context("Redis cannot be emptied")?;
        }
        cluster.stop().await.context("a server does not stop")?;
        if let Some(servers) = servers {
            servers.stop().await?;
        }
        cluster.remove().await.context("a directory cannot be removed")?;
        Ok(runs)
    };
    let (mut counted, mut faults) = (Vec::new(), Vec::new());
    for run in trials.run(usize::MAX, worker).await? {
        let what = match run.verdict {
            Some(verdict) => {
                counted.push((verdict.oversold, run.elapsed_ms));
                // without a fence, oversold units are the expected result
                let is_result = fence == Fence::None && verdict.oversold > 0;
                (!verdict.pass && !is_result).then_some(verdict.text)
            }
            None => Some(run.error.unwrap_or_else(|| "no verdict".to_owned())),
        };
        faults.extend(what);
    }
    let oversold = Oversold {
        fault,
        fence: fence.name(),
        trials: counted.len(),
        broken: counted.iter().filter(|(oversold, _)| *oversold > 0).count(),
        most_units: counted.iter().map(|(oversold, _)| *oversold).max().unwrap_or_default(),
        slowest_ms: counted.iter().map(|(_, millis)| *millis).max().unwrap_or_default(),
    };
    Ok((oversold, faults))
}

/// Carries out a run, whose control listens here.
async fn run(cluster: &Cluster, listener: TcpListener, wanted: &NewRun) -> Result<Run> {
    let control = Control::of(cluster);
    let _serving = AbortOnDropHandle::new(tokio::spawn(Arc::clone(&control).serve(listener)));
    in_time("a run is over", LONGEST_RUN, async {
        let run = control.run(wanted.clone()).await;
        run.map_err(|problem| anyhow!("{}", problem.detail()))
    })
    .await
}
