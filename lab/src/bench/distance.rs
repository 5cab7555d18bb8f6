//! The product and the sale without a lock, while etcd and Redis are far away.

use std::time::Duration;

use loadtest::Report;
use serde::Serialize;
use testkit::Proxy;

use super::contender::{Contender, leave};
use super::load::{self, Orders};
use super::scale::Scale;
use super::stats::Spread;
use crate::cluster::{Cluster, Proxied};
use crate::error::LabError;
use crate::load::ENDLESS_STOCK;

const INSTANCES: usize = 2;

/// The results at one distance, once for each round.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Distance {
    /// The round trip to each server in milliseconds. The proxies add up to two.
    pub(super) etcd: u64,
    pub(super) redis: u64,
    pub(super) connections: usize,
    pub(super) guarded: Vec<Report>,
    pub(super) unguarded: Vec<Report>,
}

impl Distance {
    /// Guarded : unguarded, for each round.
    pub(super) fn ratios(&self, figure: impl Fn(&Report) -> Option<f64>) -> Vec<f64> {
        let pairs = self.guarded.iter().zip(&self.unguarded);
        let ratio = pairs.map(|(guarded, unguarded)| {
            let (guarded, unguarded) = (figure(guarded)?, figure(unguarded)?);
            (unguarded > 0.0).then(|| guarded / unguarded)
        });
        ratio.flatten().collect()
    }

    /// The throughput, guarded : unguarded.
    pub(super) fn throughput(&self) -> Option<Spread> {
        Spread::of_some(self.ratios(|load| Some(load.answers_per_second)))
    }
}

/// All distances in each round; the two contenders follow each other.
pub(super) async fn run(cluster: &mut Cluster, scale: &Scale) -> Result<Vec<Distance>, LabError> {
    let mut distances: Vec<_> = scale
        .distance_connections
        .iter()
        .flat_map(|&connections| {
            let at = move |&(etcd, redis)| Distance {
                etcd,
                redis,
                connections,
                guarded: Vec::new(),
                unguarded: Vec::new(),
            };
            scale.distances.iter().map(at)
        })
        .collect();
    for _ in 0..scale.sweep_rounds {
        for distance in &mut distances {
            let guarded = measure(cluster, scale, distance, Contender::Combined).await?;
            distance.guarded.push(guarded);
            let unguarded = measure(cluster, scale, distance, Contender::AtomicScript).await?;
            distance.unguarded.push(unguarded);
        }
    }
    Ok(distances)
}

/// One load. Both contenders run through the same number of proxies.
async fn measure(
    cluster: &mut Cluster,
    scale: &Scale,
    distance: &Distance,
    contender: Contender,
) -> Result<Report, LabError> {
    contender.start_behind(cluster, INSTANCES, Proxied::Servers).await?;
    let each_way = |round_trip| Duration::from_millis(round_trip) / 2;
    for instance in &cluster.instances {
        let etcd = instance.etcd_proxies.iter().map(|proxy| (proxy, distance.etcd));
        let redis = instance.redis_proxy.iter().map(|proxy| (proxy, distance.redis));
        etcd.chain(redis).for_each(|(proxy, far): (&Proxy, u64)| proxy.delay(each_way(far)));
    }
    let connections = distance.connections;
    let warm_up = Orders {
        requests: scale.warm_up_requests.max(connections),
        connections,
        stock: Some(ENDLESS_STOCK),
        instances: INSTANCES,
        items: None,
    };
    load::run(cluster, contender, warm_up).await?;
    let orders = Orders { requests: scale.fast_requests.max(connections), ..warm_up };
    let report = load::run(cluster, contender, orders).await?;
    leave(cluster).await?;
    Ok(report)
}
