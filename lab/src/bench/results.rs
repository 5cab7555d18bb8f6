//! The content of results.json.

use loadtest::Report;
use serde::Serialize;

use super::contender::Contender;
use super::contest::{Round, Turn};
use super::distance::Distance;
use super::load;
use super::memory::Memory;
use super::options::Measure;
use super::scale::Scale;
use super::sweep::{Point, Sweep};
use crate::experiment::{Machine, Spread};

/// All results.
#[derive(Debug, Serialize)]
pub(super) struct Results {
    pub(super) machine: Machine,
    pub(super) scale: Scale,
    pub(super) findings: Vec<Finding>,
    /// Loads that were not fully answered or accounted for: the run fails.
    pub(super) faults: Vec<String>,
    /// Skipped measures, and why.
    pub(super) left_out: Vec<String>,
    pub(super) rounds: Vec<Round>,
    pub(super) sweeps: Vec<Sweep>,
    pub(super) distances: Vec<Distance>,
    pub(super) memory: Option<Memory>,
}

/// A ratio, or another figure that does not depend on the machine.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    pub(super) name: &'static str,
    /// Over all rounds.
    pub(super) spread: Spread,
    /// The goal.
    pub(super) goal: Option<Goal>,
}

/// The goal of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

impl Goal {
    pub(super) fn is_reached(self, value: f64) -> bool {
        match self {
            Self::AtLeast(least) => value >= least,
            Self::AtMost(most) => value <= most,
        }
    }
}

impl Results {
    /// A figure of a contender, once for each round that has it.
    pub(super) fn figures(
        &self,
        contender: Contender,
        figure: impl Fn(&Turn) -> Option<f64>,
    ) -> Option<Spread> {
        Spread::of(self.turns(contender).filter_map(figure))
    }

    pub(super) fn turns(&self, contender: Contender) -> impl Iterator<Item = &Turn> {
        self.rounds.iter().filter_map(move |round| round.turn(contender))
    }

    pub(super) fn sweep(&self, measure: Measure) -> Option<&Sweep> {
        self.sweeps.iter().find(|sweep| sweep.measure == measure)
    }

    pub(super) fn points(&self, measure: Measure) -> &[Point] {
        self.sweep(measure).map_or(&[], |sweep| sweep.points.as_slice())
    }

    /// Every load, with its name.
    pub(super) fn loads(&self) -> impl Iterator<Item = (String, &Report)> {
        let turns = self.rounds.iter().flat_map(|round| &round.turns);
        let turns = turns
            .flat_map(|turn| turn.loads().map(|load| (turn.contender.title().to_owned(), load)));
        let points = self.sweeps.iter().flat_map(|sweep| {
            let name = |point: &Point| format!("{:?} {}", sweep.measure, point.value);
            sweep
                .points
                .iter()
                .flat_map(move |point| point.loads.iter().map(move |load| (name(point), load)))
        });
        let distances = self.distances.iter().flat_map(|distance| {
            let Distance { etcd, redis, instances, .. } = distance;
            let name = format!("etcd {etcd} ms, Redis {redis} ms, {instances} instances");
            let loads = distance.guarded.iter().chain(&distance.unguarded);
            loads.map(move |load| (name.clone(), load))
        });
        let memory = self.memory.iter().map(|memory| ("memory".to_owned(), &memory.load));
        turns.chain(points).chain(distances).chain(memory)
    }
}

/// Answers a second under steady load.
pub(super) fn throughput(turn: &Turn) -> Option<f64> {
    Some(turn.throughput.as_ref()?.answers_per_second)
}

/// Answers a second once nothing is left; without a store, as many as there are.
pub(super) fn sold_out(turn: &Turn) -> Option<f64> {
    Some(turn.sold_out.as_ref()?.answers_per_second)
}

/// Milliseconds from the first request of a burst to its last answer.
pub(super) fn burst_millis(turn: &Turn) -> Option<f64> {
    Some(turn.burst.as_ref()?.duration_seconds * 1e3)
}

/// Handovers a second.
pub(super) fn handovers(turn: &Turn) -> Option<f64> {
    Some(load::handovers_per_second(turn.handovers.as_ref()?))
}
