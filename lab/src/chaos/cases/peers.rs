//! Orders on their way to the instance that holds the lock.

use std::time::Duration;

use anyhow::Result;
use rustix::process::Signal;
use testkit::Direction;
use tokio::time::sleep;

use super::network::{DIRECTIONS, SILENT};
use super::processes::KILLS;
use super::{network, processes};
use crate::chaos::case::{Case, LEAVES_SOON, Peers, TTL, WHOLE_FAULT};
use crate::chaos::etcd;
use crate::chaos::scene::{Scene, counter};
use testkit::cluster::Proxied;

/// How long the way to the holder is disturbed: longer than others wait for a sign.
const UNLINKED: Duration = Duration::from_secs(4);

pub(super) fn cases() -> Vec<Case> {
    let fault = "the holder is paused for 3 TTL while three others send it their orders";
    let paused = Case { name: "peers-paused", fault, ..processes::paused().among_peers() };
    let unfenced = Case { proof: WHOLE_FAULT, ..paused };
    let fault = "the holder is killed while three others send it their orders";
    // the holder keeps the lock: there is no grant and no release
    let fault_points = &KILLS[1..4];
    let killed =
        Case { name: "peers-killed", fault, fault_points, ..processes::killed().among_peers() };
    let fault = "two of eight instances take turns with six that send their orders to the holder, which is killed";
    let mixed = Case {
        name: "peers-mixed",
        fault,
        instances: 8,
        peers: Peers::AllButTwo,
        rounds: 3,
        ..killed
    };
    let fault = "the holder is told to stop while three others send it their orders";
    let stopped = Case {
        round: Duration::from_secs(3),
        rounds: 4,
        // less than the TTL, because the instance releases the lock
        goes_on_within: Duration::from_secs(1),
        ..Case::new("peers-stopped", fault, &stop_holder).among_peers()
    };

    let fault = "a holder to which three others send their orders gets no answer from Redis, each direction";
    let silent = Case {
        name: "peers-redis-silent",
        fault,
        inject: &silence_redis_of_holder,
        proof: WHOLE_FAULT,
        ..network::silent().among_peers()
    };

    let fault = "the way from others to the holder is cut, slow, or silent in a direction";
    let unlinked = Case {
        proxied: Proxied::Peers,
        load_flags: LEAVES_SOON,
        round: UNLINKED + Duration::from_secs(2),
        rounds: 4,
        goes_on_within: TTL + Duration::from_millis(1500),
        ..Case::new("peers-unlinked", fault, &unlink_holder)
            .among_peers()
            .proven_by("turns asked for")
    };
    let fault =
        "an instance has another token than the three others that send their orders to the holder";
    let refused = Case {
        peers: Peers::OneRefused,
        rounds: 1,
        ..Case::new("peers-refused", fault, &watch_refused).among_peers()
    };

    vec![
        paused,
        unfenced.without_holds().without_safeguard("fence", &["I1", "I2"]),
        killed,
        mixed,
        stopped,
        silent,
        silent.without_safeguard("give-way", &["I5"]),
        unlinked,
        refused,
    ]
}

/// Stops the holder in order, which passes the lock on, and restarts it.
async fn stop_holder(scene: &mut Scene) -> Result<()> {
    let index = scene.pick_seller().await?;
    scene.cluster.instances[index].child.signal(Signal::TERM)?;
    let (next, _) = scene.holder(Some(index)).await?;
    let status = scene.has_ended(index).await?;
    if !status.success() {
        scene.evidence.broken("drain", format!("the holder ended with {status}"));
    }
    scene.evidence.add("takeovers", u64::from(next != index));
    scene.start_again(index).await
}

/// Disturbs the way to the holder. Others ask for turns, unless it is only slow.
async fn unlink_holder(scene: &mut Scene) -> Result<()> {
    let index = scene.pick_seller().await?;
    let before = scene.counter("flash_sale_turns_asked_total").await;
    let proxy = scene.cluster.instances[index].peer_proxy.as_ref().expect("the case has them");
    match scene.turn(4) {
        0 => proxy.refuse(),
        1 => proxy.hold(Direction::ToServer),
        2 => proxy.hold(Direction::ToClient),
        _ => proxy.delay(UNLINKED / 16),
    }
    sleep(UNLINKED).await;
    proxy.accept();
    proxy.delay(Duration::ZERO);
    proxy.release();
    let asked = scene.counter("flash_sale_turns_asked_total").await.saturating_sub(before);
    scene.evidence.add("turns asked for", asked);
    Ok(())
}

/// Silences the holder's connection to Redis, so that another one must sell the others' orders.
async fn silence_redis_of_holder(scene: &mut Scene) -> Result<()> {
    let (index, lease) = scene.holder(None).await?;
    let proxy = scene.cluster.instances[index].redis_proxy.as_ref().expect("the case has them");
    DIRECTIONS[scene.turn(DIRECTIONS.len())].iter().for_each(|direction| proxy.hold(*direction));
    let taken_over = scene.holder(Some(index)).await;
    sleep(SILENT).await;
    proxy.release();
    taken_over?;
    // it gave the lock up, and did not lose it
    if etcd::is_lease_gone(scene.member(), lease).await? {
        scene.evidence.broken("lease", "the holder without a store lost its lease");
    }
    Ok(())
}

/// Watches an instance that its peers refuse. It sells in turns with them, and their logs and its own say why, once a minute.
async fn watch_refused(scene: &mut Scene) -> Result<()> {
    let index = scene.cluster.instances.len() - 1;
    let port = scene.cluster.instances[index].port;
    scene.until_all_sell(Duration::from_secs(1)).await?;
    let sent = counter(port, "flash_sale_forwarded_orders_total{fate=\"final\"}").await;
    if sent > 0 {
        scene.evidence.broken("token", format!("{sent} orders went to those who refuse it"));
    }
    let log = scene.cluster.dir.path().join(format!("instance-{port}.log"));
    let said = std::fs::read_to_string(log)?;
    let said = said.matches("refuses the token of this instance").count();
    if said != 1 {
        scene.evidence.broken("log", format!("it says {said} times that its token is refused"));
    }
    Ok(())
}
