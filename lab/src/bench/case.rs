//! The loads: what is ordered from which contender, in which rounds.

use std::time::Duration;

use clap::ValueEnum as _;
use loadtest::Report;
use serde::Serialize;
use testkit::Proxy;

use super::contender::Contender;
use super::etcd_cost::{self, EtcdCost};
use super::options::{BenchOptions, Measure};
use super::scale::Scale;
use crate::error::LabError;
use crate::experiment::{Spread, note, rounds};
use demo::cluster::{Cluster, Proxied, Spec};
use demo::load::{ENDLESS_STOCK, Load, TIMEOUT};

/// How many instances there are, where their number is not what changes.
pub(super) const INSTANCES: usize = 2;

/// A burst that took longer is not repeated in later rounds.
const REPEATED_BURST_SECONDS: f64 = 30.0;

/// The time limit of an order: the slowest contenders serve hundreds of them one by one.
const ORDER_TIMEOUT: &str = "10m";

/// The slow contenders need more than the defaults to answer hundreds of waiting orders.
const FLAGS: [&str; 4] = ["--wait-timeout", "5m", "--queue-length", "20000"];

/// One load.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Case {
    pub(super) measure: Measure,
    pub(super) contender: Contender,
    pub(super) requests: usize,
    pub(super) connections: usize,
    /// How many of the instances the orders go to.
    pub(super) instances: usize,
    /// The number of items; `None` is the default item alone.
    pub(super) items: Option<usize>,
    /// The units to begin with; `None` leaves the sale as it is.
    pub(super) stock: Option<u64>,
    /// The round trip to etcd and to Redis in milliseconds, if they are behind proxies.
    pub(super) far: Option<(u64, u64)>,
    /// The rate, as a share of what the sale without a lock reaches here in a closed loop; `None` for that loop, in which
    /// each connection sends its next order after the answer.
    pub(super) share: Option<f64>,
}

/// A case with its reports, one of each round.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Measured {
    #[serde(flatten)]
    pub(super) case: Case,
    pub(super) loads: Vec<Report>,
}

/// Stages that take turns. The cases of a stage follow each other on the same instances.
pub(super) struct Experiment {
    rounds: usize,
    pub(super) stages: Vec<Vec<Measured>>,
}

/// Everything that is wanted.
pub(super) fn experiments(options: &BenchOptions, scale: &Scale) -> Vec<Experiment> {
    let contenders = Contender::value_variants().iter().copied();
    let contenders = contenders.filter(|contender| options.wants_contender(*contender));
    let compared = Experiment::new(scale.rounds, contenders.map(|one| compared(one, scale)));
    let swept = [Measure::Requests, Measure::Connections, Measure::Instances, Measure::Items];
    let swept =
        swept.map(|measure| Experiment::new(scale.sweep_rounds, [swept_by(measure, scale)]));
    let far = Experiment::new(scale.distance_rounds, far(scale));
    let mut all: Vec<_> = [compared].into_iter().chain(swept).chain([far]).collect();
    for experiment in &mut all {
        for stage in &mut experiment.stages {
            stage.retain(|one| options.wants(one.case.measure));
        }
        experiment.stages.retain(|stage| !stage.is_empty());
    }
    all
}

/// What the contenders are compared by.
fn compared(contender: Contender, scale: &Scale) -> Vec<Case> {
    let case = |measure, requests| Case { requests, ..Case::usual(measure, contender, scale) };
    let mut all = vec![case(Measure::Throughput, scale.requests_of(contender))];
    let stock = Some(scale.burst_stock);
    if !contender.locks_each_request() {
        all.push(Case { stock, ..case(Measure::SoldOut, scale.fast_requests) });
    }
    if contender.sells() {
        let connections = scale.burst_buyers;
        all.push(Case { connections, stock, ..case(Measure::Burst, scale.burst_buyers) });
    }
    if contender.shows_handovers() {
        let handovers = case(Measure::Handovers, scale.handover_requests_of(contender));
        all.push(Case { connections: INSTANCES, ..handovers });
    }
    all
}

/// The product as one number changes.
fn swept_by(measure: Measure, scale: &Scale) -> Vec<Case> {
    let usual = || Case::usual(measure, Contender::Combined, scale);
    let case = |value: usize| match measure {
        Measure::Requests => Case { requests: value, ..usual() },
        Measure::Connections => {
            let requests = usual().requests.min(value * scale.requests_of_a_connection);
            Case { connections: value, requests, ..usual() }
        }
        Measure::Instances => Case { instances: value, ..usual() },
        _ => Case { items: Some(value), ..usual() },
    };
    scale.values(measure).iter().copied().map(case).collect()
}

