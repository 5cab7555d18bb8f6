//! The loads: which orders go to which contender, in which rounds.

use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum as _;
use loadtest::Report;
use serde::Serialize;
use testkit::Proxy;

use super::options::{BenchOptions, Contender, Measure};
use crate::experiment::{self, Spread, compact, fault, note, value_name};
use crate::load::{ENDLESS_STOCK, Load, TIMEOUT};
use testkit::cluster::{Cluster, Instance, Proxied, Spec};

/// The number of instances, unless it is the variable.
pub(super) const INSTANCES: usize = 2;

/// The connections to all instances together, unless their number is the variable.
pub(super) const CONNECTIONS: usize = 500;

/// The time limit of an order: the slowest contenders serve hundreds of orders one by one.
const ORDER_TIMEOUT: &str = "10m";

/// Flags for slow contenders, which need more than the defaults to answer hundreds of waiting orders.
const FLAGS: [&str; 4] = ["--wait-timeout", "5m", "--queue-length", "20000"];

/// The contenders of the measure with distances: the product in both settings, and the sales without a lock.
pub(super) const DISTANT: [Contender; 4] =
    [Contender::Combined, Contender::Forwarded, Contender::BatchedScript, Contender::AtomicScript];

#[derive(Clone, Debug, Serialize)]
pub(super) struct Case {
    pub(super) measure: Measure,
    pub(super) contender: Contender,
    pub(super) requests: usize,
    pub(super) connections: usize,
    pub(super) instances: usize,
    /// The units at the beginning.
    pub(super) stock: u64,
    /// The round trip to etcd and to Redis in milliseconds, if they are behind proxies.
    pub(super) far: Option<(u64, u64)>,
    /// Orders a second, if they are paced.
    pub(super) rate: Option<usize>,
}

/// A case with its reports, one for each round.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Measured {
    #[serde(flatten)]
    pub(super) case: Case,
    pub(super) loads: Vec<Report>,
}

/// Cases that follow one another on the same instances.
type Stage = Vec<Measured>;

/// All cases that the options ask for: stages that take turns, each with its number of rounds.
pub(super) fn stages(options: &BenchOptions) -> [(usize, Vec<Stage>); 2] {
    let contenders = Contender::value_variants().iter().copied();
    let compared = contenders.flat_map(|one| compared(one, options)).collect();
    let mut distances = distances(options);
    distances.extend(paced(options));
    let all = [(options.rounds(5), compared), (options.rounds(1), distances)];
    all.map(|(rounds, stages): (usize, Vec<Vec<Case>>)| {
        let wanted =
            |case: &Case| options.measures(case.measure) && options.compares(case.contender);
        let measured = |case| Measured { case, loads: Vec::new() };
        let stage = |cases: Vec<Case>| -> Stage {
            cases.into_iter().filter(wanted).map(measured).collect()
        };
        let stages = stages.into_iter().map(stage).filter(|stage| !stage.is_empty());
        (rounds, stages.collect())
    })
}

/// The loads that compare the contenders, in stages. Each load takes some seconds.
fn compared(contender: Contender, options: &BenchOptions) -> Vec<Vec<Case>> {
    let is_slow = contender.is_slow();
    let sized = |fast, slow, short| options.full_or_short(if is_slow { slow } else { fast }, short);
    let case = |measure, requests| Case { requests, ..Case::usual(measure, contender, options) };
    let mut all = vec![case(Measure::Throughput, sized(100_000, 500, 60))];
    let stock = options.full_or_short(300, 6);
    if !is_slow {
        all.push(Case { stock, ..case(Measure::SoldOut, sized(100_000, 500, 60)) });
    }
    if contender.sells() {
        let buyers = options.full_or_short(500, 10);
        all.push(Case { connections: buyers, stock, ..case(Measure::Burst, buyers) });
    }
    // the contenders whose ledgers show the handovers between instances
    if !matches!(contender, Contender::Combined | Contender::EtcdRecipe) {
        return vec![all];
    }
    let handovers = case(Measure::Handovers, sized(4000, 300, 20));
    vec![all, vec![Case { connections: INSTANCES, ..handovers }]]
}

/// The cases of [`DISTANT`], one after the other: with etcd and Redis far away; and, with both near, for other numbers of
/// connections and instances.
fn distances(options: &BenchOptions) -> Vec<Vec<Case>> {
    const FAR: [(u64, u64); 8] = [(0, 0), (2, 0), (6, 0), (20, 0), (0, 2), (2, 2), (6, 2), (20, 2)];
    let loads: &[_] = options.full_or_short(
        &[(CONNECTIONS, INSTANCES), (CONNECTIONS, 8), (5000, INSTANCES), (5000, 8)],
        &[(10, INSTANCES)],
    );
    let far: &[_] = options.full_or_short(&FAR, &[(0, 0), (4, 2)]);
    let near: &[_] = options.full_or_short(
        &[(2, 2), (10, 2), (50, 2), (2000, 2), (10_000, 2), (CONNECTIONS, 1), (CONNECTIONS, 4)],
        &[(2, 1)],
    );
    let all = loads.iter().flat_map(|load| far.iter().map(move |far| (*load, *far)));
    let all = all.chain(near.iter().map(|load| (*load, (0, 0))));
    let stages = |((connections, instances), far): ((usize, usize), _)| {
        // with few connections, so many requests would take too long
        let requests = options.full_or_short(50_000, 60).min(connections * 2000);
        DISTANT.map(|contender| {
            let usual = Case::usual(Measure::Distance, contender, options);
            vec![Case { requests, connections, instances, far: Some(far), ..usual }]
        })
    };
    all.flat_map(stages).collect()
}

