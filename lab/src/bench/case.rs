//! The loads: what is ordered from which contender, in which rounds.

use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum as _;
use loadtest::Report;
use serde::Serialize;
use testkit::Proxy;

use super::options::{BenchOptions, Contender, Measure};
use crate::experiment::{Spread, compact, fault, note, rounds};
use demo::cluster::{Cluster, Instance, Proxied, Spec};
use demo::load::{ENDLESS_STOCK, Load, TIMEOUT};

/// How many instances there are, where their number is not what changes.
pub(super) const INSTANCES: usize = 2;

/// Connections of a load over all instances, where their number is not what changes.
pub(super) const CONNECTIONS: usize = 500;

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
pub(super) fn experiments(options: &BenchOptions) -> impl Iterator<Item = Experiment> {
    let contenders = Contender::value_variants().iter().copied();
    let contenders = contenders.filter(|contender| options.wants_contender(*contender));
    let compared = (options.rounds(5), contenders.map(|one| compared(one, options)).collect());
    let swept = [Measure::Requests, Measure::Connections, Measure::Instances, Measure::Items];
    let swept = swept.map(|measure| (options.rounds(3).min(3), vec![sweep(measure, options)]));
    let all = [compared].into_iter().chain(swept).chain([(options.rounds(1), far(options))]);
    all.map(|(rounds, stages): (usize, Vec<Vec<Case>>)| {
        let wanted = |case: &Case| options.measures(case.measure);
        let measured = |case| Measured { case, loads: Vec::new() };
        let stage = |cases: Vec<Case>| -> Vec<_> {
            cases.into_iter().filter(wanted).map(measured).collect()
        };
        let stages = stages.into_iter().map(stage).filter(|stage| !stage.is_empty());
        Experiment { rounds, stages: stages.collect() }
    })
}

/// What the contenders are compared by. Each load takes some seconds.
fn compared(contender: Contender, options: &BenchOptions) -> Vec<Case> {
    let is_slow = contender.locks_each_request();
    let sized = |fast, slow, short| options.full_or_short(if is_slow { slow } else { fast }, short);
    let case = |measure, requests| Case { requests, ..Case::usual(measure, contender, options) };
    let mut all = vec![case(Measure::Throughput, sized(100_000, 500, 60))];
    let stock = Some(options.full_or_short(300, 6));
    if !is_slow {
        all.push(Case { stock, ..case(Measure::SoldOut, sized(100_000, 500, 60)) });
    }
    if contender.sells() {
        let buyers = options.full_or_short(500, 10);
        all.push(Case { connections: buyers, stock, ..case(Measure::Burst, buyers) });
    }
    if contender.shows_handovers() {
        let handovers = case(Measure::Handovers, sized(4000, 300, 20));
        all.push(Case { connections: INSTANCES, ..handovers });
    }
    all
}

/// The product as one number changes.
fn sweep(measure: Measure, options: &BenchOptions) -> Vec<Case> {
    let usual = || Case::usual(measure, Contender::Combined, options);
    let of = |full: &[usize], short: &[usize], case: &dyn Fn(usize) -> Case| {
        options.full_or_short(full, short).iter().copied().map(case).collect()
    };
    match measure {
        Measure::Requests => {
            of(&[500, 5000, 50_000, 500_000], &[10, 40], &|requests| Case { requests, ..usual() })
        }
        Measure::Connections => of(&[2, 10, 50, 500, 2000, 10_000], &[2, 8], &|connections| {
            // where there are few connections, many requests take too long
            let requests = usual().requests.min(connections * options.full_or_short(2000, 10));
            Case { requests, connections, ..usual() }
        }),
        Measure::Instances => {
            of(&[1, 2, 4, 8], &[1, 2], &|instances| Case { instances, ..usual() })
        }
        _ => of(&[1, 4, 16, 64], &[1, 3], &|items| Case { items: Some(items), ..usual() }),
    }
}

/// The product and the sale without a lock, which follow each other, while etcd and Redis are far away. The closed loops
/// come first: the rates of the open ones depend on them, which need a connection for each order that waits.
fn far(options: &BenchOptions) -> Vec<Vec<Case>> {
    const FAR: [(u64, u64); 8] = [(0, 0), (2, 0), (6, 0), (20, 0), (0, 2), (2, 2), (6, 2), (20, 2)];
    let loads: &[_] = options.full_or_short(
        &[(CONNECTIONS, None), (5000, None), (5000, Some(0.5)), (5000, Some(0.9))],
        &[(10, None), (10, Some(0.5))],
    );
    let instances: &[usize] = options.full_or_short(&[INSTANCES, 8], &[INSTANCES]);
    let far: &[_] = options.full_or_short(&FAR, &[(0, 0), (4, 2)]);
    let mut all = Vec::new();
    for &(connections, share) in loads {
        for &instances in instances {
            for &far in far {
                for contender in [Contender::Combined, Contender::AtomicScript] {
                    all.push(vec![Case {
                        requests: options.full_or_short(50_000, 60),
                        connections,
                        instances,
                        far: Some(far),
                        share,
                        ..Case::usual(Measure::Distance, contender, options)
                    }]);
                }
            }
        }
    }
    all
}

