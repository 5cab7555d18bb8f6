//! The load test, in a separate process, so that it shares no thread with the demo.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use loadtest::Report;
use testkit::server::tail;
use testkit::wait::in_time;
use testkit::{Child, OwnedDir, Program};

use testkit::cluster::is_setting;

/// A last resort: the load test itself limits the time of each order.
pub(crate) const TIMEOUT: Duration = Duration::from_hours(1);

/// More units than any load can sell.
pub(crate) const ENDLESS_STOCK: u64 = 1_000_000_000;

/// How long the load test may take to end when it is asked to.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// A load test that runs in a separate process.
#[derive(Debug)]
pub(crate) struct Load {
    child: Child,
    output: PathBuf,
}

impl Load {
    /// Starts it with this program, and a log in `dir`.
    pub(crate) fn start(program: &Path, dir: &OwnedDir, args: &[String]) -> Result<Self> {
        let [log, output] = ["loadtest.log", "loadtest.json"].map(|name| dir.path().join(name));
        // remove the files of an earlier load
        for file in [&log, &output] {
            let _ = std::fs::remove_file(file);
        }
        let args =
            ["loadtest"].into_iter().chain(args.iter().map(String::as_str)).chain(["--json"]);
        let program = Program::new(program, dir, &log, STOP_GRACE);
        let program = Program { output: Some(&output), without_env: is_setting, ..program };
        let child = program.start(args).context("the load test could not be started")?;
        Ok(Self { child, output })
    }

    /// Waits for its report.
    ///
    /// # Errors
    /// When it ends without one, or not within `limit`.
    pub(crate) async fn report(mut self, limit: Duration) -> Result<Report> {
        let status = in_time("the load test ends", limit, self.child.wait()).await?;
        let report = std::fs::read(&self.output).context("the load test's report is not there")?;
        let report = serde_json::from_slice(&report).ok();
        // other exit codes mean that there was nothing to judge; the log has the reason
        match (status.code(), report) {
            (Some(0 | 1), Some(report)) => Ok(report),
            _ => bail!(
                "the load test ended without a report ({status}); the end of its log:\n{}",
                tail(self.child.log())
            ),
        }
    }
}
