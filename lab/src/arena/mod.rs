//! The `arena` command: every lock, the same buyers, the same faults.
//!
//! # Layout
//! - [`ArenaOptions`], [`run()`]: the flags, and the whole run
//! - `speed`: handovers, fairness, waits, and requests at the servers
//! - [`contender`], `faults`: two processes that want a lock, and what a fault does to them
//! - `sale`: a sale with a faulty holder, under each lock and each fence
//! - `table`: the results as text

pub mod contender;
mod faults;
mod options;
mod sale;
mod speed;
mod table;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum as _;
use fenced_lock::Promises;
use serde::Serialize;
use testkit::OwnedDir;
use testkit::wait::in_time;

use self::faults::Takeover;
pub use self::options::{ArenaOptions, Fault, Measure};
use self::sale::Oversold;
use self::speed::{Contest, Handovers, LONGEST};
use crate::articles::{self, Shown};
use crate::experiment::{
    self, FAULTS, Machine, Trials, machine, note, publish, random, value_name, write,
};
use crate::locks::{Fence, LockMode, Server, Servers};

/// Round trips to the lock's servers, in milliseconds.
const DISTANCES: [u64; 2] = [2, 20];

/// The results of one lock. `None` and empty lists mean "not measured".
#[derive(Debug, Default, Serialize)]
struct Figures {
    lock: &'static str,
    #[serde(skip)]
    promises: Option<Promises>,
    /// One entry for each distance.
    handovers: Vec<Handovers>,
    contest: Option<Contest>,
    takeovers: Vec<Takeover>,
    oversold: Vec<Oversold>,
    /// Runs that failed and should not have, and measures that failed.
    faults: Vec<String>,
}

/// The whole run.
#[derive(Debug, Serialize)]
struct Results {
    seed: u64,
    machine: Machine,
    trials: u32,
    locks: Vec<Figures>,
    /// The flaws of the articles' locks.
    flaws: Vec<Shown>,
}

/// Measures, prints and writes the results.
pub async fn run(options: ArenaOptions) -> ExitCode {
    experiment::run("arena", async |dir| measure(&options, dir).await).await
}

async fn measure(options: &ArenaOptions, dir: &OwnedDir) -> Result<ExitCode> {
    let mut results = Results {
        seed: options.seed.unwrap_or_else(loadtest::any_seed),
        machine: machine(),
        trials: options.trials(),
        locks: Vec::new(),
        flaws: Vec::new(),
    };
    note(&format!(
        "seed {}: {} trials of each fault, {} at a time",
        results.seed, results.trials, options.jobs
    ));
    let chosen = match options.locks.as_slice() {
        _ if options.only == [Measure::Flaws] => Vec::new(),
        [] => LockMode::shared().collect(),
        chosen => chosen.to_vec(),
    };
    let out = &options.out;
    for lock in chosen {
        if let Some(missing) = lock.server().missing() {
            note(&format!("{}: left out, since {missing} is not installed", lock.name()));
            continue;
        }
        let figures = Figures { lock: lock.name(), ..Figures::default() };
        let arena = Arena { options, lock, dir, seed: results.seed, figures };
        results.locks.push(arena.measure().await?);
        // after each lock, so that an interrupted run leaves results behind
        write(out, &results, &table::text(&results))?;
    }
    if options.measures(Measure::Flaws) {
        let trials = options.trials.unwrap_or(options.full_or_short(3, 1));
        let is_wanted = |lock| options.articles.is_empty() || options.articles.contains(&lock);
        results.flaws = articles::shown(dir, is_wanted, trials).await?;
    }
    publish(out, &results, &table::text(&results))?;
    let is_whole = results.locks.iter().all(|lock| lock.faults.is_empty());
    Ok(if is_whole { ExitCode::SUCCESS } else { FAULTS.into() })
}

/// One lock, and its results.
struct Arena<'a> {
    options: &'a ArenaOptions,
    lock: LockMode,
    dir: &'a OwnedDir,
    seed: u64,
    figures: Figures,
}