impl Case {
    pub(super) fn usual(measure: Measure, contender: Contender, options: &BenchOptions) -> Self {
        Self {
            measure,
            contender,
            requests: options.full_or_short(200_000, 40),
            connections: options.full_or_short(CONNECTIONS, 10),
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

    /// What it measures, of what, where.
    fn in_words(&self) -> String {
        let Self { measure, contender, instances, connections, far, share, .. } = self;
        let title = contender.title();
        let Some((etcd, redis)) = far else { return format!("{measure:?}, {title}") };
        let rate = share.map_or_else(String::new, |share| format!(", {:.0} %", share * 100.0));
        format!(
            "{measure:?}, {title}, etcd {etcd} ms, Redis {redis} ms, {instances} instances, \
             {connections} connections{rate}"
        )
    }

    /// Whether these are the product and the sale without a lock under the same load, or two such loads.
    pub(super) fn is_beside(&self, other: &Self) -> bool {
        (self.far, self.share) == (other.far, other.share)
            && (self.instances, self.connections) == (other.instances, other.connections)
    }

    /// Compacts etcd, as its operators do regularly: otherwise it walks over all deleted claims of a lock when it lists the
    /// queue, and a load pays for earlier ones. Sends the orders and waits for the report.
    async fn run(&self, cluster: &Cluster, rate: Option<f64>) -> Result<Report> {
        compact(&cluster.etcd[0]).await?;
        self.start(cluster, rate)?.report(TIMEOUT).await
    }

    /// Starts to send the orders; at so many a second in an open loop.
    pub(super) fn start(&self, cluster: &Cluster, rate: Option<f64>) -> Result<Load> {
        let Self { requests, connections, stock, items, .. } = self;
        let (etcd, redis) = (cluster.etcd[0].pid(), cluster.redis.pid());
        let load = format!(
            "--requests {requests} --concurrency {connections} --timeout {ORDER_TIMEOUT} \
             --process etcd={etcd},redis={redis}"
        );
        let instance = |one: &Instance| format!("--process instances={}", one.child.pid());
        let mut flags: Vec<_> = cluster.instances.iter().map(instance).chain([load]).collect();
        flags.extend(rate.map(|rate| format!("--rate {rate}")));
        if self.contender.sells() {
            flags.extend(stock.map(|stock| format!("--stock {stock}")));
            flags.extend(items.map(|items| format!("--items {items}")));
            flags.push("--alone".to_owned());
        } else {
            flags.push("--probe-path /healthz".to_owned());
        }
        let words = flags.iter().flat_map(|flag| flag.split(' ')).map(str::to_owned);
        let urls = cluster.urls().into_iter().take(self.instances);
        let args: Vec<_> = words.chain(urls).collect();
        Load::start(&cluster.program, &cluster.dir, &args, false)
    }
}

impl Measured {
    /// A figure of all rounds.
    pub(super) fn spread(&self, figure: Figure) -> Option<Spread> {
        Spread::of(self.loads.iter().filter_map(figure))
    }

    /// Why loads do not count.
    pub(super) fn faults(&self) -> impl Iterator<Item = String> {
        let name = self.case.in_words();
        self.loads.iter().filter_map(fault).map(move |fault| format!("{name}: {fault}"))
    }
}

/// A figure of a load.
pub(super) type Figure = fn(&Report) -> Option<f64>;

impl Experiment {
    /// Runs all rounds.
    pub(super) async fn run(
        &mut self,
        cluster: &mut Cluster,
        options: &BenchOptions,
    ) -> Result<()> {
        for (round, place) in rounds(self.rounds, self.stages.len()) {
            let stage = &self.stages[place];
            note(&format!("round {} of {}: {}", round + 1, self.rounds, stage[0].case.in_words()));
            let rates: Vec<_> = stage.iter().map(|one| self.rate(&one.case)).collect();
            start(cluster, stage, options).await?;
            for (one, rate) in self.stages[place].iter_mut().zip(rates) {
                one.loads.push(one.case.run(cluster, rate).await?);
            }
            cluster.stop_instances().await?;
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

/// Starts the instances of a stage, and warms up connections and caches.
async fn start(cluster: &mut Cluster, stage: &[Measured], options: &BenchOptions) -> Result<()> {
    let instances = stage.iter().map(|one| one.case.instances).max().unwrap_or_default();
    let first = &stage[0].case;
    first.contender.start(cluster, instances, first.far).await?;
    let usual = options.full_or_short(CONNECTIONS, 10);
    let mut connections = if first.far.is_some() { first.connections } else { usual };
    let mut requests = options.full_or_short(2000, 4).max(connections);
    if first.contender.locks_each_request() {
        (requests, connections) = (20.min(requests), 20.min(connections));
    }
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
    ) -> Result<()> {
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
