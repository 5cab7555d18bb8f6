//! Equal names, names that begin with another one, many names, and long queues.

use std::time::Duration;

use futures_util::FutureExt as _;
use testkit::{LOCK_NAME, Proxy};
use tokio::time::sleep;

use crate::chaos::etcd;
use crate::chaos::scenario::{LoadPlan, Run, Scenario, Setup, TTL};
use crate::chaos::scene::Scene;
use crate::error::LabError;
use demo::cluster::Proxied;

/// Longer than the sale may pause.
const HELD: Duration = Duration::from_secs(3);

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![one_name(), names_alike(), crowded()]
}

fn one_name() -> Scenario {
    let run = Run {
        setup: Setup { one_name: true, ..Setup::USUAL },
        inject: |scene| look_on(scene).boxed_local(),
        round: Duration::ZERO,
        goes_on_within: Duration::from_secs(2),
        proof: "handovers between instances of one name",
    };
    let both_hold = Run { proof: "looks", ..run };
    Scenario::new("one-name", "two instances go by one name", run)
        .control(both_hold.without("owner-by-claim,fence", &["I1", "I2"]))
}

fn names_alike() -> Scenario {
    let load = LoadPlan { flags: &["--item", "a"], ..LoadPlan::USUAL };
    let run = Run {
        setup: Setup { load, ..Setup::USUAL },
        inject: |scene| hold_others(scene).boxed_local(),
        round: HELD * 2,
        goes_on_within: Duration::from_secs(2),
        proof: "locks with longer names held",
    };
    Scenario::new("names-alike", "item a sells while the locks of a-b and of a/y are held", run)
        .without("exact-prefix", &["I5"])
}

fn crowded() -> Scenario {
    let run = Run {
        setup: Setup { proxied: Proxied::Etcd, crowded: true, ..Setup::USUAL },
        inject: |scene| break_and_kill(scene).boxed_local(),
        round: TTL + Duration::from_secs(4),
        // that of a killed holder, and the time to read the queue again
        goes_on_within: TTL + Duration::from_secs(4),
        proof: "leases gone",
    };
    let fault =
        "10,000 locks held, 50,000 claims beside the sale's; watches break, the holder is killed";
    Scenario { alone: true, ..Scenario::new("crowded", fault, run).without("pages", &["I5"]) }
}

/// Counts how often the lock goes to another lease.
async fn look_on(scene: &mut Scene) -> Result<(), LabError> {
    let mut last = None;
    while scene.next_round().await {
        let (_, holder) = scene.holder().await?;
        if last.replace(holder.lease).is_some_and(|lease| lease != holder.lease) {
            scene.evidence.saw("handovers between instances of one name", 1);
        }
        scene.evidence.saw("looks", 1);
    }
    Ok(())
}

/// Holds the locks one after the other.
async fn hold_others(scene: &mut Scene) -> Result<(), LabError> {
    let session = etcd::session(&[scene.member().endpoint()]).await?;
    while scene.next_round().await {
        for name in ["a-b", "a/y"] {
            let mutex = session.mutex(&format!("{LOCK_NAME}:{name}"))?;
            let guard = mutex.lock().await?;
            sleep(HELD).await;
            guard.unlock().await?;
            scene.evidence.saw("locks with longer names held", 1);
        }
    }
    Ok(session.close().await?)
}

/// Breaks all watches and kills the holder, so that the queue must be read again before anyone is granted the
/// lock. It is read with the claims of the longer name.
async fn break_and_kill(scene: &mut Scene) -> Result<(), LabError> {
    const CLAIMS: usize = 50_000;
    etcd::put_claims(scene.member(), &format!("{LOCK_NAME}/z"), CLAIMS).await?;
    while scene.next_round().await {
        let (index, holder) = scene.holder().await?;
        let instances = &scene.cluster.instances;
        instances.iter().flat_map(|instance| &instance.etcd_proxies).for_each(Proxy::cut);
        scene.kill(index).await?;
        scene.holder_besides(index).await?;
        scene.note_lease_gone(holder.lease).await?;
        scene.start_again(index).await?;
    }
    let lost = scene.crowd.take().expect("the setup is crowded").disperse().await?;
    if lost > 0 {
        scene.evidence.complain("session", format!("{lost} other locks were lost"));
    }
    Ok(())
}