/// The product and the sale without a lock, which follow each other, while etcd and Redis are far away. The closed loops
/// come first: the rates of the open ones depend on them.
fn far(scale: &Scale) -> Vec<Vec<Case>> {
    let closed = scale.distance_connections.iter().map(|&connections| (connections, None));
    // an open loop needs a connection for each order that waits
    let most = scale.distance_connections.iter().copied().max().unwrap_or_default();
    let open = scale.distance_shares.iter().map(|&share| (most, Some(share)));
    let mut all = Vec::new();
    for (connections, share) in closed.chain(open) {
        for &instances in &scale.distance_instances {
            for &far in &scale.distances {
                for contender in [Contender::Combined, Contender::AtomicScript] {
                    all.push(vec![Case {
                        requests: scale.distance_requests.max(connections),
                        connections,
                        instances,
                        far: Some(far),
                        share,
                        ..Case::usual(Measure::Distance, contender, scale)
                    }]);
                }
            }
        }
    }
    all
}

impl Case {
    pub(super) fn usual(measure: Measure, contender: Contender, scale: &Scale) -> Self {
        Self {
            measure,
            contender,
            requests: scale.requests_of_a_sweep,
            connections: scale.connections,
            instances: INSTANCES,
            items: None,
            stock: Some(ENDLESS_STOCK),
            far: None,
            share: None,
        }
    }

    /// What distinguishes it from the others of its measure.
    pub(super) fn title(&self) -> String {
        match self.measure {
            Measure::Requests => self.requests.to_string(),
            Measure::Connections => self.connections.to_string(),
            Measure::Instances => self.instances.to_string(),
            Measure::Items => self.items.unwrap_or(1).to_string(),
            _ => self.contender.title().to_owned(),
        }
    }

    /// Whether these are the product and the sale without a lock under the same load, or two such loads.
    pub(super) fn is_beside(&self, other: &Self) -> bool {
        (self.far, self.share) == (other.far, other.share)
            && (self.instances, self.connections) == (other.instances, other.connections)
    }

    /// Compacts etcd, so that no load pays for earlier ones; sends the orders and waits for the report.
    async fn run(&self, cluster: &Cluster, rate: Option<f64>) -> Result<Report, LabError> {
        etcd_cost::compact(&cluster.etcd[0].endpoint()).await?;
        Ok(self.start(cluster, rate)?.report(TIMEOUT).await?)
    }

    /// Starts to send the orders; at so many a second in an open loop.
    pub(super) fn start(&self, cluster: &Cluster, rate: Option<f64>) -> Result<Load, LabError> {
        let mut args = Vec::new();
        let mut flag = |name: &str, value: String| args.extend([name.to_owned(), value]);
        flag("--requests", self.requests.to_string());
        flag("--concurrency", self.connections.to_string());
        flag("--timeout", ORDER_TIMEOUT.to_owned());
        flag("--process", format!("etcd={}", cluster.etcd[0].pid()));
        flag("--process", format!("redis={}", cluster.redis.pid()));
        for instance in &cluster.instances {
            flag("--process", format!("instances={}", instance.child.pid()));
        }
        if let Some(rate) = rate {
            flag("--rate", rate.to_string());
        }
        if self.contender.sells() {
            if let Some(stock) = self.stock {
                flag("--stock", stock.to_string());
            }
            if let Some(items) = self.items {
                flag("--items", items.to_string());
            }
            args.push("--alone".to_owned());
        } else {
            flag("--probe-path", "/healthz".to_owned());
        }
        args.extend(cluster.urls().into_iter().take(self.instances));
        Ok(Load::start(cluster, &args, false)?)
    }
}

impl Measured {
    /// A figure of all rounds.
    pub(super) fn spread(&self, figure: Figure) -> Option<Spread> {
        Spread::of(self.loads.iter().filter_map(figure))
    }

    /// Why loads do not count.
    pub(super) fn faults(&self) -> impl Iterator<Item = String> {
        let Case { measure, far, .. } = self.case;
        let far = far.map(|(etcd, redis)| format!(", etcd {etcd} ms, Redis {redis} ms"));
        let name = format!("{measure:?}, {}{}", self.case.title(), far.unwrap_or_default());
        self.loads.iter().filter_map(fault).map(move |fault| format!("{name}: {fault}"))
    }
}

/// A figure of a load.
pub(super) type Figure = fn(&Report) -> Option<f64>;

/// Why a load does not count, if it does not.
pub(super) fn fault(load: &Report) -> Option<String> {
    let settled = load.acknowledged + load.sold_out + load.answered;
    if !load.pass {
        Some(load.verdict.clone())
    } else if usize::try_from(settled) != Ok(load.requests) {
        Some(format!("{settled} of {} requests were answered", load.requests))
    } else {
        None
    }
}

