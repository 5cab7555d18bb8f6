//! The `chaos` command: injects every fault, repeatedly, while orders are sent, and judges what the
//! clients saw. Then it repeats each fault without the safeguard against it, which must fail.
//!
//! # Layout
//! - `options`: the flags
//! - `case`: a fault and what must hold under it, as data; `cases`: all of them, and what each fault does
//! - `run`: one run and its outcome; `scene`: its processes, and what is waited for
//! - `etcd`, `clients`: requests past the service, hostile clients
//! - `table`: the results as text
//!
//! A new fault is a function of a [`Scene`](scene::Scene) and a [`Case`] in one of the files of `cases`.

mod case;
mod cases;
mod clients;
mod etcd;
mod options;
mod run;
mod scene;
mod table;

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use flash_sale::error_chain::ErrorChain;
use serde::Serialize;
use testkit::OwnedDir;
use tokio::time::Instant;

use self::case::Case;
pub use self::options::ChaosOptions;
use self::run::{Outcome, Run};
use crate::error::LabError;
use crate::experiment::{self, FAULTS, Machine, NO_RESULTS, Trials, note, publish};

/// How long each case of a short run sends orders.
const SHORT_SECONDS: u64 = 8;

/// A short run shares the machine with other tests: it sends fewer orders and allows longer pauses.
const SHORT_RATE: u32 = 700;
const SHORT_GRACE: Duration = Duration::from_secs(2);

/// How long a control sends orders at most: one failure is enough.
const CONTROL_LASTS: Duration = Duration::from_secs(16);

/// A control has so many trials, of which one must fail: a fault does not break the sale every time.
const CONTROL_TRIALS: u32 = 4;

/// The results of the suite.
#[derive(Debug, Default, Serialize)]
struct Results {
    seed: u64,
    machine: Machine,
    /// How long each scenario sent orders.
    load_seconds: u64,
    /// How long the suite took.
    seconds: f64,
    cases: Vec<CaseResult>,
}

/// The result of a scenario or a control.
#[derive(Debug, Serialize)]
struct CaseResult {
    name: &'static str,
    fault: &'static str,
    /// What is missing in a control.
    without: Option<&'static str>,
    /// The invariants of which a control must break one.
    breaks: &'static [&'static str],
    /// How many trials there were.
    trials: u32,
    /// The outcome of the last one, or why it could not run.
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
            Ok(outcome) if outcome.is_good(self.without.map(|_| self.breaks)) => Verdict::Good,
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

async fn suite(options: &ChaosOptions, dir: &OwnedDir) -> Result<ExitCode, LabError> {
    let cases = choose(options)?;
    if options.list {
        let lines = cases.iter().map(Case::in_words);
        let _ = write!(io::stdout(), "{}", lines.collect::<String>());
        return Ok(ExitCode::SUCCESS);
    }
    // both ends of ten thousand silent connections are files of this machine; best effort
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let began = Instant::now();
    let load_seconds = if options.short { SHORT_SECONDS } else { options.seconds };
    let seed = options.seed.unwrap_or_else(loadtest::any_seed);
    let mut results =
        Results { seed, machine: Machine::this(), load_seconds, ..Results::default() };
    note(&format!("seed {seed}: {} cases of {load_seconds} s and more", cases.len()));
    let suite = Suite { options, dir, seed, lasts: Duration::from_secs(load_seconds) };
    let (alone, beside): (Vec<_>, Vec<_>) = cases.iter().partition(|case| case.alone);
    results.cases = suite.run_all(&beside, options.jobs).await?;
    results.cases.extend(suite.run_all(&alone, 1).await?);
    let place = |result: &CaseResult| {
        cases.iter().position(|case| (case.name, case.without()) == (result.name, result.without))
    };
    results.cases.sort_by_key(place);
    results.seconds = began.elapsed().as_secs_f64();
    publish(&options.out, &results, &table::text(&results), &[])?;
    Ok(match results.verdict() {
        Verdict::Good => ExitCode::SUCCESS,
        Verdict::Bad => FAULTS.into(),
        Verdict::Unknown => NO_RESULTS.into(),
    })
}

fn choose(options: &ChaosOptions) -> Result<Vec<Case>, LabError> {
    let mut all = cases::all();
    let is_unknown = |name: &&String| all.iter().all(|case| case.name != name.as_str());
    if let Some(name) = options.only.iter().find(is_unknown) {
        return Err(LabError::NoSuchScenario(name.clone()));
    }
    if options.only.is_empty() {
        all.retain(|case| !options.short || cases::SHORT.contains(&case.name));
    } else {
        all.retain(|case| options.only.iter().any(|name| name == case.name));
    }
    all.retain(|case| case.control.is_none() || !options.no_controls);
    Ok(all)
}

/// What all runs of a suite share.
struct Suite<'a> {
    options: &'a ChaosOptions,
    dir: &'a OwnedDir,
    seed: u64,
    lasts: Duration,
}

impl Suite<'_> {
    async fn run_all(&self, cases: &[&Case], jobs: usize) -> Result<Vec<CaseResult>, LabError> {
        let count = u32::try_from(cases.len()).unwrap_or(u32::MAX);
        let trials = Trials::new("case", count, jobs, self.seed);
        let worker = async |done: &mut Vec<_>| {
            while let Some(next) = trials.next() {
                done.push(self.case(cases[next.number]).await);
            }
            Ok(())
        };
        Ok(trials.share(usize::MAX, worker).await?.0)
    }

    async fn case(&self, case: &Case) -> CaseResult {
        let most = if case.control.is_some() { CONTROL_TRIALS } else { 1 };
        let &Case { name, fault, .. } = case;
        let breaks = case.control.map_or(&[][..], |control| control.breaks);
        let mut trials = 0;
        loop {
            trials += 1;
            let run = self.trial(case, trials).await;
            let result = CaseResult { name, fault, without: case.without(), breaks, trials, run };
            if result.verdict() == Verdict::Good || trials == most {
                return result;
            }
        }
    }

    async fn trial(&self, case: &Case, trial: u32) -> Result<Outcome, String> {
        let mut case = *case;
        let (wanted, rounds) = match case.control {
            _ if self.options.short => (self.lasts, 1),
            Some(_) => (self.lasts.min(CONTROL_LASTS), 2),
            None => (self.lasts, case.rounds),
        };
        if self.options.short {
            case.goes_on_within += SHORT_GRACE;
            case.setup.load.rate = SHORT_RATE;
        }
        let run = Run {
            lasts: case.lasts(wanted, rounds),
            seed: self.seed.wrapping_add(u64::from(trial) * 1_000_000_007),
            out: &self.options.out.join(case.title().replace(' ', "-")),
            case,
        };
        // boxed, as it is large
        let outcome = Box::pin(run.run(self.dir)).await;
        let mut outcome = outcome.map_err(|error| ErrorChain(&error).to_string());
        let good = outcome.as_ref().is_ok_and(|it| it.is_good(case.control.map(|it| it.breaks)));
        if let Ok(outcome) = &mut outcome {
            // the suite's seed repeats the scenario with its controls
            outcome.seed = self.seed;
            if good && !self.options.keep && std::fs::remove_dir_all(run.out).is_ok() {
                outcome.kept = None;
            }
        }
        note(&table::progress(&case, good, &outcome));
        outcome
    }
}
