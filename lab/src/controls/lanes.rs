//! What the page shows of one lock: its promises, and who held it when during the last run.

use std::sync::Arc;

use axum::http::Method;
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};

use super::Controls;
use super::instances::call;
use super::record::Run;
use crate::locks::in_words;
use crate::writer::tenures::{Tenure, now_ms};

/// The tenures of an instance.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Lane {
    instance: Arc<str>,
    /// Whether it answers.
    up: bool,
    tenures: Vec<Tenure>,
}

/// One of two locks that the page shows side by side.
#[derive(Serialize)]
pub(super) struct Side {
    /// The guards that can be chosen; the first is the one that the demo was started with.
    guards: Vec<&'static str>,
    /// Those under which a fault can hit a holder.
    locks: Vec<&'static str>,
    /// What the lock promises; empty if the demo was started without one.
    promises: Vec<&'static str>,
    /// Which fence can be on.
    fence_kind: Option<&'static str>,
    now_ms: f64,
    run: Option<Run>,
    lanes: Vec<Lane>,
}

impl Controls {
    /// The last run, and the lanes of all instances in it.
    pub(super) async fn side(&self) -> Side {
        let run = self.newest_run();
        let lanes = match &run {
            Some(run) => self.lanes(run).await,
            None => Vec::new(),
        };
        let modes = self.switch.modes();
        let lock = self.switch.lock();
        Side {
            guards: modes.iter().map(|mode| mode.name()).collect(),
            locks: modes.iter().filter(|mode| mode.is_shared()).map(|mode| mode.name()).collect(),
            promises: lock.map_or(Vec::new(), |(promises, _)| in_words(promises).into()),
            fence_kind: lock.map(|(_, fence)| fence.name()),
            now_ms: now_ms(),
            run,
            lanes,
        }
    }

    /// The tenures of this instance.
    pub(super) fn lane(&self) -> Lane {
        let (instance, tenures) = (Arc::clone(self.instances.own()), self.switch.tenures().all());
        Lane { instance, up: true, tenures }
    }

    /// The tenures of all instances since `run` began.
    pub(super) async fn lanes(&self, run: &Run) -> Vec<Lane> {
        let instances = self.instances.all();
        let lanes = instances.iter().map(|instance| async move {
            let answer = match instance.is_here {
                true => Some(self.lane()),
                false => {
                    let answer = call(instance, Method::GET, "/demo/lanes?only=here", None).await;
                    answer.ok().and_then(|answer| serde_json::from_slice(&answer).ok())
                }
            };
            let instance = Arc::clone(&instance.name);
            answer.unwrap_or(Lane { instance, up: false, tenures: Vec::new() })
        });
        let mut lanes = join_all(lanes).await;
        for lane in &mut lanes {
            // before the buyers came there was no run, or another one
            lane.tenures.retain(|tenure| run.began_ms > 0.0 && tenure.from_ms >= run.began_ms);
        }
        lanes
    }
}

/// How long after the fault another instance wrote under the lock.
pub(super) fn takeover_ms(run: &Run, lanes: &[Lane]) -> Option<u64> {
    let (hit, victim) = (run.hit_ms?, run.victim.as_ref()?);
    let (own, others): (Vec<_>, Vec<_>) = lanes.iter().partition(|lane| lane.instance == *victim);
    // a paused holder is found to be stopped some time later; one that was killed remembers nothing
    let mut own = own.into_iter().flat_map(|lane| &lane.tenures);
    let is_hit = |tenure: &&Tenure| tenure.from_ms <= hit && tenure.to_ms.is_none_or(|to| to > hit);
    let stopped_at = own.find(is_hit).map_or(hit, |tenure| tenure.from_ms);
    let later = others.into_iter().flat_map(|lane| &lane.tenures);
    let next = later.map(|tenure| tenure.from_ms).filter(|from| *from >= stopped_at);
    let millis = next.reduce(f64::min)? - stopped_at;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a length of time")]
    Some(millis.round() as u64)
}
