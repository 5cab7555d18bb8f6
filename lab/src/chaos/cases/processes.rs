//! Instances that are paused, killed, starved or stopped.

use std::time::Duration;

use anyhow::Result;
use rustix::process::Signal;
use testkit::Proxy;
use tokio::time::{Instant, sleep};

use crate::chaos::case::{Case, LEAVES_SOON, TTL, WHOLE_FAULT};
use crate::chaos::clients;
use crate::chaos::etcd;
use crate::chaos::scene::{Scene, counter};
use testkit::cluster::Proxied;

/// The holder keeps the lock: long enough for others to queue, and shorter than the lease.
const KEEPS_LOCK: &str = "before-write:pause=1500ms";

/// All workers of the holder are busy for [`STARVED`].
const STARVES: &str = "after-answer:starve=3s";
const STARVED: Duration = Duration::from_secs(3);

/// Buyers who pay, some around the end of the hold, give back, or die.
const PAY: &[&str] =
    &["--hold=2s", "--users=300", "--pay=0.4", "--pay-late=0.3", "--cancel=0.1", "--abandon=0.02"];

/// The points of a tenure at which the holder is killed.
pub(super) const KILLS: &[&str] = &[
    "after-grant:kill",
    "before-write:kill",
    "after-send:kill",
    "after-answer:kill",
    "before-release:kill",
];

/// How long a dead holder's lock makes the others wait: the TTL, up to half a second until etcd looks for expired leases, and the
/// time to sell again.
const TAKEOVER: Duration = Duration::from_millis(3500);

pub(super) fn cases() -> Vec<Case> {
    let paused = paused();
    let five = Case { instances: 5, proof: WHOLE_FAULT, ..paused };

    let killed = killed();
    let between = Case { fault_points: &["between-writes:kill"], ..killed };

    let fault = "a waiting instance is killed, or all its buyers leave";
    let waiter_gone = Case {
        round: 2 * TTL + Duration::from_secs(1),
        goes_on_within: TAKEOVER,
        proxied: Proxied::Clients,
        fault_points: &[KEEPS_LOCK],
        others_order: true,
        ..Case::new("waiter-gone", fault, &remove_waiter)
    };

    let fault = "busy tasks on every worker of the holder for 1.5 TTL";
    let starved = Case {
        fault_points: &[STARVES],
        load_flags: LEAVES_SOON,
        round: Duration::from_secs(4),
        goes_on_within: TAKEOVER,
        ..Case::new("runtime-starved", fault, &starve)
    };

    let fault = "the holder gets SIGTERM twice within 20 ms";
    let stopped = Case {
        round: Duration::from_secs(4),
        rounds: 4,
        // less than the TTL, because the instance releases the lock
        goes_on_within: Duration::from_secs(1),
        proxied: Proxied::Clients,
        fault_points: &[KEEPS_LOCK],
        others_order: true,
        ..Case::new("told-to-stop", fault, &signal_to_stop)
    };

    let fault = "the holder, Redis and the clients' connections die together while holds end";
    let holds_end = Case {
        fault_points: &["after-send:kill"],
        proxied: Proxied::Clients,
        conduct: PAY,
        stock: 2_000,
        round: TTL + Duration::from_secs(3),
        goes_on_within: TAKEOVER,
        ..Case::new("holds-end", fault, &kill_together)
    };

    vec![
        paused,
        five.without_holds().without_safeguard("fence", &["I1", "I2"]),
        killed,
        between.without_holds().without_safeguard("atomic-ledger", &["I1"]),
        waiter_gone,
        waiter_gone.without_safeguard("claim-cleanup", &["I5"]),
        starved,
        starved.without_safeguard("own-thread", &["lease"]),
        stopped,
        stopped.without_safeguard("drain", &["drain", "I5"]),
        holds_end,
        holds_end.without_safeguard("cancel-once", &["I1"]),
    ]
}

pub(super) fn paused() -> Case {
    let fault = "the holder is paused for 3 TTL between reading and writing";
    Case {
        fault_points: &["before-write:stop"],
        load_flags: LEAVES_SOON,
        round: 3 * TTL + Duration::from_secs(1),
        goes_on_within: TAKEOVER,
        ..Case::new("holder-paused", fault, &pause_holder).proven_by("stale batches refused")
    }
}

pub(super) fn killed() -> Case {
    let fault = "the holder is killed at five points of its tenure";
    Case {
        fault_points: KILLS,
        round: TTL + Duration::from_millis(1500),
        rounds: 5,
        goes_on_within: TAKEOVER,
        ..Case::new("holder-killed", fault, &kill_holder)
    }
}

/// Stops the holder when it is about to write, and resumes it after another instance has sold.
async fn pause_holder(scene: &mut Scene) -> Result<()> {
    let before = scene.stale_batches().await?;
    let (index, lease) = scene.trigger_at_seller("before-write:stop").await?;
    let stopped = Instant::now();
    scene
        .until("the instance stands still", async || {
            Ok(scene.cluster.instances[index].child.is_paused().then_some(()))
        })
        .await?;
    scene.holder(Some(index)).await?;
    scene.lease_gone(lease).await?;
    sleep((3 * TTL).saturating_sub(stopped.elapsed())).await;
    scene.cluster.instances[index].child.resume()?;
    scene.note_stale_batches(before).await
}

