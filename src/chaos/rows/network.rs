//! What runs late, or not at all, between an instance and its neighbours.

use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::sleep;

use crate::chaos::cluster;
use crate::chaos::error::ChaosError;
use crate::chaos::row::{Control, Row, Setup, TTL, Trial};
use crate::chaos::scene::Scene;
use crate::demo::{Proxy, Way};

pub(super) fn rows() -> Vec<Row> {
    vec![write_late(), cut_off()]
}

fn write_late() -> Row {
    let setup = Setup { redis_proxies: true, ..Setup::USUAL };
    let trial = Trial {
        setup,
        play: |scene| hold_write(scene).boxed_local(),
        goes_on_within: Duration::from_millis(3500),
        proof: "late batches refused",
    };
    Row {
        name: "write-late",
        fault: "a write to Redis arrives after the takeover",
        controls: vec![Control {
            without: "fence",
            trial: Trial {
                setup: Setup { flags: &["--without", "fence"], ..setup },
                proof: "late arrivals",
                ..trial.clone()
            },
            breaks: &["I1", "I2"],
        }],
        trial,
        alone: false,
    }
}

fn cut_off() -> Row {
    // a tenure that ends on its own would hide that nobody told the instance
    let setup = Setup { etcd_proxies: true, flags: &["--tenure", "1m"], ..Setup::USUAL };
    let trial = Trial {
        setup,
        play: |scene| cut_off_holder(scene).boxed_local(),
        goes_on_within: TTL + Duration::from_secs(3),
        proof: "leases gone",
    };
    Row {
        name: "cut-off-from-etcd",
        fault: "the holder is cut off from etcd, each direction, for 3 TTL",
        controls: vec![Control {
            without: "local-expiry",
            trial: Trial {
                setup: Setup { flags: &["--tenure", "1m", "--without", "local-expiry"], ..setup },
                ..trial.clone()
            },
            breaks: &["I4"],
        }],
        trial,
        alone: false,
    }
}

/// What the holder sends to Redis is held up until another instance has sold.
async fn hold_write(scene: &mut Scene) -> Result<(), ChaosError> {
    while scene.next_round(2 * TTL).await {
        let (index, _) = scene.holder().await?;
        let late = |scene: &Scene| {
            let proxy = scene.sites[index].redis_proxy.as_ref();
            proxy.map_or((0, 0), |proxy| (proxy.late_chunks(), proxy.marked_answers()))
        };
        let before = late(scene);
        scene.sites[index].redis_proxy.iter().for_each(|proxy| proxy.hold(Way::There));
        let taken_over = scene.holder_besides(index).await;
        sleep(TTL / 2).await;
        scene.sites[index].redis_proxy.iter().for_each(Proxy::release);
        taken_over?;
        sleep(Duration::from_millis(500)).await;
        let after = late(scene);
        scene.evidence.saw("late arrivals", after.0 - before.0);
        scene.evidence.saw("late batches refused", after.1 - before.1);
    }
    Ok(())
}

/// In one direction, the other, or both; nothing is ended, so that nobody is told.
async fn cut_off_holder(scene: &mut Scene) -> Result<(), ChaosError> {
    let mut next = scene.random.below(3);
    while scene.next_round(3 * TTL + Duration::from_secs(1)).await {
        let (index, holder) = scene.holder().await?;
        let ways: &[Way] = [&[Way::There, Way::Back][..], &[Way::There], &[Way::Back]][next % 3];
        next += 1;
        for proxy in &scene.sites[index].etcd_proxies {
            ways.iter().for_each(|way| proxy.hold(*way));
        }
        sleep(3 * TTL).await;
        let is_gone = cluster::is_lease_gone(&scene.endpoint(), holder.lease).await;
        scene.sites[index].etcd_proxies.iter().for_each(Proxy::release);
        // an answer of etcd that is held up does not end the lease: what renews it arrives
        if is_gone? {
            scene.evidence.saw("leases gone", 1);
        }
    }
    let sent = scene.stale_batches().await;
    if sent > 0 {
        let sentence = format!("{sent} batches were sent under a lock that was lost long before");
        scene.evidence.complain("I4", sentence);
    }
    Ok(())
}
