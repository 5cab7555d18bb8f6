//! What the page shows of one lock: its promises, and who held it when during the last run.

use serde_json::{Value, json};

use super::record::{Lane, Run};
use super::{Instance, Side};
use crate::writer::tenures::{Tenure, now_ms};

impl Side {
    /// The last run, and the lanes of all instances in it.
    pub(super) async fn show_lanes(&self) -> Value {
        self.read_all().await;
        let run = self.current_run();
        let mut side = json!(self.status_at(None).unwrap_or_default());
        side["now_ms"] = json!(now_ms());
        side["lanes"] = json!(self.lanes(run.as_ref()));
        side["run"] = json!(run);
        side
    }

    /// The tenures of all instances since the buyers of `run` came, as of their last answers.
    pub(super) fn lanes(&self, run: Option<&Run>) -> Vec<Lane> {
        let began_ms = run.map(|run| run.began_ms).filter(|began| *began > 0.0);
        let lane = |instance: Instance| {
            let mut tenures = instance.tenures;
            let is_of_run = |tenure: &Tenure| began_ms.is_some_and(|began| tenure.from_ms >= began);
            tenures.retain(|tenure| instance.is_up && is_of_run(tenure));
            Lane { instance: instance.name, up: instance.is_up, tenures }
        };
        self.instances().into_iter().map(lane).collect()
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
    use super::super::run::tests::run_with;
    use super::*;
    use crate::control::record::Fault;

    fn lane(instance: &str, tenures: &[(f64, f64)]) -> Lane {
        let tenure = |&(from_ms, to)| Tenure {
            token: 1,
            from_ms,
            to_ms: Some(to),
            refused: None,
            stopped: None,
        };
        let tenures = tenures.iter().map(tenure).collect();
        Lane { instance: instance.into(), up: true, tenures }
    }

    /// Goal: a takeover is counted from the stop of the victim to the next write of another instance.
    #[test]
    fn takeover_is_from_the_stop_to_the_next_write() {
        let mut run = Run { hit_ms: Some(1000.0), ..run_with(Fault::Pause) };
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
