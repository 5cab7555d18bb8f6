//! Messages between an instance and the servers that come late or never.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::Result;
use testkit::client::Connection;
use testkit::{Direction, Proxy};
use tokio::time::sleep;

use crate::chaos::case::{Case, LEAVES_SOON, Peers, SMALL_STOCK, TTL, WHOLE_FAULT};
use crate::chaos::etcd;
use crate::chaos::scene::{Scene, counter};
use testkit::cluster::Proxied;

/// Long enough to delay the write, and too short to matter.
const ABOUT_TO_WRITE: &str = "before-write:pause=200ms";

/// Longer than a lease lives and etcd takes to notice its end.
const CUT_OFF: Duration = Duration::from_secs(5);

/// Longer than a call waits for the store.
const SILENT: Duration = Duration::from_secs(14);

/// The directions in which a connection is silent, by round.
const DIRECTIONS: [&[Direction]; 3] =
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

    let fault = "an instance gets no answer from Redis, each direction, and is to start a sale";
    let silent = Case {
        proxied: Proxied::Redis,
        load_flags: LEAVES_SOON,
        round: SILENT + Duration::from_secs(3),
        goes_on_within: TTL + Duration::from_millis(1500),
        ..Case::new("redis-silent", fault, &silence_redis).proven_by("starts without an answer")
    };

    let fault = "the same happens to a holder to which three others send their orders";
    let peers_silent = Case {
        name: "peers-redis-silent",
        fault,
        instances: 4,
        peers: Peers::All,
        stock: SMALL_STOCK,
        rounds: 2,
        inject: &silence_redis_of_holder,
        proof: WHOLE_FAULT,
        ..silent
    };

    let fault = "the way from others to the holder is cut, slow, or silent in a direction";
    let unlinked = Case {
        instances: 4,
        peers: Peers::All,
        stock: SMALL_STOCK,
        proxied: Proxied::Peers,
        load_flags: LEAVES_SOON,
        round: UNLINKED + Duration::from_secs(2),
        rounds: 4,
        goes_on_within: TTL + Duration::from_millis(1500),
        ..Case::new("peers-unlinked", fault, &unlink_holder).proven_by("turns asked for")
    };
    let fault =
        "an instance has another token than the three others that send their orders to the holder";
    let refused = Case {
        instances: 4,
        peers: Peers::OneRefused,
        stock: SMALL_STOCK,
        rounds: 1,
        ..Case::new("peers-refused", fault, &watch_refused)
    };

    vec![
        late,
        unfenced.without_holds().without_safeguard("fence", &["I1", "I2"]),
        cut_off,
        holds_on.without_safeguard("local-expiry", &["I4"]),
        silent,
        silent.without_safeguard("give-way", &["I5"]),
        peers_silent,
        peers_silent.without_safeguard("give-way", &["I5"]),
        unlinked,
        refused,
    ]
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

/// How long the way to the holder is disturbed: longer than others wait for a sign.
const UNLINKED: Duration = Duration::from_secs(4);

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
