//! Rounds of all contenders in turn.

use loadtest::Report;
use serde::Serialize;

use super::contender::{Contender, leave};
use super::etcd_cost::{self, EtcdCost};
use super::load::{self, Orders};
use super::options::{BenchOptions, Measure};
use super::scale::Scale;
use crate::error::LabError;
use demo::cluster::Cluster;
use demo::load::ENDLESS_STOCK;

/// Instances of a contender.
const INSTANCES: usize = 2;

/// A burst that took longer is not repeated in later rounds.
const REPEATED_BURST_SECONDS: f64 = 30.0;

/// The figures of a contender in one round; `None` if not measured.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Turn {
    pub(super) contender: Contender,
    pub(super) throughput: Option<Report>,
    pub(super) sold_out: Option<Report>,
    pub(super) burst: Option<Report>,
    pub(super) handovers: Option<Report>,
}

/// All contenders once, and the cost of a commit at that time.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Round {
    pub(super) etcd: Option<EtcdCost>,
    pub(super) turns: Vec<Turn>,
}

impl Turn {
    pub(super) fn loads(&self) -> impl Iterator<Item = &Report> {
        [&self.throughput, &self.sold_out, &self.burst, &self.handovers].into_iter().flatten()
    }
}

impl Round {
    pub(super) fn turn(&self, contender: Contender) -> Option<&Turn> {
        self.turns.iter().find(|turn| turn.contender == contender)
    }
}

/// A round. The order of the contenders rotates, so that none always follows the heaviest.
pub(super) async fn round(
    cluster: &mut Cluster,
    options: &BenchOptions,
    scale: &Scale,
    contenders: &[Contender],
    earlier: &[Round],
) -> Result<Round, LabError> {
    let mut contenders = contenders.to_vec();
    let turned = earlier.len() % contenders.len().max(1);
    contenders.rotate_left(turned);
    let etcd = if options.wants(Measure::Handovers) {
        Some(etcd_cost::measure(&cluster.etcd[0].endpoint(), scale.commits).await?)
    } else {
        None
    };
    let mut turns = Vec::new();
    for contender in contenders {
        let is_slow = |round: &Round| {
            let burst = round.turn(contender).and_then(|turn| turn.burst.as_ref());
            burst.is_some_and(|burst| burst.duration_seconds > REPEATED_BURST_SECONDS)
        };
        let burst = options.wants(Measure::Burst) && !earlier.iter().any(is_slow);
        contender.start(cluster, INSTANCES).await?;
        turns.push(turn(cluster, options, scale, contender, burst).await?);
        leave(cluster).await?;
    }
    Ok(Round { etcd, turns })
}

async fn turn(
    cluster: &Cluster,
    options: &BenchOptions,
    scale: &Scale,
    contender: Contender,
    burst: bool,
) -> Result<Turn, LabError> {
    let orders = |requests, connections, stock| Orders {
        requests,
        connections,
        stock: Some(stock),
        instances: INSTANCES,
        items: None,
        rate: None,
    };
    let warm_up = scale.warm_up_requests_of(contender);
    load::run(cluster, contender, orders(warm_up, scale.connections.min(warm_up), ENDLESS_STOCK))
        .await?;

    let throughput = if options.wants(Measure::Throughput) {
        let requests = scale.requests_of(contender);
        Some(
            load::run(cluster, contender, orders(requests, scale.connections, ENDLESS_STOCK))
                .await?,
        )
    } else {
        None
    };
    let sold_out = if options.wants(Measure::SoldOut) && !contender.locks_each_request() {
        let orders = orders(scale.fast_requests, scale.connections, scale.burst_stock);
        Some(load::run(cluster, contender, orders).await?)
    } else {
        None
    };
    let burst = if burst && contender.sells() {
        let buyers = scale.burst_buyers;
        Some(load::run(cluster, contender, orders(buyers, buyers, scale.burst_stock)).await?)
    } else {
        None
    };
    let handovers = if options.wants(Measure::Handovers) && contender.shows_handovers() {
        let requests = scale.handover_requests_of(contender);
        Some(load::run(cluster, contender, orders(requests, INSTANCES, ENDLESS_STOCK)).await?)
    } else {
        None
    };
    Ok(Turn { contender, throughput, sold_out, burst, handovers })
}
