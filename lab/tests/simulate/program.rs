//! The program: which seeds to run, and what to print of them.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

use clap::{Parser, ValueEnum};
use fenced_lock::chaos::Safeguard;
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use crate::chance::Chance;
use crate::faults::Fault;
use crate::process::{Scheduler, Simulated};
use crate::trace::{self, Events, Told, locked};
use crate::{lock_world, sale_world, shop};

/// Runs the lock and the sale in simulated time, with faults from seeds.
///
/// Ends with 0 if no promise was broken, 1 if one was, 2 if it could not run.
#[derive(Clone, Debug, Parser)]
#[command(name = "simulate")]
struct Options {
    /// Run this seed alone, and show what happened.
    #[arg(long)]
    seed: Option<u64>,
    /// Look for no smaller set of faults.
    #[arg(long)]
    as_it_is: bool,
    /// Show all of it.
    #[arg(long)]
    trace: bool,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// How many seeds.
    #[arg(long, default_value_t = 2000)]
    seeds: u64,
    /// Go on until stopped.
    #[arg(long)]
    endless: bool,
    /// Take this safeguard out, to see that it is missed.
    #[arg(long, value_name = "SAFEGUARD")]
    without: Option<String>,
    /// What to simulate, in place of what the seed chooses.
    #[arg(long)]
    world: Option<World>,
    /// How many seeds run side by side; as many as there are cores.
    #[arg(long)]
    threads: Option<NonZero<usize>>,
    /// How many seeds of a run to run twice, and compare.
    #[arg(long, default_value_t = 20)]
    twice: u64,
}

/// What to run.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    pub seed: u64,
    /// Faults that are left out of those that the seed chooses.
    pub without_faults: BTreeSet<Fault>,
    /// The safeguard that is taken out.
    pub without: Option<String>,
    pub world: Option<World>,
}

/// What is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum World {
    /// The lock alone.
    Lock,
    /// The sale on top of it.
    Sale,
}

impl Setup {
    /// One seed in four is the lock's.
    fn world(&self) -> World {
        self.world.unwrap_or(if self.seed.is_multiple_of(4) { World::Lock } else { World::Sale })
    }

    pub fn is_without(&self, safeguard: &str) -> bool {
        self.without.as_deref() == Some(safeguard)
    }
}

/// The safeguards of the lock that can be taken out.
const OF_THE_LOCK: [(&str, Safeguard); 3] = [
    ("claim-cleanup", Safeguard::ClaimCleanup),
    ("local-expiry", Safeguard::LocalExpiry),
    ("denials", Safeguard::Denials),
];

/// Lines of a failure that are shown without `--trace`.
const SHOWN: usize = 80;

pub fn main() -> ExitCode {
    let options = Options::parse();
    // leases are renewed in simulated time, on no thread
    Safeguard::OwnThread.set(false);
    if let Some(name) = &options.without {
        match OF_THE_LOCK.iter().find(|(known, _)| known == name) {
            Some((_, safeguard)) => safeguard.set(false),
            None if shop::SAFEGUARDS.iter().any(|(known, ..)| known == name) => {}
            None => {
                let of_the_script = shop::SAFEGUARDS.iter().map(|(name, ..)| *name);
                let known = OF_THE_LOCK.iter().map(|(name, _)| *name).chain(of_the_script);
                eprintln!(
                    "there is no safeguard {name}, but: {}",
                    known.collect::<Vec<_>>().join(", ")
                );
                return ExitCode::from(2);
            }
        }
    }
    std::panic::set_hook(Box::new(trace::on_panic));
    match options.seed {
        Some(seed) => show(&options, seed),
        None => run_all(&options),
    }
}

/// Runs one seed in this thread. Returns what it told, and the faults that it could have.
fn run(setup: &Setup, with_lines: bool) -> (Told, BTreeSet<Fault>) {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime without I/O");
    let process = || fenced_lock::process::current().map(|process| process.name());
    let events = tracing::Dispatch::new(Events { process });
    let _events = with_lines.then(|| tracing::dispatcher::set_default(&events));
    let allowed = runtime.block_on(async {
        trace::begin(with_lines);
        let mut chance = Chance::new(!setup.seed);
        let scheduler = Scheduler::start(chance.fork());
        let world = Simulated::new("world".into(), chance.fork(), &scheduler);
        let (ended, end) = oneshot::channel();
        let (setup, network) = (setup.clone(), Arc::clone(&world));
        world.spawn(async move {
            let allowed = match setup.world() {
                World::Lock => lock_world::run(setup, scheduler, network).await,
                World::Sale => sale_world::run(setup, scheduler, network).await,
            };
            drop(ended.send(allowed));
        });
        end.await.unwrap_or_default()
    });
    let told = trace::end();
    drop(runtime);
    (told, allowed)
}

/// Runs one seed with all that it tells.
fn show(options: &Options, seed: u64) -> ExitCode {
    let setup =
        Setup { seed, without: options.without.clone(), world: options.world, ..Setup::default() };
    let (told, _) = run(&setup, true);
    if told.violation.is_some() {
        explain(options, &setup);
        return ExitCode::from(1);
    }
    print_lines(&told, options.trace);
    println!("seed {seed}: no violation");
    ExitCode::SUCCESS
}