impl Experiment {
    fn new(rounds: usize, stages: impl IntoIterator<Item = Vec<Case>>) -> Self {
        let measured = |case| Measured { case, loads: Vec::new() };
        let stage = |cases: Vec<Case>| cases.into_iter().map(measured).collect();
        Self { rounds, stages: stages.into_iter().map(stage).collect() }
    }

    /// Runs all rounds. Where handovers are measured, each round begins with what they cost etcd.
    pub(super) async fn run(
        &mut self,
        cluster: &mut Cluster,
        scale: &Scale,
        etcd: &mut Vec<EtcdCost>,
    ) -> Result<(), LabError> {
        let mut cases = self.stages.iter().flatten();
        let hands_over = cases.any(|one| one.case.measure == Measure::Handovers);
        for (round, place) in rounds(self.rounds, self.stages.len()) {
            if hands_over && etcd.len() == round {
                etcd.push(etcd_cost::measure(&cluster.etcd[0].endpoint(), scale.commits).await?);
            }
            let stage = &self.stages[place];
            note(&progress(round + 1, self.rounds, &stage[0].case));
            let rates: Vec<_> = stage.iter().map(|one| self.rate(&one.case)).collect();
            start(cluster, stage, scale).await?;
            for (one, rate) in self.stages[place].iter_mut().zip(rates) {
                let is_slow = |load: &Report| load.duration_seconds > REPEATED_BURST_SECONDS;
                if one.case.measure != Measure::Burst || !one.loads.iter().any(is_slow) {
                    one.loads.push(one.case.run(cluster, rate).await?);
                }
            }
            leave(cluster).await?;
        }
        Ok(())
    }

    /// Orders a second in an open loop.
    fn rate(&self, case: &Case) -> Option<f64> {
        let is_closed = |other: &&Measured| {
            let Case { contender, far, instances, share, .. } = other.case;
            contender == Contender::AtomicScript
                && share.is_none()
                && (far, instances) == (case.far, case.instances)
        };
        let closed = self.stages.iter().flatten().filter(is_closed);
        let closed = closed.min_by_key(|other| other.case.connections)?;
        Some(case.share? * closed.loads.last()?.answers_per_second)
    }
}

fn progress(round: usize, rounds: usize, case: &Case) -> String {
    let Case { measure, contender, far, instances, connections, share, .. } = case;
    let title = contender.title();
    let mut text = format!("round {round} of {rounds}: {measure:?} and what follows, {title}");
    if let Some((etcd, redis)) = far {
        let share =
            share.map_or(String::new(), |share| format!(", {:.0} % of the rate", share * 100.0));
        text = format!(
            "round {round} of {rounds}: etcd {etcd} ms, Redis {redis} ms, {instances} instances, \
             {connections} connections{share}, {title}"
        );
    }
    text
}

/// Starts the instances of a stage, and warms up connections and caches.
async fn start(cluster: &mut Cluster, stage: &[Measured], scale: &Scale) -> Result<(), LabError> {
    let instances = stage.iter().map(|one| one.case.instances).max().unwrap_or_default();
    let first = &stage[0].case;
    first.contender.start(cluster, instances, first.far).await?;
    let mut requests = scale.warm_up_requests;
    if first.contender.locks_each_request() {
        requests = requests.min(20);
    } else if first.far.is_some() {
        requests = requests.max(first.connections);
    }
    let connections = first.connections.min(requests);
    let warm_up = Case { requests, connections, instances, ..first.clone() };
    warm_up.run(cluster, None).await.map(drop)
}

impl Contender {
    /// Starts so many instances and waits until they are ready. All contenders run through the same number of proxies.
    pub(super) async fn start(
        self,
        cluster: &mut Cluster,
        instances: usize,
        far: Option<(u64, u64)>,
    ) -> Result<(), LabError> {
        let flags = FLAGS.map(str::to_owned);
        let proxied = if far.is_some() { Proxied::Servers } else { Proxied::Nothing };
        let lock = self.lock();
        let spec = Spec { lock, instances, flags: &flags, proxied, ..Spec::default() };
        for _ in 0..instances {
            cluster.add(spec).await?;
        }
        let (etcd_ms, redis_ms) = far.unwrap_or_default();
        let each_way = |round_trip| Duration::from_millis(round_trip) / 2;
        for instance in &cluster.instances {
            let etcd = instance.etcd_proxies.iter().map(|proxy| (proxy, etcd_ms));
            let redis = instance.redis_proxy.iter().map(|proxy| (proxy, redis_ms));
            etcd.chain(redis).for_each(|(proxy, far): (&Proxy, u64)| proxy.delay(each_way(far)));
        }
        Ok(())
    }
}

/// Stops the instances.
pub(super) async fn leave(cluster: &mut Cluster) -> Result<(), LabError> {
    cluster.stop_instances().await.map_err(LabError::system("an instance does not stop"))
}
