//! What the bench, the fault suite, the arena and the articles share.
//!
//! - [`run`]: an experiment from start to end, with its directory, signals and exit code
//! - [`Trials`], [`rounds`]: the same case again and again, side by side or in turn with others
//! - [`machine()`], [`Spread`], [`quantile`]: the source of the figures, and their summary
//! - [`fault`], [`compact`]: why a load does not count; preparing etcd for the next load
//! - [`rows`], [`figure`], [`value_name`], [`publish`]: the results as tables and files

mod machine;
mod stats;
mod table;
mod trials;

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use etcd_client::{CompactionOptions, ResponseHeader};
use flash_sale::logging;
use loadtest::Report;
use serde::Serialize;
use testkit::signals::{self, Signals};
use testkit::{OwnedDir, PrivateEtcd};

pub(crate) use self::machine::{Machine, machine};
pub(crate) use self::stats::{Spread, float, quantile};
pub(crate) use self::table::{figure, rows, section, value_name};
pub(crate) use self::trials::{Trials, random, rounds};

/// Exit status: there are results, and some are not as they must be.
pub(crate) const FAULTS: u8 = 1;

/// Exit status: there are no results.
pub(crate) const NO_RESULTS: u8 = 2;

/// Runs the experiment `name` with a directory for its servers, and removes the directory at the end.
///
/// Exit codes: the experiment's own, 2 for an error, 128 + N after signal N.
pub(crate) async fn run(
    name: &str,
    experiment: impl AsyncFnOnce(&OwnedDir) -> Result<ExitCode>,
) -> ExitCode {
    let ended = async {
        let mut signals = Signals::listen().context("signals cannot be listened to")?;
        let dir = OwnedDir::create().context("no temporary directory could be made")?;
        let result = tokio::select! {
            result = experiment(&dir) => result,
            signal = signals.next() => {
                note(&format!("lab {name}: stopped; nothing is left of it"));
                Ok(signals::exit_code(signal).into())
            }
        };
        // the drop ends the processes; the directory can be removed when they are gone
        tokio::select! {
            removed = dir.remove() => removed.context("not everything is stopped")?,
            // the user does not want to wait: the rest ends by itself a little later
            _ = signals.next() => {}
        }
        result
    };
    ended.await.unwrap_or_else(|error| {
        note(&format!("lab {name}: {error:#}"));
        NO_RESULTS.into()
    })
}

/// Progress, on standard error: standard output has the results.
pub(crate) fn note(text: &str) {
    logging::say(text);
}

/// Prints the text, and writes it to tables.md in `out`, beside results.json.
pub(crate) fn publish(out: &Path, results: &impl Serialize, text: &str) -> Result<()> {
    // standard output may be closed: the files remain
    let _ = write!(io::stdout(), "{text}");
    write(out, results, text).context("the results could not be written")?;
    note(&format!("the results are in {}", out.display()));
    Ok(())
}

/// The same without printing, for a run that may be interrupted later.
pub(crate) fn write(out: &Path, results: &impl Serialize, text: &str) -> io::Result<()> {
    std::fs::create_dir_all(out)?;
    std::fs::write(out.join("results.json"), serde_json::to_vec_pretty(results)?)?;
    std::fs::write(out.join("tables.md"), text)
}

/// Compacts everything but the latest state, and returns its revision.
pub(crate) async fn compact(etcd: &PrivateEtcd) -> Result<i64> {
    let mut client = etcd.root().await?;
    let put = client.put("lab/compaction", "", None).await?;
    let revision = put.header().map_or(0, ResponseHeader::revision);
    client.compact(revision, Some(CompactionOptions::new().with_physical())).await?;
    Ok(revision)
}

/// Why a load does not count; `None` if it counts.
pub(crate) fn fault(load: &Report) -> Option<String> {
    let settled = load.tally.acknowledged + load.tally.sold_out + load.tally.held_out;
    if !load.pass {
        Some(load.verdict.clone())
    } else if usize::try_from(settled) != Ok(load.requests) {
        Some(format!("{settled} of {} requests were answered", load.requests))
    } else {
        None
    }
}

pub(crate) fn handovers(load: &Report) -> Option<f64> {
    (load.duration_seconds > 0.0).then(|| float(load.handovers) / load.duration_seconds)
}
