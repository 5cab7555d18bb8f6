//! The product's throughput as one number changes.

use loadtest::Report;
use serde::Serialize;

use super::contender::{Contender, leave};
use super::load::{self, Orders};
use super::options::Measure;
use super::scale::Scale;
use crate::error::LabError;
use crate::experiment::Spread;
use demo::cluster::Cluster;
use demo::load::ENDLESS_STOCK;

/// The number of instances in other sweeps.
const INSTANCES: usize = 2;

/// The changed number, and its results.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Sweep {
    pub(super) measure: Measure,
    pub(super) points: Vec<Point>,
}

/// One value, once for each round.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Point {
    pub(super) value: usize,
    pub(super) loads: Vec<Report>,
}

impl Point {
    /// Answers a second.
    pub(super) fn throughput(&self) -> Spread {
        let rates: Vec<_> = self.loads.iter().map(|load| load.answers_per_second).collect();
        Spread::of(rates).unwrap_or(Spread { median: 0.0, min: 0.0, max: 0.0 })
    }
}

/// The values of a sweep.
pub(super) fn values(scale: &Scale, measure: Measure) -> &[usize] {
    match measure {
        Measure::Requests => &scale.sweep_requests,
        Measure::Connections => &scale.sweep_connections,
        Measure::Instances => &scale.sweep_instances,
        Measure::Items => &scale.sweep_items,
        Measure::Throughput
        | Measure::SoldOut
        | Measure::Burst
        | Measure::Handovers
        | Measure::Distance
        | Measure::Memory => &[],
    }
}

/// All values in each round, so that they can be compared within one.
pub(super) async fn run(
    cluster: &mut Cluster,
    scale: &Scale,
    measure: Measure,
) -> Result<Sweep, LabError> {
    let values = values(scale, measure);
    let largest = values.iter().copied().max().unwrap_or(0);
    let started = if measure == Measure::Instances { largest } else { INSTANCES };
    Contender::Combined.start(cluster, started).await?;
    let usual = Orders {
        requests: scale.warm_up_requests,
        connections: scale.connections,
        stock: Some(ENDLESS_STOCK),
        instances: started,
        items: None,
        rate: None,
    };
    load::run(cluster, Contender::Combined, usual).await?;

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
            point.loads.push(load::run(cluster, Contender::Combined, orders).await?);
        }
    }
    leave(cluster).await?;
    Ok(Sweep { measure, points })
}
