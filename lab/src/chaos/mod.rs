//! The `chaos` command: injects every fault repeatedly while orders are sent, and judges what the clients saw. Then it repeats
//! each fault without the safeguard against it, which must fail.
//!
//! # Layout
//! - [`ChaosOptions`], [`run()`]: the flags, and the whole suite
//! - `case`: a fault and what must hold under it, as data; `cases`: all of them, and what each fault does
//! - `run`: one run and its outcome; `scene`: its processes, and the conditions to wait for
//! - `etcd`, `clients`: requests that bypass the service, and hostile clients
//! - `table`: the results as text
//!
//! A new fault is a function of a `Scene` and a `Case` in one of the files of `cases`.

mod case;
mod cases;
mod clients;
mod etcd;
mod run;
mod scene;
mod table;

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use clap::builder::{PossibleValuesParser, RangedU64ValueParser};
use futures_util::stream::{self, StreamExt as _};
use serde::Serialize;
use testkit::OwnedDir;
use tokio::sync::RwLock;
use tokio::time::Instant;

use self::case::Case;
use self::run::{Outcome, Run};
use crate::experiment::{self, FAULTS, Machine, NO_RESULTS, machine, note, publish};

/// How long each case of a short run sends orders.
const SHORT_SECONDS: u64 = 8;

/// A short run shares the machine with other tests, so it sends fewer orders and allows longer pauses.
const SHORT_RATE: u32 = 700;
const SHORT_STOCK: u64 = 50;
const SHORT_GRACE: Duration = Duration::from_secs(2);

/// A control has this many trials, of which one must fail: a fault does not break the sale every time.
const CONTROL_TRIALS: u32 = 4;

/// Injects faults under load and judges the clients' record.
///
/// Each scenario starts its own servers and instances, injects one kind of fault repeatedly, proves that
/// it happened, and checks the clients' record. A control then repeats the fault without the
/// safeguard against it: the sale must lose, oversell or hang. Leaves nothing behind.
///
/// Exit status: 0 every scenario holds and every control fails, 1 not so, 2 could not run, 128 + N ended by signal N.
#[derive(Clone, Debug, Args)]
pub struct ChaosOptions {
    /// Load of each scenario, in seconds: 5 to 3600.
    #[arg(long, env = "CHAOS_SECONDS", default_value = "24", value_name = "N",
          value_parser = RangedU64ValueParser::<u64>::new().range(5..=3600))]
    pub seconds: u64,

    /// Seed for the times and kinds of faults [default: random].
    #[arg(long, env = "CHAOS_SEED", value_name = "N")]
    pub seed: Option<u64>,

    /// Only these scenarios, separated by commas.
    #[arg(long, value_name = "SCENARIO", value_delimiter = ',', hide_possible_values = true,
          value_parser = PossibleValuesParser::new(cases::names()))]
    pub only: Vec<String>,

    /// List the scenarios and their controls, and exit.
    #[arg(long)]
    pub list: bool,

    /// A few scenarios of eight seconds with fewer orders: a smoke test.
    #[arg(long)]
    pub short: bool,

    /// Scenarios that run in parallel: 1 to 16.
    #[arg(long, env = "CHAOS_JOBS", default_value = "3", value_name = "N",
          value_parser = RangedU64ValueParser::<usize>::new().range(1..=16))]
    pub jobs: usize,

    /// Directory for results.json, and the history and the logs of failed runs; created if missing.
    #[arg(long, default_value = "target/chaos", value_name = "DIR")]
    pub out: PathBuf,
}

#[derive(Default, Serialize)]
struct Results {
    seed: u64,
    machine: Machine,
    /// How long each scenario sent orders.
    load_seconds: u64,
    seconds: f64,
    cases: Vec<CaseResult>,
}

/// The result of a scenario or a control.
#[derive(Serialize)]
struct CaseResult {
    #[serde(flatten)]
    case: Case,
    trials: u32,
    /// The outcome of the last trial, or why it could not run.
    run: Result<Outcome, String>,
}

/// The verdict on a case or the suite, the worst at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    /// The scenario held, or the control failed.
    Good,
    /// It could not run.
    Unknown,
    /// The scenario failed, or the control held.
    Bad,
}