impl Arena<'_> {
    fn note(&self, what: &str) {
        note(&format!("{}: {what}", self.lock.name()));
    }

    fn trials(&self, what: &str) -> Trials {
        let what = format!("{}: {what}", self.lock.name());
        Trials::new(what, self.options.trials(), self.options.jobs, self.seed)
    }

    /// The result of a measure. A failure is recorded, and the run continues without the result.
    fn keep<T>(&mut self, what: &str, measured: Result<T>) -> Option<T> {
        let faults = &mut self.figures.faults;
        measured.map_err(|error| faults.push(format!("{what}: not measured: {error:#}"))).ok()
    }

    async fn measure(mut self) -> Result<Figures> {
        self.note("starting its servers");
        let servers = Servers::start(self.lock, 1, self.dir).await?;
        self.figures.promises = Some(servers.promises);
        let done = self.alone(servers).await;
        self.keep("handovers, fairness or requests", done);
        self.takeovers().await;
        self.oversold().await;
        Ok(self.figures)
    }

    /// The measures without faults: handovers, a contest of many clients, the order of waiters, and requests at the servers.
    async fn alone(&mut self, mut servers: Servers) -> Result<()> {
        let options = self.options;
        let near = options.measures(Measure::Handovers).then_some(0);
        let mut random = random(self.seed, "handovers");
        let is_far = options.measures(Measure::Distance) && self.lock.server() != Server::Directory;
        let far = DISTANCES.into_iter().filter(|_| is_far);
        for round_trip_ms in near.into_iter().chain(far) {
            self.note(&format!("handovers, {round_trip_ms} ms away"));
            let turns = if round_trip_ms < 10 { 300 } else { 100 };
            let turns = options.full_or_short(turns, 20);
            let measure = speed::handovers(&servers, round_trip_ms, turns, &mut random);
            self.figures.handovers.push(in_time("handovers", LONGEST, measure).await?);
        }
        if options.measures(Measure::Fairness) {
            for member in &mut servers.members {
                member.count_requests().await?;
            }
            let clients = options.full_or_short(100, 10);
            self.note(&format!("{clients} clients contend, and wait in a row"));
            let grants = clients * options.full_or_short(10, 2);
            let waiting = Duration::from_secs(options.full_or_short(10, 1));
            let contest = speed::contest(&servers, clients, grants, waiting);
            self.figures.contest = Some(in_time("contest", LONGEST * 3, contest).await?);
        }
        servers.stop().await
    }

    /// Measures the effect of each fault on the lock.
    async fn takeovers(&mut self) {
        let (options, server) = (self.options, self.lock.server());
        let applies = |fault: &&Fault| options.injects(**fault) && faults::applies(**fault, server);
        let wanted = Fault::value_variants().iter().filter(applies);
        for &fault in wanted.filter(|_| options.measures(Measure::Takeover)) {
            let what = format!("takeover, {}", value_name(&fault));
            let done = faults::takeover(fault, self.lock, self.dir, &self.trials(&what)).await;
            let takeover = self.keep(&what, done);
            self.figures.takeovers.extend(takeover);
        }
    }

    /// Measures the effect of the holder's faults on a sale.
    async fn oversold(&mut self) {
        let lock = self.lock;
        let own = lock.fence(None);
        let mut wanted = vec![(Fault::Kill, own), (Fault::Pause, own), (Fault::Pause, Fence::None)];
        // a lock without tokens always has the store's fence
        if own != Fence::Store {
            wanted.push((Fault::Pause, Fence::Store));
        }
        let options = self.options;
        wanted.retain(|(fault, _)| options.measures(Measure::Oversold) && options.injects(*fault));
        for (fault, fence) in wanted {
            let what = format!("a sale with a {}, fence: {}", value_name(&fault), fence.name());
            let done = sale::oversold(lock, fault, fence, self.dir, &self.trials(&what)).await;
            if let Some((oversold, faults)) = self.keep(&what, done) {
                self.figures.faults.extend(faults.iter().map(|fault| format!("{what}: {fault}")));
                self.figures.oversold.push(oversold);
            }
        }
    }
}