/// Kills the holder at each point in turn, and restarts it once another instance holds the lock.
async fn kill_holder(scene: &mut Scene) -> Result<()> {
    let points = scene.case.fault_points;
    let point = points[scene.turn(points.len())];
    let (index, lease) = scene.trigger_at_seller(point).await?;
    scene.has_ended(index).await?;
    scene.evidence.add(point, 1);
    scene.holder(Some(index)).await?;
    scene.lease_gone(lease).await?;
    scene.start_again(index).await
}

/// Kills the holder when it has sent a batch. Then also kills Redis, which comes back within about two seconds, and cuts all
/// clients' connections.
async fn kill_together(scene: &mut Scene) -> Result<()> {
    let index = scene.pick();
    let lease = scene.until_queued(index).await?;
    scene.trigger(index, "after-send:kill").await?;
    let began = Instant::now();
    scene.cluster.redis.kill().await?;
    scene.cluster.instances.iter().flat_map(|one| &one.client_proxy).for_each(Proxy::cut);
    scene.has_ended(index).await?;
    sleep(scene.random_millis(0, 1500)).await;
    scene.cluster.redis.restart().await?;
    scene.evidence.outage(began.elapsed());
    scene.lease_gone(lease).await?;
    scene.start_again(index).await
}

/// While one instance keeps the lock, another one queues for a few buyers. Then the other one is killed, or all of its buyers
/// leave.
async fn remove_waiter(scene: &mut Scene) -> Result<()> {
    let waiter = scene.pick();
    let holder = (waiter + 1) % scene.cluster.instances.len();
    // without other load, so that its next claim is for those buyers only
    withdraw_load(scene, waiter).await?;
    scene.trigger(holder, KEEPS_LOCK).await?;
    let (port, mut buyers) = (scene.cluster.instances[waiter].port, Vec::new());
    let queued = scene
        .until("buyers have the instance queue", async || {
            // the sale refuses such buyers without the lock, unless a unit is left or a hold is over
            buyers.extend(clients::buyers(port, 5).await?);
            scene.lease_of(waiter).await
        })
        .await?;
    if scene.turn(2) == 1 {
        scene.cluster.instances[waiter].child.kill().await?;
        drop(buyers);
        scene.lease_gone(queued).await?;
        scene.start_again(waiter).await?;
    } else {
        drop(buyers);
        sleep(2 * TTL).await;
    }
    scene.cluster.instances[waiter].client_proxy.iter().for_each(Proxy::accept);
    Ok(())
}

/// Keeps the load away from an instance, and waits until it has no claim.
async fn withdraw_load(scene: &Scene, index: usize) -> Result<()> {
    scene.cluster.instances[index].client_proxy.iter().for_each(Proxy::refuse);
    scene.until_unqueued(index).await
}

/// Keeps all workers of the holder busy for 1.5 TTL, which its lease must survive.
async fn starve(scene: &mut Scene) -> Result<()> {
    let length = STARVED;
    let (index, lease) = scene.holder(None).await?;
    scene.trigger(index, STARVES).await?;
    sleep(length + Duration::from_millis(300)).await;
    scene.evidence.outage(length);
    if etcd::is_lease_gone(scene.member(), lease).await? {
        scene.evidence.broken("lease", "an instance that was busy lost its lease");
    }
    Ok(())
}

/// Signals an instance that keeps the lock while orders wait. It must answer all of them, release the lock and exit with status
/// 0.
async fn signal_to_stop(scene: &mut Scene) -> Result<()> {
    let index = scene.pick();
    // without other load, so that the number of waiting orders is known
    withdraw_load(scene, index).await?;
    let port = scene.cluster.instances[index].port;
    let mut buyers = Vec::new();
    scene
        .trigger_by(index, KEEPS_LOCK, async || {
            buyers.extend(clients::buyers(port, 1).await?);
            Ok(())
        })
        .await?;
    scene
        .until("the orders wait", async || {
            // some may still get into a batch, which is held up as well
            buyers.extend(clients::buyers(port, 50).await?);
            Ok((counter(port, "flash_sale_orders_waiting").await >= 50).then_some(()))
        })
        .await?;
    for _ in 0..2 {
        scene.cluster.instances[index].child.signal(Signal::TERM)?;
        sleep(Duration::from_millis(20)).await;
    }
    let unanswered = clients::unanswered(buyers).await;
    let status = scene.has_ended(index).await?;
    if unanswered > 0 || !status.success() {
        let message = format!("{unanswered} orders that waited were not answered ({status})");
        scene.evidence.broken("drain", message);
    }
    scene.evidence.outage(Duration::from_millis(1500));
    scene.start_again(index).await?;
    scene.cluster.instances[index].client_proxy.iter().for_each(Proxy::accept);
    Ok(())
}
