//! Instances that are paused, killed, starved or stopped.

use std::time::Duration;

use futures_util::FutureExt as _;
use loadtest::report::Violation;
use rand::RngExt as _;
use rustix::process::Signal;
use testkit::LOCK_NAME;
use testkit::Proxy;
use tokio::time::{Instant, sleep};

use crate::chaos::etcd;
use crate::chaos::flood;
use crate::chaos::run::NO_FAULT;
use crate::chaos::scenario::{LoadPlan, Run, Scenario, Setup, TTL};
use crate::chaos::scene::Scene;
use crate::error::LabError;
use demo::cluster::Proxied;

/// A holder that sits on the lock: long enough for others to queue, and shorter than the lease.
const SITS: &str = "before-write:pause=1500ms";

/// Instances that can sit on the lock, and be kept from the load.
const SITTING: Setup = Setup {
    proxied: Proxied::Clients,
    fault_points: &[SITS],
    load: LoadPlan::NOT_ALONE,
    ..Setup::USUAL
};

/// How long a dead holder's lock keeps the others waiting: the TTL, up to half a second until etcd looks
/// for expired leases, and the time to sell again.
const TAKEOVER: Duration = Duration::from_millis(3500);

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![holder_paused(), holder_killed(), waiter_gone(), runtime_starved(), told_to_stop()]
}

fn holder_paused() -> Scenario {
    let setup =
        Setup { fault_points: &["before-write:stop"], load: LoadPlan::LEAVES_SOON, ..Setup::USUAL };
    let run = Run {
        setup,
        inject: |scene| pause_holder(scene).boxed_local(),
        round: 3 * TTL + Duration::from_secs(1),
        goes_on_within: TAKEOVER,
        proof: "stale batches refused",
    };
    let five = Run { setup: Setup { instances: 5, ..setup }, proof: "leases gone", ..run };
    let fault = "the holder is paused for 3 TTL between reading and writing";
    Scenario::new("holder-paused", fault, run).control(five.without("fence", &["I1", "I2"]))
}

fn holder_killed() -> Scenario {
    let setup = Setup { fault_points: KILLS, ..Setup::USUAL };
    let run = Run {
        setup,
        inject: |scene| kill_holder(scene).boxed_local(),
        round: TTL + Duration::from_millis(1500),
        goes_on_within: TAKEOVER,
        proof: "leases gone",
    };
    let between = Setup { fault_points: &["between-writes:kill"], ..setup };
    let between = Run { setup: between, ..run };
    let scenario =
        Scenario::new("holder-killed", "the holder is killed at five points of its tenure", run);
    Scenario { rounds: 5, ..scenario.control(between.without("atomic-ledger", &["I1"])) }
}

fn waiter_gone() -> Scenario {
    let run = Run {
        setup: SITTING,
        inject: |scene| waiters_leave(scene).boxed_local(),
        round: 2 * TTL + Duration::from_secs(1),
        goes_on_within: TAKEOVER,
        proof: "waiters gone",
    };
    Scenario::new("waiter-gone", "a waiting instance is killed, or all its buyers leave", run)
        .without("claim-cleanup", &["I5"])
}

fn runtime_starved() -> Scenario {
    let run = Run {
        setup: Setup { can_starve: true, load: LoadPlan::LEAVES_SOON, ..Setup::USUAL },
        inject: |scene| starve(scene).boxed_local(),
        round: Duration::from_secs(4),
        goes_on_within: TAKEOVER,
        proof: "instances starved",
    };
    let fault = "busy tasks on every worker of the holder for 1.5 TTL";
    Scenario::new("runtime-starved", fault, run).without("own-thread", &["lease"])
}

fn told_to_stop() -> Scenario {
    let run = Run {
        setup: SITTING,
        inject: |scene| tell_to_stop(scene).boxed_local(),
        round: Duration::from_secs(4),
        // less than the TTL, since it releases the lock
        goes_on_within: Duration::from_secs(1),
        proof: "instances drained",
    };
    let fault = "the holder gets SIGHUP, or SIGTERM twice within 20 ms";
    let scenario = Scenario::new("told-to-stop", fault, run);
    Scenario { rounds: 4, ..scenario.without("drain", &["drain", "I5"]) }
}

/// Stops the holder when it is about to write, and resumes it after another instance has sold.
async fn pause_holder(scene: &mut Scene) -> Result<(), LabError> {
    while scene.next_round().await {
        let index = scene.pick();
        let before = scene.stale_batches().await;
        scene.meet(index, "before-write:stop", "").await?;
        let stopped = Instant::now();
        scene
            .until("the instance stands still", async |scene| {
                Ok(scene.cluster.instances[index].child.is_paused().then_some(()))
            })
            .await?;
        let (_, holder) = scene.holder().await?;
        scene.holder_besides(index).await?;
        scene.note_lease_gone(holder.lease).await?;
        sleep((3 * TTL).saturating_sub(stopped.elapsed())).await;
        scene.resume(index)?;
        scene.note_stale_batches(before).await;
    }
    Ok(())
}

/// The points of a tenure at which the holder is killed.
const KILLS: &[&str] = &[
    "after-grant:kill",
    "before-write:kill",
    "after-send:kill",
    "after-answer:kill",
    "before-release:kill",
];

