//! Names that are the same, or begin with one another.

use std::time::Duration;

use futures_util::FutureExt as _;
use testkit::LOCK_NAME;
use tokio::time::sleep;

use crate::chaos::etcd;
use crate::chaos::scenario::{LoadPlan, Run, Scenario, Setup};
use crate::chaos::scene::Scene;
use crate::error::LabError;

/// For longer than the sale may pause.
const HELD: Duration = Duration::from_secs(3);

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![one_name(), names_alike()]
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

/// One after the other.
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
