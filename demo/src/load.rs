//! The load test, in a process of its own, so that it shares no thread with the demo.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use loadtest::Report;
use testkit::server::tail;
use testkit::wait::in_time;
use testkit::{Child, OwnedDir, Program};

use crate::cluster::is_setting;

/// A last resort: the load test bounds each order itself.
pub const TIMEOUT: Duration = Duration::from_hours(1);

/// More than any load can sell.
pub const ENDLESS_STOCK: u64 = 1_000_000_000;

/// How long it may take to end when asked to.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// A load test that runs in a process of its own.
#[derive(Debug)]
pub struct Load(Child);

impl Load {
    /// Starts it with this program, and a log in `dir`.
    pub fn start(program: &Path, dir: &OwnedDir, args: &[String]) -> Result<Self> {
        let log = dir.path().join("loadtest.log");
        // of an earlier load
        let _ = std::fs::remove_file(&log);
        let args =
            ["loadtest"].into_iter().chain(args.iter().map(String::as_str)).chain(["--json"]);
        let program = Program::new(program, dir, &log, STOP_GRACE);
        let program = Program { without_env: is_setting, ..program };
        Ok(Self(program.start(args).context("the load test could not be started")?))
    }

    /// Waits for its report.
    ///
    /// # Errors
    /// When it ends without one, or not within `limit`.
    pub async fn report(mut self, limit: Duration) -> Result<Report> {
        let status = in_time("the load test ends", limit, self.0.wait()).await?;
        let log = self.0.log();
        let said = std::fs::read_to_string(log).context("the load test's log is not there")?;
        // messages come before it
        let report = said.find("{\n").and_then(|start| serde_json::from_str(&said[start..]).ok());
        // the other codes mean that there was nothing to judge; its log has the reason
        match (status.code(), report) {
            (Some(0 | 1), Some(report)) => Ok(report),
            _ => bail!(
                "the load test ended without a report ({status}); the end of its log:\n{}",
                tail(log)
            ),
        }
    }
}