/// The same at a rate that each contender keeps up with, for ten seconds.
fn paced(options: &BenchOptions) -> impl Iterator<Item = Vec<Case>> {
    let rate = options.full_or_short(2000, 100);
    let places: &[_] = options.full_or_short(
        &[((0, 0), INSTANCES), ((0, 0), 8), ((6, 2), INSTANCES), ((6, 2), 8)],
        &[((4, 2), INSTANCES)],
    );
    let stages = move |(far, instances)| {
        DISTANT.map(|contender| {
            let usual = Case::usual(Measure::Paced, contender, options);
            let requests = options.full_or_short(rate * 10, 20);
            vec![Case { requests, instances, far: Some(far), rate: Some(rate), ..usual }]
        })
    };
    places.iter().copied().flat_map(stages)
}

impl Case {
    fn usual(measure: Measure, contender: Contender, options: &BenchOptions) -> Self {
        Self {
            measure,
            contender,
            requests: options.full_or_short(200_000, 40),
            connections: options.full_or_short(CONNECTIONS, 10),
            instances: INSTANCES,
            stock: ENDLESS_STOCK,
            far: None,
            rate: None,
        }
    }

    /// The measure, the contender and the place, in words.
    fn in_words(&self) -> String {
        let Self { measure, contender, instances, connections, far, .. } = self;
        let title = value_name(contender);
        let Some((etcd, redis)) = far else { return format!("{measure:?}, {title}") };
        format!(
            "{measure:?}, {title}, etcd {etcd} ms, Redis {redis} ms, {instances} instances, \
             {connections} connections"
        )
    }

    /// Sends the orders and waits for the report. Compacts etcd first, as its operators do regularly: otherwise etcd walks over
    /// all deleted claims of a lock when it lists the queue, and a load pays for earlier ones.
    async fn run(&self, cluster: &Cluster) -> Result<Report> {
        compact(&cluster.etcd[0]).await?;
        let Self { requests, connections, stock, rate, .. } = self;
        let (etcd, redis) = (cluster.etcd[0].pid(), cluster.redis.pid());
        let load = format!(
            "--requests {requests} --concurrency {connections} --timeout {ORDER_TIMEOUT} \
             --process etcd={etcd},redis={redis}"
        );
        let instance = |one: &Instance| format!("--process instances={}", one.child.pid());
        let mut flags: Vec<_> = cluster.instances.iter().map(instance).chain([load]).collect();
        flags.push(if self.contender.sells() {
            format!("--stock {stock} --alone --again 0")
        } else {
            "--probe-path /healthz".to_owned()
        });
        flags.extend(rate.map(|rate| format!("--rate {rate}")));
        let words = flags.iter().flat_map(|flag| flag.split(' ')).map(str::to_owned);
        let args: Vec<_> = words.chain(cluster.urls()).collect();
        Load::start(&cluster.program, &cluster.dir, &args)?.report(TIMEOUT).await
    }
}

impl Measured {
    /// The spread of a figure over all rounds.
    pub(super) fn spread(&self, figure: Figure) -> Option<Spread> {
        Spread::of(self.loads.iter().filter_map(figure))
    }

    /// Why loads do not count, if any.
    pub(super) fn faults(&self) -> impl Iterator<Item = String> {
        let name = self.case.in_words();
        self.loads.iter().filter_map(fault).map(move |fault| format!("{name}: {fault}"))
    }
}

pub(super) type Figure = fn(&Report) -> Option<f64>;

pub(super) async fn run(
    cluster: &mut Cluster,
    rounds: usize,
    stages: &mut [Stage],
    options: &BenchOptions,
) -> Result<()> {
    for (round, place) in experiment::rounds(rounds, stages.len()) {
        let stage = &mut stages[place];
        let first = &stage[0].case;
        note(&format!("round {} of {rounds}: {}", round + 1, first.in_words()));
        start(cluster, first, options).await?;
        for one in stage {
            one.loads.push(one.case.run(cluster).await?);
        }
        cluster.stop_instances().await?;
    }
    Ok(())
}

/// Starts the instances of a stage that begins with this case, and warms up connections and caches. All contenders run through
/// the same number of proxies.
async fn start(cluster: &mut Cluster, first: &Case, options: &BenchOptions) -> Result<()> {
    let Case { contender, instances, far, .. } = *first;
    // the lock should pass on as often as possible
    let tenure = ["--tenure", "0ms"].into_iter().filter(|_| first.measure == Measure::Handovers);
    let flags = FLAGS.iter().chain(contender.flags()).copied().chain(tenure);
    let lock = ["--lock", contender.lock().name()];
    let flags: Vec<_> = flags.chain(lock).map(str::to_owned).collect();
    let proxied = if far.is_some() { Proxied::Servers } else { Proxied::Nothing };
    let spec = Spec { instances, flags: &flags, proxied, ..Spec::default() };
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
    let usual = options.full_or_short(CONNECTIONS, 10);
    let mut connections = if far.is_some() { first.connections } else { usual };
    let mut requests = options.full_or_short(2000, 4).max(connections);
    if contender.is_slow() {
        (requests, connections) = (20.min(requests), 20.min(connections));
    }
    Case { requests, connections, rate: None, ..first.clone() }.run(cluster).await.map(drop)
}
