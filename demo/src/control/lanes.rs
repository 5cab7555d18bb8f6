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
        let lanes = self.lanes(run.as_ref()).await;
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

    /// The tenures of all instances since the buyers of `run` came.
    pub(super) async fn lanes(&self, run: Option<&Run>) -> Vec<Lane> {
        let began_ms = run.map(|run| run.began_ms).filter(|began| *began > 0.0);
        let instances = self.instances.all();
        let lanes = instances.iter().map(|instance| async move {
            if instance.is_here {
                return self.lane();
            }
            let answer = call(instance, Method::GET, "/demo/lanes?only=here", None).await;
            let answer = answer.ok().and_then(|answer| serde_json::from_slice(&answer).ok());
            let instance = Arc::clone(&instance.name);
            answer.unwrap_or(Lane { instance, up: false, tenures: Vec::new() })
        });
        let mut lanes = join_all(lanes).await;
        for lane in &mut lanes {
            lane.tenures.retain(|tenure| began_ms.is_some_and(|began| tenure.from_ms >= began));
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

#[cfg(test)]
mod tests {
    use super::super::record::{Fault, State};
    use super::*;

    fn lane(instance: &str, tenures: &[(f64, f64)]) -> Lane {
        let tenure = |&(from_ms, to)| Tenure { token: 1, from_ms, to_ms: Some(to), refused: false };
        let tenures = tenures.iter().map(tenure).collect();
        Lane { instance: instance.into(), up: true, tenures }
    }

    /// Goal: a takeover is counted from the stop of the victim to the next write of another instance.
    #[test]
    fn takeover_is_from_the_stop_to_the_next_write() {
        let mut run = Run {
            id: "1-8080".into(),
            at_ms: 1,
            by: "8080".into(),
            state: State::Done,
            began_ms: 100.0,
            hit_ms: Some(1000.0),
            stock: 1,
            requests: 1,
            guard: "etcd".into(),
            fence: true,
            fault: Some(Fault::Pause),
            victim: Some("8090".into()),
            answered: 1,
            sold: 1,
            sold_out: 0,
            failed: 0,
            elapsed_ms: 1,
            verdict: None,
            error: None,
        };
        let other = || lane("8080", &[(110.0, 120.0), (3200.0, 3300.0), (4000.0, 4001.0)]);
        // paused: its tenure began before it was found to be stopped
        let paused = [other(), lane("8090", &[(105.0, 106.0), (200.0, 8200.0)])];
        assert_eq!(takeover_ms(&run, &paused), Some(3000));
        // killed: it remembers nothing
        assert_eq!(takeover_ms(&run, &[other(), lane("8090", &[])]), Some(2200));
        assert_eq!(takeover_ms(&run, &[lane("8080", &[(110.0, 120.0)])]), None, "nobody wrote");
        run.hit_ms = None;
        assert_eq!(takeover_ms(&run, &paused), None, "no fault");
    }
}