fn print_lines(told: &Told, all: bool) {
    let is_own = |line: &&String| all || !line.contains("  . ");
    let lines: Vec<_> = told.lines.iter().filter(is_own).collect();
    let hidden = if all { 0 } else { lines.len().saturating_sub(SHOWN) };
    if hidden > 0 {
        println!("  .. {hidden} lines before: --trace shows all");
    }
    for line in &lines[hidden..] {
        println!("{line}");
    }
}

/// Prints a violation: the smallest set of faults that still has one, and its timeline.
fn explain(options: &Options, setup: &Setup) {
    let mut setup = setup.clone();
    let (told, mut allowed) = run(&setup, false);
    println!("seed {}: {}", setup.seed, told.violation.unwrap_or_default());
    if options.as_it_is {
        allowed.clear();
    }
    for fault in allowed.clone() {
        let mut smaller = setup.clone();
        smaller.without_faults.insert(fault);
        if run(&smaller, false).0.violation.is_some() {
            allowed.remove(&fault);
            setup = smaller;
        }
    }
    let (told, _) = run(&setup, true);
    print_lines(&told, options.trace);
    println!("seed {}: {}", setup.seed, told.violation.unwrap_or_default());
    let faults: Vec<_> = allowed.iter().map(|fault| fault.name()).collect();
    println!("the faults that it takes: {}", faults.join(", "));
    let without = setup.without.map(|name| format!(" --without {name}")).unwrap_or_default();
    println!("again: make simulate ARGS='--seed {}{without}'", setup.seed);
}

#[derive(Default)]
struct Sum {
    seeds: u64,
    counts: BTreeMap<&'static str, u64>,
    failed: Option<u64>,
    differs: Option<u64>,
}

/// Whether two runs of a seed differ; shows where.
fn differ(one: &Told, other: &Told) -> bool {
    let lines = one.lines.iter().zip(&other.lines);
    if let Some((one, other)) = lines.into_iter().find(|(one, other)| one != other) {
        println!("{one}\n{other}");
    }
    if one != other {
        println!(
            "{} and {} lines; {:?} and {:?}",
            one.lines.len(),
            other.lines.len(),
            one.lines.last(),
            other.lines.last()
        );
        println!("{:?} {:?}", one.violation, other.violation);
        for (k, v) in &one.counts {
            if other.counts.get(k) != Some(v) {
                println!("{k} {v} {:?}", other.counts.get(k));
            }
        }
    }
    one != other
}

fn run_all(options: &Options) -> ExitCode {
    let began_at = SystemTime::now();
    let elapsed = || began_at.elapsed().unwrap_or_default().as_secs_f64().max(0.001);
    let (next, over) = (AtomicU64::new(options.first), AtomicBool::new(false));
    let last = if options.endless { u64::MAX } else { options.first.saturating_add(options.seeds) };
    let sum = Mutex::new(Sum::default());
    let threads = options
        .threads
        .map_or_else(|| thread::available_parallelism().map_or(1, NonZero::get), NonZero::get);
    let work = || {
        while !over.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= last {
                break;
            }
            let setup = Setup {
                seed,
                without: options.without.clone(),
                world: options.world,
                ..Setup::default()
            };
            let is_compared = seed - options.first < options.twice;
            let (told, _) = run(&setup, is_compared);
            let differs = is_compared && differ(&told, &run(&setup, true).0);
            let mut sum = locked(&sum);
            sum.seeds += 1;
            for (what, times) in told.counts {
                *sum.counts.entry(what).or_default() += times;
            }
            if differs {
                sum.differs = Some(seed);
            }
            if told.violation.is_some() {
                sum.failed = Some(sum.failed.map_or(seed, |failed| failed.min(seed)));
            }
            if sum.differs.is_some() || sum.failed.is_some() {
                over.store(true, Ordering::Relaxed);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
        if options.endless {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    thread::park_timeout(Duration::from_secs(10));
                    println!(
                        "{} seeds, {:.0} a second",
                        locked(&sum).seeds,
                        locked(&sum).seeds as f64 / elapsed()
                    );
                }
            });
        }
    });
    let sum = locked(&sum);
    for (what, times) in &sum.counts {
        println!("{times:>9}  {what}");
    }
    if let Some(seed) = sum.differs {
        println!("seed {seed}: two runs differ");
        return ExitCode::from(1);
    }
    if let Some(seed) = sum.failed {
        let setup = Setup {
            seed,
            without: options.without.clone(),
            world: options.world,
            ..Setup::default()
        };
        explain(options, &setup);
    }
    let seconds = elapsed();
    let rate = sum.seeds as f64 / seconds;
    let verdict = if sum.failed.is_some() { "VIOLATED" } else { "no violation" };
    println!("{} seeds in {seconds:.1} s, {rate:.0} a second: {verdict}", sum.seeds);
    if sum.failed.is_some() { ExitCode::from(1) } else { ExitCode::SUCCESS }
}
