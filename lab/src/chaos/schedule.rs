//! Runs the scenarios, some in parallel, each before its controls.

use std::io::{self, Write as _};
use std::time::Duration;

use flash_sale::error_chain::ErrorChain;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use testkit::OwnedDir;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::options::ChaosOptions;
use super::results::{ControlResult, Results, ScenarioResult};
use super::run::{Outcome, Plan};
use super::scenario::{Control, Scenario};
use super::table;

/// How long each scenario of a short run sends orders.
const SHORT_SECONDS: u64 = 8;

/// A short run shares the machine with other tests: it sends fewer orders and allows longer pauses.
const SHORT_RATE: u32 = 700;
const SHORT_GRACE: Duration = Duration::from_secs(2);

/// How long a control sends orders at most: one failure is enough.
const CONTROL_LASTS: Duration = Duration::from_secs(16);

/// How often a control may run: a fault does not break the sale every time.
const CONTROL_ATTEMPTS: u32 = 4;

/// What all runs of a suite share.
struct Suite<'a> {
    options: &'a ChaosOptions,
    dir: &'a OwnedDir,
    seed: u64,
    lasts: Duration,
    /// A permit for each run in parallel.
    places: Semaphore,
}

/// Runs all scenarios and their controls.
pub(super) async fn run_all(
    options: &ChaosOptions,
    scenarios: Vec<Scenario>,
    dir: &OwnedDir,
) -> Results {
    let began = Instant::now();
    let seed = options.seed.unwrap_or_else(loadtest::any_seed);
    let load_seconds = if options.short { SHORT_SECONDS } else { options.seconds };
    note(&format!(
        "seed {seed}: {} scenarios, each sends orders for {load_seconds} s, {} at a time",
        scenarios.len(),
        options.jobs
    ));
    let suite = Suite {
        options,
        dir,
        seed,
        lasts: Duration::from_secs(load_seconds),
        places: Semaphore::new(options.jobs),
    };
    let order: Vec<_> = scenarios.iter().map(|scenario| scenario.name).collect();
    let mut running: FuturesUnordered<_> =
        scenarios.iter().map(|scenario| suite.scenario(scenario)).collect();
    let mut results = Vec::new();
    while let Some(result) = running.next().await {
        results.push(result);
    }
    results.sort_by_key(|result| order.iter().position(|name| *name == result.name));
    Results {
        seed,
        build: if cfg!(debug_assertions) { "debug" } else { "release" },
        load_seconds,
        seconds: began.elapsed().as_secs_f64(),
        scenarios: results,
    }
}

impl Suite<'_> {
    async fn scenario(&self, scenario: &Scenario) -> ScenarioResult {
        let run = self.run(scenario, None, 0).await;
        let mut controls = Vec::new();
        for control in &scenario.controls {
            controls.push(self.control(scenario, control).await);
        }
        ScenarioResult { name: scenario.name, fault: scenario.fault, run, controls }
    }

    async fn control(&self, scenario: &Scenario, control: &Control) -> ControlResult {
        let mut attempts = 0;
        let run = loop {
            attempts += 1;
            let run = self.run(scenario, Some(control), attempts).await;
            let failed = run.as_ref().is_ok_and(|outcome| outcome.broke(control.breaks));
            if failed || attempts == CONTROL_ATTEMPTS {
                break run;
            }
        };
        let breaks = control.breaks.to_vec();
        ControlResult { without: control.without, breaks, run, attempts }
    }

    async fn run(
        &self,
        scenario: &Scenario,
        control: Option<&Control>,
        attempt: u32,
    ) -> Result<Outcome, String> {
        let permits = if scenario.alone { self.options.jobs } else { 1 };
        let permits = u32::try_from(permits).unwrap_or(1);
        let _place = self.places.acquire_many(permits).await.map_err(|error| error.to_string())?;
        let name = match control {
            None => scenario.name.to_owned(),
            Some(control) => {
                format!("{} without {}", scenario.name, control.without.replace([' ', '/'], "-"))
            }
        };
        let run = control.map_or(&scenario.run, |control| &control.run);
        let (wanted, rounds) = match control {
            _ if self.options.short => (self.lasts, 1),
            Some(_) => (self.lasts.min(CONTROL_LASTS), 2),
            None => (self.lasts, scenario.rounds),
        };
        let mut run = *run;
        if self.options.short {
            run.goes_on_within += SHORT_GRACE;
            run.setup.load.rate = SHORT_RATE;
        }
        let may_hang = control.is_some_and(|control| control.breaks.contains(&"I5"));
        let plan = Plan {
            name: &name,
            run: &run,
            lasts: if may_hang {
                run.lasts_hanging(wanted, rounds)
            } else {
                run.lasts(wanted, rounds)
            },
            may_hang,
            seed: self.seed.wrapping_add(u64::from(attempt) * 1_000_000_007),
            out: &self.options.out.join(name.replace(' ', "-")),
        };
        // boxed, as it is large
        let result = Box::pin(plan.run(self.dir)).await;
        let mut result = result.map_err(|error| ErrorChain(&error).to_string());
        let good = match (&result, control) {
            (Ok(outcome), None) => outcome.findings.is_empty(),
            (Ok(outcome), Some(control)) => outcome.broke(control.breaks),
            (Err(_), _) => false,
        };
        if let Ok(outcome) = &mut result
            && good
            && !self.options.keep
        {
            plan.forget(outcome);
        }
        if let Ok(outcome) = &mut result {
            // the suite's seed repeats the scenario with its controls
            outcome.seed = self.seed;
        }
        note(&progress(&name, good, control.is_some(), &result));
        result
    }
}

/// Prints progress to standard error: standard output has the results.
pub(super) fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

fn progress(name: &str, good: bool, is_control: bool, result: &Result<Outcome, String>) -> String {
    let outcome = match result {
        Ok(outcome) => outcome,
        Err(error) => return format!("{name}: could not be run: {error}"),
    };
    let verdict = match (good, is_control) {
        (true, false) => "holds".to_owned(),
        (false, false) => format!("BROKEN: {}", table::broken(outcome)),
        (true, true) => format!("fails as it must: {}", table::broken(outcome)),
        (false, true) => format!("does not fail as it must ({})", table::broken(outcome)),
    };
    let facts = outcome.facts.iter().map(|(what, times)| format!("{times} {what}"));
    format!(
        "{name}: {verdict}; {} times in {:.0} s ({}); {} of {} orders acknowledged, longest pause {:.1} of {:.1} s",
        outcome.times,
        outcome.seconds,
        facts.collect::<Vec<_>>().join(", "),
        outcome.counts.acknowledged,
        outcome.counts.requests,
        outcome.counts.longest_pause_seconds,
        outcome.bound_seconds,
    )
}
