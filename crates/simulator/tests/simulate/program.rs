//! The program: which seeds to run, and what to print of them.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use clap::{Parser, ValueEnum};
use fenced_lock::chaos::Safeguard;
use simulator::Chance;
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use crate::controls::{self, CONTROLS};
use crate::faults::Fault;
use crate::process::{Scheduler, Simulated};
use crate::trace::{self, Events, Rare, Told, locked};
use crate::{lock_world, sale_world};

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
    /// How many seeds; 2,000, and with `--controls` 10,000.
    #[arg(long, env = "SIMULATE_SEEDS")]
    seeds: Option<u64>,
    /// Run one of so many seeds.
    #[arg(long, default_value_t = 1)]
    every: u64,
    /// Go on until stopped.
    #[arg(long)]
    endless: bool,
    /// Take this safeguard out, to see that it is missed.
    #[arg(long, value_name = "SAFEGUARD")]
    without: Option<String>,
    /// Take out each safeguard that is missed within so many seeds, one after the other, and print a table.
    #[arg(long)]
    controls: bool,
    /// What to simulate, in place of what the seed chooses.
    #[arg(long)]
    world: Option<World>,
    /// How many seeds run side by side; as many as there are cores.
    #[arg(long)]
    threads: Option<NonZero<usize>>,
    /// How many seeds to run twice, and compare, before only some are; 0 for none at all.
    #[arg(long, default_value_t = 20)]
    twice: u64,
}

/// The seed of a run, and the parts that are taken out.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    pub seed: u64,
    /// The faults that may not strike.
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
    fn new(options: &Options, seed: u64, without: Option<&str>) -> Self {
        let (without, world) = (without.map(str::to_owned), options.world);
        Self { seed, without, world, ..Self::default() }
    }

    /// One seed in four is the lock's.
    fn world(&self) -> World {
        self.world.unwrap_or(if self.seed.is_multiple_of(4) { World::Lock } else { World::Sale })
    }

    pub fn is_without(&self, safeguard: &str) -> bool {
        self.without.as_deref() == Some(safeguard)
    }
}

/// One seed in so many is run twice, also behind the first ones. The number is odd, so that it meets each story.
const COMPARED: u64 = 31;

// a run of 2,000 seeds compares each story
const _: () = {
    let (mut seed, mut stories) = (1, 0_u64);
    while seed <= 2000 {
        if seed % 4 == 2 && is_compared(seed - 1, 20) {
            stories |= 1 << (seed / 4 % sale_world::STORIES.len() as u64);
        }
        seed += 1;
    }
    assert!(stories.count_ones() as usize == sale_world::STORIES.len());
};

/// Whether the seed at this place of a run is run twice, and compared.
const fn is_compared(place: u64, twice: u64) -> bool {
    place < twice || twice > 0 && place.is_multiple_of(COMPARED)
}

/// Lines of a failure that are shown without `--trace`.
const SHOWN: usize = 80;

/// From so many seeds on, each rare event and each fault must have happened at least once in 100 seeds.
const ENOUGH: u64 = 10_000;

