//! A recorded run, judged again.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use crate::checker::{Limits, judge};
use crate::cli::CheckArgs;
use crate::load::Load;
use crate::record::{self, ReadError, RunLine};
use crate::report::{Asked, Judged, Report};

/// Judges a run that was recorded.
///
/// # Errors
/// The file cannot be read, or is no whole run.
pub(crate) fn check(args: &CheckArgs) -> Result<Report, CheckError> {
    let path = &args.file;
    let unreadable = |source| CheckError { path: path.clone(), source };
    let file = File::open(path).map_err(|error| unreadable(error.into()))?;
    let recorded = record::read(BufReader::new(file)).map_err(unreadable)?;
    let RunLine { quantity, connections, seed, instances, items, .. } = recorded.run;
    let orders = recorded.histories.iter().flat_map(|history| &history.orders);
    let load = Load::of(orders, recorded.unsettled);
    let limits = Limits { pause: args.longest_pause, order: args.longest_order };
    let judged = items.into_iter().zip(recorded.histories).map(|(item, history)| {
        let verdict = judge(&history, limits);
        Judged { item: item.name, history, verdict }
    });
    let asked = Asked { urls: instances, quantity, connections, seed };
    Ok(Report::new(asked, judged.collect(), load))
}

/// Why a recorded run was not judged.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be judged", .path.display())]
pub(crate) struct CheckError {
    path: PathBuf,
    source: ReadError,
}
