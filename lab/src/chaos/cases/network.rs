//! Messages between an instance and the servers that come late or never.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::Result;
use testkit::client::Connection;
use testkit::{Direction, Proxy};
use tokio::time::sleep;

use crate::chaos::case::{Case, LEAVES_SOON, TTL};
use crate::chaos::etcd;
use crate::chaos::scene::Scene;
use testkit::cluster::Proxied;

/// Long enough to delay the write, and too short to matter.
const ABOUT_TO_WRITE: &str = "before-write:pause=200ms";

/// Longer than a lease lives and etcd takes to notice its end.
const CUT_OFF: Duration = Duration::from_secs(5);

/// Longer than a call waits for the store.
pub(super) const SILENT: Duration = Duration::from_secs(14);

/// The directions in which a connection is silent, by round.
pub(super) const DIRECTIONS: [&[Direction]; 3] =
    [&[Direction::ToServer, Direction::ToClient], &[Direction::ToServer], &[Direction::ToClient]];

pub(super) fn cases() -> Vec<Case> {
    let fault = "a write to Redis arrives after the takeover";
    let late = Case {
        proxied: Proxied::Redis,
        fault_points: &[ABOUT_TO_WRITE],
        round: 2 * TTL,
        goes_on_within: Duration::from_millis(3500),
        ..Case::new("write-late", fault, &hold_write).proven_by("stale batches refused")
    };
    let unfenced = Case { proof: "late arrivals", ..late };

    let fault = "the holder is cut off from etcd, each direction";
    let cut_off = Case {
        proxied: Proxied::Etcd,
        load_flags: LEAVES_SOON,
        round: CUT_OFF + Duration::from_secs(4),
        goes_on_within: TTL + Duration::from_secs(3),
        ..Case::new("cut-off-from-etcd", fault, &cut_off_holder).proven_by("leases gone")
    };
    let holds_on = Case { flags: &["--tenure", "1m"], ..cut_off };

    let silent = silent();

    vec![
        late,
        unfenced.without_holds().without_safeguard("fence", &["I1", "I2"]),
        cut_off,
        holds_on.without_safeguard("local-expiry", &["I4"]),
        silent,
        silent.without_safeguard("give-way", &["I5"]),
    ]
}

pub(super) fn silent() -> Case {
    let fault = "an instance gets no answer from Redis, each direction, and is to start a sale";
    Case {
        proxied: Proxied::Redis,
        load_flags: LEAVES_SOON,
        round: SILENT + Duration::from_secs(3),
        goes_on_within: TTL + Duration::from_millis(1500),
        ..Case::new("redis-silent", fault, &silence_redis).proven_by("starts without an answer")
    }
}

/// Holds up the holder's messages to Redis until another instance has sold.
async fn hold_write(scene: &mut Scene) -> Result<()> {
    let index = scene.pick();
    let before = scene.stale_batches().await?;
    scene.trigger(index, ABOUT_TO_WRITE).await?;
    let proxy = scene.cluster.instances[index].redis_proxy.as_ref().expect("the case has them");
    proxy.hold(Direction::ToServer);
    let taken_over = scene.holder(Some(index)).await;
    sleep(TTL / 2).await;
    let is_late = proxy.has_held_data();
    proxy.release();
    taken_over?;
    scene.evidence.add("late arrivals", is_late.into());
    scene.note_stale_batches(before).await
}

/// Cuts the holder off in one direction, the other, or both. No connection is closed, so the holder learns nothing. The other
/// instance is paused until then, so that the holder does not know of any waiter.
async fn cut_off_holder(scene: &mut Scene) -> Result<()> {
    let other = scene.pick();
    let index = (other + 1) % scene.cluster.instances.len();
    let before = scene.stale_batches().await?;
    scene.cluster.instances[other].child.pause()?;
    let alone = scene.until_unqueued(other).await;
    let held = scene.holder(Some(other)).await;
    for proxy in &scene.cluster.instances[index].etcd_proxies {
        DIRECTIONS[scene.turn(DIRECTIONS.len())]
            .iter()
            .for_each(|direction| proxy.hold(*direction));
    }
    scene.cluster.instances[other].child.resume()?;
    alone?;
    let (_, lease) = held?;
    sleep(CUT_OFF).await;
    // while only answers are held up, the lease may still be renewed
    if etcd::is_lease_gone(scene.member(), lease).await? {
        scene.evidence.add("leases gone", 1);
    }
    let sent = scene.stale_batches().await? - before;
    scene.cluster.instances[index].etcd_proxies.iter().for_each(Proxy::release);
    if sent > 0 {
        let message = format!("{sent} batches were sent under a lock that was lost before");
        scene.evidence.broken("I4", message);
    }
    Ok(())
}

/// Starts another sale than the running one, which is refused.
const START: &str = "PUT /stock HTTP/1.1\r\nhost: chaos\r\ncontent-type: application/json\r\n\
                     content-length: 28\r\n\r\n{\"sale\":\"another\",\"stock\":1}";

/// Silences an instance's connection to Redis. Orders wait there, and the start of a sale: from the first moment, or after the
/// instance has given up the lock that it held for orders.
async fn silence_redis(scene: &mut Scene) -> Result<()> {
    let (instance, late) = (scene.pick(), scene.turn(2));
    let instance = &scene.cluster.instances[instance];
    let proxy = instance.redis_proxy.as_ref().expect("the case has them");
    DIRECTIONS[scene.turn(DIRECTIONS.len())].iter().for_each(|direction| proxy.hold(*direction));
    let start = async {
        sleep(if late == 1 { SILENT / 4 } else { Duration::ZERO }).await;
        let address = (Ipv4Addr::LOCALHOST, instance.port).into();
        let mut operator = Connection::try_open(address).await?;
        operator.send(START).await;
        anyhow::Ok(operator.answer().await.status)
    };
    let (started, ()) = tokio::join!(start, sleep(SILENT));
    proxy.release();
    let is_unanswered = [503, 504].contains(&started?);
    scene.evidence.add("starts without an answer", is_unanswered.into());
    Ok(())
}