pub fn main() -> ExitCode {
    let options = Options::parse();
    // the lock renews its leases in simulated time, on no thread of its own
    Safeguard::OwnThread.set(false);
    if let Some(name) = &options.without
        && !controls::set(name, false)
    {
        let known = CONTROLS.iter().map(|control| control.0).collect::<Vec<_>>();
        eprintln!("there is no safeguard {name}, but: {}", known.join(", "));
        return ExitCode::from(2);
    }
    std::panic::set_hook(Box::new(trace::on_panic));
    match options.seed {
        Some(seed) => show(&options, seed),
        None if options.controls => run_controls(&options),
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

/// Runs one seed, and prints all that it told.
fn show(options: &Options, seed: u64) -> ExitCode {
    let setup = Setup::new(options, seed, options.without.as_deref());
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
    /// The first seed that failed, and how.
    failed: Option<(u64, String)>,
    differs: Option<u64>,
}

impl Sum {
    fn rate(&self, began_at: SystemTime) -> String {
        let seconds = began_at.elapsed().unwrap_or_default().as_secs_f64().max(0.001);
        let rate = self.seeds as f64 / seconds;
        format!("{} seeds in {seconds:.1} s, {rate:.0} a second", self.seeds)
    }
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

/// Runs seeds side by side, until one fails.
fn search(options: &Options, without: Option<&str>, seeds: u64, twice: u64) -> Sum {
    let (next, over) = (AtomicU64::new(options.first), AtomicBool::new(false));
    let last = options.first.saturating_add(seeds);
    let (began_at, sum) = (SystemTime::now(), Mutex::new(Sum::default()));
    let threads = options
        .threads
        .map_or_else(|| thread::available_parallelism().map_or(1, NonZero::get), NonZero::get);
    let work = || {
        while !over.load(Ordering::Relaxed) {
            let seed = next.fetch_add(options.every, Ordering::Relaxed);
            if seed >= last {
                break;
            }
            let setup = Setup::new(options, seed, without);
            let is_compared = is_compared((seed - options.first) / options.every, twice);
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
            if let Some(what) = told.violation {
                let is_first = sum.failed.as_ref().is_none_or(|(failed, _)| seed < *failed);
                if is_first {
                    sum.failed = Some((seed, what));
                }
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
                    println!("{}", locked(&sum).rate(began_at));
                }
            });
        }
    });
    sum.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn run_all(options: &Options) -> ExitCode {
    let began_at = SystemTime::now();
    let seeds = if options.endless { u64::MAX } else { options.seeds.unwrap_or(2000) };
    let sum = search(options, options.without.as_deref(), seeds, options.twice);
    for (what, times) in &sum.counts {
        println!("{times:>9}  {what}");
    }
    if let Some(seed) = sum.differs {
        println!("seed {seed}: two runs differ");
        return ExitCode::from(1);
    }
    if let Some((seed, _)) = sum.failed {
        explain(options, &Setup::new(options, seed, options.without.as_deref()));
    }
    // runs in which an event does not happen prove nothing about it
    let is_all = options.world.is_none() && options.without.is_none() && sum.failed.is_none();
    let times = |name: &str| sum.counts.get(name).copied().unwrap_or_default();
    let is_rare = |name: &&str| is_all && sum.seeds >= ENOUGH && times(name) * 100 < sum.seeds;
    let names = Rare::ALL.iter().map(|event| event.name());
    let names = names.chain(Fault::ALL.iter().map(|fault| fault.name()));
    let too_rare: Vec<_> = names.filter(is_rare).collect();
    for name in &too_rare {
        println!("too rare: {name}");
    }
    let verdict = match (&sum.failed, &too_rare[..]) {
        (Some(_), _) => "VIOLATED",
        (None, []) => "no violation",
        _ => "no violation, but TOO RARE events",
    };
    println!("{}: {verdict}", sum.rate(began_at));
    ExitCode::from(u8::from(sum.failed.is_some() || !too_rare.is_empty()))
}

/// Takes out one safeguard after the other.
fn run_controls(options: &Options) -> ExitCode {
    let (began_at, most) = (SystemTime::now(), options.seeds.unwrap_or(10_000));
    println!("without,in seed,of at most,found by");
    let mut missed = Vec::new();
    for (name, (first, every), within) in CONTROLS {
        if *within > most {
            continue;
        }
        let of_story = Options { first: *first, every: *every, ..options.clone() };
        controls::set(name, false);
        let sum = search(&of_story, Some(name), *within, 0);
        controls::set(name, true);
        match sum.failed {
            Some((seed, what)) => {
                let what = what.lines().next().unwrap_or_default().replace('"', "'");
                println!("{name},{seed},{within},\"{what}\"");
            }
            None => missed.push(*name),
        }
    }
    let seconds = began_at.elapsed().unwrap_or_default().as_secs_f64();
    if missed.is_empty() {
        println!("each safeguard was missed, in {seconds:.1} s");
        return ExitCode::SUCCESS;
    }
    println!("NOT MISSED, in {seconds:.1} s: {}", missed.join(", "));
    ExitCode::from(1)
}
