//! The flags, and the suite from start to end.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use clap::builder::{BoolishValueParser, RangedU64ValueParser};
use flash_sale::error_chain::ErrorChain;
use testkit::OwnedDir;

use super::results::{Results, Verdict};
use super::scenario::Scenario;
use super::scenarios;
use super::schedule::run_all;
use super::table;
use crate::error::LabError;
use crate::signals::{self, ENDINGS, Signal, Signals};

/// Injects faults under load and judges the clients' record.
///
/// Each scenario starts its own servers and instances, injects one kind of fault repeatedly, proves that
/// it happened, and checks the clients' record. A control then repeats the fault without the
/// safeguard against it: the sale must lose, oversell or hang. Leaves nothing behind.
///
/// Exit status: 0 every scenario holds and every control fails, 1 not so, 2 could not run, 128 + N ended
/// by signal N.
#[derive(Clone, Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags, each a switch of its own")]
pub struct ChaosOptions {
    /// Load of each scenario, in seconds: 5 to 3600.
    #[arg(long, env = "CHAOS_SECONDS", default_value = "24", value_name = "N",
          value_parser = RangedU64ValueParser::<u64>::new().range(5..=3600))]
    pub seconds: u64,

    /// Seed for the times and kinds of faults [default: random].
    #[arg(long, env = "CHAOS_SEED", value_name = "N")]
    pub seed: Option<u64>,

    /// Only these scenarios, separated by commas.
    #[arg(long, value_name = "SCENARIO", value_delimiter = ',')]
    pub only: Vec<String>,

    /// List the scenarios and their controls, and exit.
    #[arg(long)]
    pub list: bool,

    /// A few scenarios of eight seconds with fewer orders: a smoke test.
    #[arg(long, value_parser = BoolishValueParser::new())]
    pub short: bool,

    /// Scenarios that run in parallel: 1 to 16.
    #[arg(long, env = "CHAOS_JOBS", default_value = "3", value_name = "N",
          value_parser = RangedU64ValueParser::<usize>::new().range(1..=16))]
    pub jobs: usize,

    /// Skip the controls.
    #[arg(long)]
    pub no_controls: bool,

    /// Keep the history and the logs of every run, and not only of failed ones.
    #[arg(long)]
    pub keep: bool,

    /// Directory for results.json and the kept files; created if missing.
    #[arg(long, default_value = "target/chaos", value_name = "DIR")]
    pub out: PathBuf,
}

const FAULTS: u8 = 1;
const NO_RESULTS: u8 = 2;

/// Runs the scenarios, prints the tables, and writes results.json.
///
/// The exit code is 0 if every scenario holds and every control fails, 1 if not, 2 if some could not
/// run, and 128 + N if signal N ended the suite.
pub async fn run(options: ChaosOptions) -> ExitCode {
    match suite(&options).await {
        Ok(code) => code,
        Err(error) => {
            note(&format!("lab chaos: {}", ErrorChain(&error)));
            NO_RESULTS.into()
        }
    }
}

async fn suite(options: &ChaosOptions) -> Result<ExitCode, LabError> {
    let scenarios = choose(options)?;
    if options.list {
        let _ = write!(io::stdout(), "{}", list(&scenarios));
        return Ok(ExitCode::SUCCESS);
    }
    let mut signals =
        Signals::listen(&ENDINGS).map_err(LabError::system("signals cannot be listened to"))?;
    // both ends of ten thousand silent connections are files of this machine; best effort
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let dir =
        OwnedDir::create().map_err(LabError::system("no temporary directory could be made"))?;
    let ended = tokio::select! {
        results = run_all(options, scenarios, &dir) => Ok(results),
        ending = signals.next() => Err(ending),
    };
    // the dropped runs end their processes; the directory can go when they are gone
    tokio::select! {
        removed = dir.remove() => removed.map_err(LabError::system("not everything is stopped"))?,
        // the user does not want to wait: the rest ends by itself a little later
        _ = signals.next() => {}
    }
    let results = match ended {
        Ok(results) => results,
        Err(ending) => return Ok(interrupted(ending)),
    };
    let text = table::text(&results);
    // standard output may be closed: the files remain
    let _ = write!(io::stdout(), "{text}");
    write(&options.out, &results, &text)
        .map_err(LabError::system("the results could not be written"))?;
    note(&format!("results.json and tables.md are in {}", options.out.display()));
    Ok(match results.verdict() {
        Verdict::Good => ExitCode::SUCCESS,
        Verdict::Bad => FAULTS.into(),
        Verdict::Unknown => NO_RESULTS.into(),
    })
}

fn interrupted(ending: Signal) -> ExitCode {
    note("lab chaos: stopped; nothing is left of it");
    signals::exit_code(ending).into()
}

fn choose(options: &ChaosOptions) -> Result<Vec<Scenario>, LabError> {
    let mut all = scenarios::all();
    if let Some(name) =
        options.only.iter().find(|name| all.iter().all(|scenario| scenario.name != name.as_str()))
    {
        return Err(LabError::NoSuchScenario(name.clone()));
    }
    if options.only.is_empty() {
        all.retain(|scenario| !options.short || scenarios::SHORT.contains(&scenario.name));
    } else {
        all.retain(|scenario| options.only.iter().any(|name| name == scenario.name));
    }
    if options.no_controls {
        for scenario in &mut all {
            scenario.controls.clear();
        }
    }
    Ok(all)
}

fn list(scenarios: &[Scenario]) -> String {
    let line = |scenario: &Scenario| {
        let controls = scenario.controls.iter().map(|control| {
            format!("    without {}: breaks {}\n", control.without, control.breaks.join(" or "))
        });
        format!("{}: {}\n{}", scenario.name, scenario.fault, controls.collect::<String>())
    };
    scenarios.iter().map(line).collect()
}

fn write(out: &Path, results: &Results, text: &str) -> io::Result<()> {
    std::fs::create_dir_all(out)?;
    std::fs::write(out.join("results.json"), serde_json::to_vec_pretty(results)?)?;
    std::fs::write(out.join("tables.md"), text)
}

/// Prints progress to standard error: standard output has the results.
pub(super) fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}
