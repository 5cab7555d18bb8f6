//! The product's throughput as one number changes.

use serde::Serialize;

use super::arena::Arena;
use super::contender::Contender;
use super::error::BenchError;
use super::load::{ENDLESS_STOCK, Load, Orders};
use super::options::Measure;
use super::scale::Scale;
use super::stats::Spread;

/// Instances, where their number is not what changes.
const INSTANCES: usize = 2;

/// What changes, and what came of it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Sweep {
    pub(super) measure: Measure,
    pub(super) points: Vec<Point>,
}

/// One value, once for each round.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Point {
    pub(super) value: usize,
    pub(super) loads: Vec<Load>,
}

impl Point {
    /// Answers a second.
    pub(super) fn throughput(&self) -> Spread {
        let rates: Vec<_> = self.loads.iter().map(|load| load.answers_per_second).collect();
        Spread::of(&rates)
    }
}

/// What changes in a sweep, and from where to where.
pub(super) fn values(scale: &Scale, measure: Measure) -> &[usize] {
    match measure {
        Measure::Requests => &scale.sweep_requests,
        Measure::Connections => &scale.sweep_connections,
        Measure::Instances => &scale.sweep_instances,
        Measure::Items => &scale.sweep_items,
        Measure::Throughput | Measure::Burst | Measure::Handovers | Measure::Memory => &[],
    }
}

/// All values in each round, so that they can be compared within one.
pub(super) async fn run(
    arena: &Arena,
    scale: &Scale,
    measure: Measure,
) -> Result<Sweep, BenchError> {
    let values = values(scale, measure);
    let largest = values.iter().copied().max().unwrap_or(0);
    let started = if measure == Measure::Instances { largest } else { INSTANCES };
    let team = arena.team(Contender::Combined, started).await?;
    let usual = Orders {
        requests: scale.warm_up_requests,
        connections: scale.connections,
        stock: Some(ENDLESS_STOCK),
        instances: started,
        items: None,
    };
    arena.load(&team, usual).await?;

    let usual = Orders { requests: scale.requests_of_a_sweep, instances: INSTANCES, ..usual };
    let mut points: Vec<_> =
        values.iter().map(|&value| Point { value, loads: Vec::new() }).collect();
    for _ in 0..scale.sweep_rounds {
        for point in &mut points {
            let value = point.value;
            let orders = match measure {
                Measure::Requests => Orders { requests: value, ..usual },
                Measure::Connections => Orders {
                    connections: value,
                    requests: usual.requests.min(value * scale.requests_of_a_connection),
                    ..usual
                },
                Measure::Instances => Orders { instances: value, ..usual },
                _ => Orders { items: Some(value), ..usual },
            };
            point.loads.push(arena.load(&team, orders).await?);
        }
    }
    team.leave().await?;
    Ok(Sweep { measure, points })
}