/// Kills the holder at each point in turn, and restarts it once another instance holds the lock.
async fn kill_holder(scene: &mut Scene) -> Result<(), LabError> {
    let points = scene.setup.fault_points;
    let mut next = scene.rng.random_range(0..points.len());
    while scene.next_round().await {
        let index = scene.pick();
        let point = points[next % points.len()];
        next += 1;
        let name = scene.cluster.instances[index].name.clone();
        // it has none between two claims
        let lease = scene
            .until("the instance that is to die queues for the lock", async |scene| {
                etcd::lease_of(scene.member(), LOCK_NAME, &name).await
            })
            .await?;
        scene.meet(index, point, "").await?;
        scene.has_died(index).await?;
        scene.evidence.saw(point, 1);
        scene.holder_besides(index).await?;
        scene.note_lease_gone(lease).await?;
        scene.start_again(index).await?;
    }
    // a short run has no time for all points
    if scene.evidence.times >= 5 {
        let unmet = points.iter().filter(|point| scene.evidence.count(point) == 0);
        let unmet =
            unmet.map(|point| Violation::new(NO_FAULT, format!("no instance died at {point}")));
        let unmet: Vec<_> = unmet.collect();
        scene.evidence.findings.extend(unmet);
    }
    Ok(())
}

/// While one instance sits on the lock, another one queues for a few buyers. Then it is killed, or all of
/// its buyers leave.
async fn waiters_leave(scene: &mut Scene) -> Result<(), LabError> {
    while scene.next_round().await {
        let waiter = scene.pick();
        let holder = (waiter + 1) % scene.cluster.instances.len();
        // without other load, so that its next claim is for those buyers only
        leave_alone(scene, waiter).await?;
        let name = scene.cluster.instances[waiter].name.clone();
        scene.meet(holder, SITS, "").await?;
        let buyers = flood::buyers(scene.cluster.instances[waiter].port, 5).await;
        let buyers = buyers.map_err(LabError::system("buyers cannot send orders"))?;
        let queued = scene
            .until("an instance waits for the lock", async |scene| {
                etcd::lease_of(scene.member(), LOCK_NAME, &name).await
            })
            .await?;
        if scene.evidence.times.is_multiple_of(2) {
            scene.kill(waiter).await?;
            drop(buyers);
            scene.note_lease_gone(queued).await?;
            scene.start_again(waiter).await?;
        } else {
            drop(buyers);
            scene.evidence.saw("buyers left", 1);
            sleep(2 * TTL).await;
        }
        scene.evidence.saw("waiters gone", 1);
        scene.cluster.instances[waiter].client_proxy.iter().for_each(Proxy::admit);
    }
    Ok(())
}

/// Keeps the load away from an instance, and waits until it has no claim.
async fn leave_alone(scene: &Scene, index: usize) -> Result<(), LabError> {
    scene.cluster.instances[index].client_proxy.iter().for_each(Proxy::refuse);
    let name = &scene.cluster.instances[index].name;
    scene
        .until("an instance without buyers gives up the lock", async |scene| {
            let lease = etcd::lease_of(scene.member(), LOCK_NAME, name).await?;
            Ok(lease.is_none().then_some(()))
        })
        .await
}

/// Keeps all workers of the holder busy for 1.5 TTL, which its lease must survive.
async fn starve(scene: &mut Scene) -> Result<(), LabError> {
    let length = TTL + TTL / 2;
    while scene.next_round().await {
        let (index, holder) = scene.holder().await?;
        scene.meet(index, "starve", &format!("{}ms", length.as_millis())).await?;
        sleep(length + Duration::from_millis(300)).await;
        scene.evidence.saw("instances starved", 1);
        scene.evidence.outage(length);
        if etcd::is_lease_gone(scene.member(), holder.lease).await? {
            scene.evidence.complain("lease", "an instance that was busy lost its lease");
        }
    }
    Ok(())
}

/// Signals an instance that sits on the lock while orders wait. It must answer them all, release the lock
/// and exit with status 0.
async fn tell_to_stop(scene: &mut Scene) -> Result<(), LabError> {
    while scene.next_round().await {
        let index = scene.pick();
        let is_hang_up = scene.evidence.times.is_multiple_of(2);
        let signals: &[_] = if is_hang_up { &[Signal::HUP] } else { &[Signal::TERM; 2] };
        // without other load, to know how many orders wait
        leave_alone(scene, index).await?;
        let port = scene.cluster.instances[index].port;
        let (first, met) = tokio::join!(flood::buyers(port, 1), scene.meet(index, SITS, ""));
        met?;
        let buyers = async {
            let mut buyers = first?;
            buyers.extend(flood::buyers(port, 50).await?);
            Ok(buyers)
        };
        let buyers = buyers.await.map_err(LabError::system("buyers cannot send orders"))?;
        scene
            .until("the orders wait", async |scene| {
                let waiting = scene.counter_at(index, "flash_sale_orders_waiting").await;
                Ok((waiting >= 50).then_some(()))
            })
            .await?;
        for &signal in signals {
            let sent = scene.cluster.instances[index].child.signal(signal);
            sent.map_err(LabError::system("an instance cannot be told to stop"))?;
            sleep(Duration::from_millis(20)).await;
        }
        let unanswered = flood::unanswered(buyers).await;
        let status = scene.has_died(index).await?;
        if unanswered > 0 || !status.success() {
            let message = format!("{unanswered} orders that waited were not answered ({status})");
            scene.evidence.complain("drain", message);
        }
        scene.evidence.saw("instances drained", 1);
        scene.evidence.outage(Duration::from_millis(1500));
        scene.start_again(index).await?;
        scene.cluster.instances[index].client_proxy.iter().for_each(Proxy::admit);
    }
    Ok(())
}
