//! Clients that get no answer, go away, or mean no good.

use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::sleep;

use crate::chaos::error::ChaosError;
use crate::chaos::row::{Row, Setup, Trial};
use crate::chaos::scene::Scene;

pub(super) fn rows() -> Vec<Row> {
    vec![Row {
        name: "answer-swallowed",
        fault: "answers are swallowed; clients ask again at another instance",
        trial: Trial {
            setup: Setup { client_proxies: true, ..Setup::USUAL },
            play: |scene| swallow_answers(scene).boxed_local(),
            goes_on_within: Duration::from_secs(2),
            proof: "answers swallowed",
        },
        controls: vec![],
        alone: false,
    }]
}

/// Some answers at a time, of one instance or of all of them.
async fn swallow_answers(scene: &mut Scene) -> Result<(), ChaosError> {
    while scene.next_round(Duration::from_millis(500)).await {
        let one = scene.random.below(scene.sites.len() + 1);
        for (n, site) in scene.sites.iter().enumerate() {
            if one == n || one == scene.sites.len() {
                let answers = 1 + scene.random.clone().below(50);
                site.client_proxy.iter().for_each(|proxy| proxy.swallow(answers as u64));
            }
        }
        sleep(Duration::from_millis(300)).await;
    }
    let swallowed = scene.sites.iter().filter_map(|site| site.client_proxy.as_ref());
    let swallowed = swallowed.map(crate::demo::Proxy::swallowed_answers).sum();
    scene.evidence.saw("answers swallowed", swallowed);
    Ok(())
}
