//! Instances that die, or stand still.

use std::time::Duration;

use futures_util::FutureExt as _;

use crate::chaos::error::ChaosError;
use crate::chaos::row::{Row, Setup, TTL, Trial};
use crate::chaos::scene::Scene;

pub(super) fn rows() -> Vec<Row> {
    vec![Row {
        name: "holder-killed",
        fault: "the holder is killed, and started again",
        trial: Trial {
            setup: Setup::USUAL,
            play: |scene| kill_holder(scene).boxed_local(),
            goes_on_within: TTL + Duration::from_millis(1500),
            proof: "leases gone",
        },
        controls: vec![],
        alone: false,
    }]
}

/// SIGKILL at any moment; started again once another one holds the lock.
async fn kill_holder(scene: &mut Scene) -> Result<(), ChaosError> {
    while scene.next_round(2 * TTL).await {
        let (index, holder) = scene.holder().await?;
        scene.kill(index).await?;
        scene.holder_besides(index).await?;
        scene.note_lease_gone(holder.lease).await?;
        scene.start_again(index, &[]).await?;
    }
    Ok(())
}
