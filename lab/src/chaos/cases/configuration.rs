//! Equal names, names that begin with another one, many names, and long queues.

use std::time::Duration;

use anyhow::Result;
use testkit::{LOCK_NAME, Proxy};
use tokio::time::sleep;

use crate::chaos::case::{Case, TTL, WHOLE_FAULT};
use crate::chaos::etcd;
use crate::chaos::scene::Scene;
use testkit::cluster::Proxied;

/// Longer than the sale may pause.
const HELD: Duration = Duration::from_secs(3);

pub(super) fn cases() -> Vec<Case> {
    let handovers = "handovers between instances of one name";
    let one_name = Case {
        one_name: true,
        round: Duration::from_millis(1500),
        ..Case::new("one-name", "two instances go by one name", &count_handover)
            .proven_by(handovers)
    };
    let both_hold = Case { proof: WHOLE_FAULT, ..one_name };

    let fault = "item a sells while the locks of a-b and of a/y are held";
    let alike = Case {
        load_flags: &["--item", "a"],
        round: HELD * 2,
        ..Case::new("names-alike", fault, &hold_others)
    };

    let fault =
        "10,000 locks held, 50,000 claims beside the sale's; watches break, the holder is killed";
    let crowded = Case {
        proxied: Proxied::Etcd,
        crowded: true,
        round: TTL + Duration::from_secs(4),
        // the lease of a killed holder, and the time to read the queue again
        goes_on_within: TTL + Duration::from_secs(4),
        alone: true,
        ..Case::new("crowded", fault, &break_and_kill)
    };

    vec![
        one_name,
        both_hold.without_holds().without_safeguard("owner-by-claim,fence", &["I1", "I2"]),
        alike,
        alike.without_safeguard("exact-prefix", &["I5"]),
        crowded,
        crowded.without_safeguard("pages", &["I5"]),
    ]
}

/// Counts a handover if the lock has another lease after a while.
async fn count_handover(scene: &mut Scene) -> Result<()> {
    let (_, before) = scene.holder(None).await?;
    sleep(scene.random_millis(300, 1500)).await;
    let (_, after) = scene.holder(None).await?;
    if before != after {
        scene.evidence.add("handovers between instances of one name", 1);
    }
    Ok(())
}

async fn hold_others(scene: &mut Scene) -> Result<()> {
    let session = etcd::session(&[scene.member().endpoint()]).await?;
    for name in ["a-b", "a/y"] {
        let guard = session.mutex(&format!("{LOCK_NAME}:{name}"))?.lock().await?;
        sleep(HELD).await;
        guard.unlock().await?;
    }
    Ok(session.close().await?)
}

/// Breaks all watches and kills the holder, so that the queue must be read again before a claim is granted the lock. Without the
/// safeguard it is read with the claims of the longer name.
async fn break_and_kill(scene: &mut Scene) -> Result<()> {
    let (index, lease) = scene.holder(None).await?;
    let instances = &scene.cluster.instances;
    instances.iter().flat_map(|instance| &instance.etcd_proxies).for_each(Proxy::cut);
    scene.cluster.instances[index].child.kill().await?;
    scene.holder(Some(index)).await?;
    scene.lease_gone(lease).await?;
    scene.start_again(index).await
}
