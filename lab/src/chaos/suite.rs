//! The suite from start to end.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use flash_sale::error_chain::ErrorChain;
use testkit::OwnedDir;

use super::options::ChaosOptions;
use super::results::{Results, Verdict};
use super::scenario::Scenario;
use super::scenarios;
use super::schedule::{note, run_all};
use super::table;
use crate::error::LabError;
use demo::signals::{self, ENDINGS, Signal, Signals};

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
