//! Runs the load test.

use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Deserialize;
use testkit::child::Child;
use testkit::dir::OwnedDir;
use testkit::server::tail;

use super::error::DemoError;
use super::instance::is_setting;
use super::options::DemoOptions;
use crate::LOADTEST;

/// The load test bounds each order; this is for what it did not think of.
const TIMEOUT: Duration = Duration::from_hours(1);

/// How long it may take to end when asked to.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// More connections at once than this tell nothing new, and small machines refuse them.
const CONCURRENCY_LIMIT: u64 = 2000;

/// What a process keeps open besides the connections of the buyers.
const OTHER_FILES: u64 = 56;

/// What the load test found out; it tells more, but not to us.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Report {
    /// Whether every unit was sold exactly once.
    pub(super) pass: bool,
    /// `PASS: ` or `FAIL: ` and why, in one line.
    pub(super) verdict: String,
    /// Units that buyers were told they got.
    pub(super) acknowledged_units: u64,
    /// Buyers that were told that nothing is left.
    pub(super) sold_out: u64,
    /// Buyers that gave up without an answer.
    pub(super) unknown: u64,
}

/// Lets us and all that we start open as many files as the buyers need; some systems begin with 256.
/// Returns for how many buyers at once that is enough.
pub(super) fn make_room(buyers: u64) -> u64 {
    let wanted = buyers.min(CONCURRENCY_LIMIT) + OTHER_FILES;
    let limit = getrlimit(Resource::Nofile);
    let Some(current) = limit.current.filter(|current| *current < wanted) else {
        return wanted - OTHER_FILES;
    };
    let raised = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
    let allowed = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), ..limit });
    let files = if allowed.is_ok() { raised } else { current };
    files.saturating_sub(OTHER_FILES).max(1)
}

/// A load test that runs.
#[derive(Debug)]
pub(super) struct Load {
    child: Child,
}

impl Load {
    /// Starts it; what it says to people goes to our standard error.
    ///
    /// # Errors
    /// When the system refuses.
    pub(super) fn start(
        program: &Path,
        options: &DemoOptions,
        concurrency: u64,
        urls: &[String],
        dir: &OwnedDir,
    ) -> Result<Self, DemoError> {
        let mut args = vec![LOADTEST.to_owned()];
        let flags = [
            ("--requests", options.requests),
            ("--concurrency", concurrency),
            ("--stock", options.stock),
        ]
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value.to_string()]);
        args.extend(flags);
        args.extend(["--alone", "--json"].map(str::to_owned));
        args.extend(urls.iter().cloned());
        let log = dir.path().join("loadtest.json");
        let child = Child::start_talking(program, args, dir, &log, STOP_GRACE, is_setting);
        Ok(Self { child: child.map_err(failed)? })
    }

    /// Waits for its report.
    ///
    /// # Errors
    /// When it ends without one.
    pub(super) async fn report(mut self) -> Result<Report, DemoError> {
        let status = tokio::time::timeout(TIMEOUT, self.child.wait())
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(failed)?;
        let log = self.child.log();
        let report = std::fs::read(log).map_err(failed)?;
        // its other codes mean that there was nothing to judge; it has said why
        match (status.code(), serde_json::from_slice(&report)) {
            (Some(0 | 1), Ok(report)) => Ok(report),
            (Some(0 | 1), Err(error)) => Err(DemoError::NoVerdict(format!(
                ": its report cannot be read ({error}):\n{}",
                tail(log)
            ))),
            _ => Err(DemoError::NoVerdict(format!(" ({status})"))),
        }
    }
}

fn failed(source: io::Error) -> DemoError {
    DemoError::System { what: "the load test could not be run", source }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the usual number of buyers fits, and a million of them share the connections.
    #[test]
    fn room_for_buyers() {
        assert_eq!(make_room(1), 1);
        assert!((1..=CONCURRENCY_LIMIT).contains(&make_room(1_000_000)));
    }
}
