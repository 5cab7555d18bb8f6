//! The product and the sale without a lock, while etcd and Redis are far away.

use std::time::Duration;

use loadtest::Report;
use serde::Serialize;
use testkit::Proxy;

use super::contender::{Contender, leave};
use super::load::{self, Orders};
use super::run::note;
use super::scale::Scale;
use crate::error::LabError;
use crate::experiment::Spread;
use demo::cluster::{Cluster, Proxied};
use demo::load::ENDLESS_STOCK;

/// The results at one distance, once for each round.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Distance {
    /// The round trip to each server in milliseconds.
    pub(super) etcd: u64,
    pub(super) redis: u64,
    pub(super) instances: usize,
    pub(super) connections: usize,
    /// The rate, as a share of what the sale without a lock reaches here in a closed loop; `None` for that loop.
    pub(super) share: Option<f64>,
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
        Spread::of(self.ratios(|load| Some(load.answers_per_second)))
    }

    /// Whether this is the closed loop at the same place, with so many connections.
    fn is_closed(&self, other: &Self, connections: usize) -> bool {
        self.share.is_none()
            && self.connections == connections
            && (self.etcd, self.redis, self.instances) == (other.etcd, other.redis, other.instances)
    }
}

/// All distances in each round, the closed loops first; the two contenders follow each other.
pub(super) async fn run(cluster: &mut Cluster, scale: &Scale) -> Result<Vec<Distance>, LabError> {
    let closed = scale.distance_connections.iter().map(|&connections| (connections, None));
    // an open loop needs a connection for each order that waits
    let most = scale.distance_connections.iter().copied().max().unwrap_or_default();
    let open = scale.distance_shares.iter().map(|&share| (most, Some(share)));
    let mut distances = Vec::new();
    for (connections, share) in closed.chain(open) {
        for &instances in &scale.distance_instances {
            distances.extend(scale.distances.iter().map(|&(etcd, redis)| Distance {
                etcd,
                redis,
                instances,
                connections,
                share,
                guarded: Vec::new(),
                unguarded: Vec::new(),
            }));
        }
    }
    for _ in 0..scale.distance_rounds {
        for place in 0..distances.len() {
            let rate = rate(&distances, place, scale);
            let all = distances.len();
            let distance = &mut distances[place];
            let &mut Distance { etcd, redis, instances, connections, .. } = distance;
            let kind = distance.share.map_or_else(
                || "closed loop".to_owned(),
                |share| format!("{:.0} % of the rate", share * 100.0),
            );
            note(&format!(
                "distance {} of {all}: etcd {etcd} ms, Redis {redis} ms, {instances} instances, \
                 {connections} connections, {kind}",
                place + 1
            ));
            let guarded = measure(cluster, scale, distance, rate, Contender::Combined).await?;
            distance.guarded.push(guarded);
            let unguarded =
                measure(cluster, scale, distance, rate, Contender::AtomicScript).await?;
            distance.unguarded.push(unguarded);
        }
    }
    Ok(distances)
}

/// Orders a second in an open loop.
fn rate(distances: &[Distance], place: usize, scale: &Scale) -> Option<f64> {
    let distance = &distances[place];
    let fewest = scale.distance_connections.iter().copied().min()?;
    let closed = distances.iter().find(|other| other.is_closed(distance, fewest))?;
    Some(distance.share? * closed.unguarded.last()?.answers_per_second)
}

/// One load. Both contenders run through the same number of proxies.
async fn measure(
    cluster: &mut Cluster,
    scale: &Scale,
    distance: &Distance,
    rate: Option<f64>,
    contender: Contender,
) -> Result<Report, LabError> {
    let &Distance { instances, connections, .. } = distance;
    contender.start_behind(cluster, instances, Proxied::Servers).await?;
    let each_way = |round_trip| Duration::from_millis(round_trip) / 2;
    for instance in &cluster.instances {
        let etcd = instance.etcd_proxies.iter().map(|proxy| (proxy, distance.etcd));
        let redis = instance.redis_proxy.iter().map(|proxy| (proxy, distance.redis));
        etcd.chain(redis).for_each(|(proxy, far): (&Proxy, u64)| proxy.delay(each_way(far)));
    }
    let warm_up = Orders {
        requests: scale.warm_up_requests.max(connections),
        connections,
        stock: Some(ENDLESS_STOCK),
        instances,
        items: None,
        rate: None,
    };
    load::run(cluster, contender, warm_up).await?;
    let orders = Orders { requests: scale.distance_requests.max(connections), rate, ..warm_up };
    let report = load::run(cluster, contender, orders).await?;
    leave(cluster).await?;
    Ok(report)
}