impl CaseResult {
    fn verdict(&self) -> Verdict {
        match &self.run {
            Ok(outcome) if self.case.is_good(outcome) => Verdict::Good,
            Ok(_) => Verdict::Bad,
            Err(_) => Verdict::Unknown,
        }
    }
}

impl Results {
    fn verdict(&self) -> Verdict {
        self.cases.iter().map(CaseResult::verdict).max().unwrap_or(Verdict::Good)
    }
}

/// Runs the scenarios, prints the tables, and writes results.json.
///
/// The exit code is 0 if every scenario holds and every control fails, 1 if not, 2 if some could not
/// run, and 128 + N if signal N ended the suite.
pub async fn run(options: ChaosOptions) -> ExitCode {
    experiment::run("chaos", async |dir| Box::pin(suite(&options, dir)).await).await
}

async fn suite(options: &ChaosOptions, dir: &OwnedDir) -> Result<ExitCode> {
    let cases = choose(options);
    if options.list {
        let lines = cases.iter().map(Case::in_words);
        let _ = write!(io::stdout(), "{}", lines.collect::<String>());
        return Ok(ExitCode::SUCCESS);
    }
    // both ends of ten thousand silent connections are files of this machine; a failure is ignored
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let began = Instant::now();
    let mut results = Results {
        seed: options.seed.unwrap_or_else(loadtest::any_seed),
        machine: machine(),
        load_seconds: if options.short { SHORT_SECONDS } else { options.seconds },
        ..Results::default()
    };
    let Results { seed, load_seconds, .. } = results;
    note(&format!("seed {seed}: {} cases of {load_seconds} s and more", cases.len()));
    results.cases = run_all(options, &cases, dir, &results).await;
    results.seconds = began.elapsed().as_secs_f64();
    publish(&options.out, &results, &table::text(&results))?;
    Ok(match results.verdict() {
        Verdict::Good => ExitCode::SUCCESS,
        Verdict::Bad => FAULTS.into(),
        Verdict::Unknown => NO_RESULTS.into(),
    })
}

fn choose(options: &ChaosOptions) -> Vec<Case> {
    let mut all = cases::all();
    if options.only.is_empty() {
        all.retain(|case| !options.short || cases::SHORT.contains(&case.name));
    } else {
        all.retain(|case| options.only.iter().any(|name| name == case.name));
    }
    if options.short {
        for case in &mut all {
            case.rounds = 1;
            case.goes_on_within += SHORT_GRACE;
            case.rate = SHORT_RATE;
            if !case.conduct.is_empty() {
                case.stock = SHORT_STOCK;
            }
        }
    }
    all
}

/// Runs the cases, some in parallel, and returns their results in the same order.
async fn run_all(
    options: &ChaosOptions,
    cases: &[Case],
    dir: &OwnedDir,
    &Results { seed, load_seconds, .. }: &Results,
) -> Vec<CaseResult> {
    let lasts = Duration::from_secs(load_seconds);
    // a case that must run alone locks the machine for itself
    let machine = RwLock::new(());
    let result = async |(number, case): (usize, &Case)| {
        let _alone = if case.alone { Some(machine.write().await) } else { None };
        let _beside = if case.alone { None } else { Some(machine.read().await) };
        let most = if case.control.is_some() { CONTROL_TRIALS } else { 1 };
        let mut trials = 0;
        loop {
            trials += 1;
            // the seed of the suite repeats a scenario with its controls
            let seed = seed.wrapping_add(u64::from(trials) * 1_000_000_007);
            let out = &options.out.join(case.title().replace(' ', "-"));
            // boxed because it is large
            let run = Box::pin(Run { case, lasts: case.lasts(lasts), seed, out }.run(dir)).await;
            let run = run.map_err(|error| format!("{error:#}"));
            let mut result = CaseResult { case: *case, trials, run };
            let is_good = result.verdict() == Verdict::Good;
            if let Ok(outcome) = &mut result.run
                && is_good
                && std::fs::remove_dir_all(out).is_ok()
            {
                outcome.kept = None;
            }
            note(&table::progress(&result));
            if is_good || trials == most {
                return (number, result);
            }
        }
    };
    let results = stream::iter(cases.iter().enumerate()).map(result).buffer_unordered(options.jobs);
    results.collect::<BTreeMap<_, _>>().await.into_values().collect()
}
