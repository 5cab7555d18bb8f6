//! A process that takes a lock again and again and logs the times: `lab contend`.
//!
//! The times are those of this machine's monotonic clock, which all its processes share.

use std::convert::Infallible;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use testkit::cluster::is_setting;
use testkit::{Child, OwnedDir, Program};
use tokio::time::{Instant, sleep};

use crate::locks::{LockMode, open};

/// The time between a look at the lock and the write that relies on it.
const STEP: Duration = Duration::from_millis(5);

/// The TTL: short, because a takeover waits for it, and the shortest that etcd grants by default.
pub(super) const TTL: Duration = Duration::from_secs(2);

/// The pause after an error.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// The time to end in order: none is needed, because a contender ends by SIGKILL.
const STOP_GRACE: Duration = Duration::from_secs(1);

/// The flags of `lab contend`.
#[derive(Clone, Debug, Args)]
pub struct ContendOptions {
    #[arg(long)]
    lock: LockMode,
    #[arg(long, value_delimiter = ',')]
    lock_at: Vec<String>,
    /// The name of the lock
    #[arg(long)]
    name: String,
    /// How long it holds the lock each time, in milliseconds
    #[arg(long)]
    hold: u64,
    /// It asks for the lock once this file is there
    #[arg(long)]
    after: PathBuf,
}

/// Lines of a contender's log: it has opened a session; it asks for the lock. All other lines are a [`Tenure`], at its grant
/// and at its end.
const OPENED: &str = "opened";
const ASKS: &str = "asks";

/// Takes the lock again and again until the process is killed, and logs each turn.
pub async fn contend(options: ContendOptions) -> ExitCode {
    loop {
        let Err(error) = take_turns(&options).await;
        eprintln!("{error:#}");
        sleep(AGAIN_AFTER).await;
    }
}

/// Takes the lock again and again in one session, until something fails.
async fn take_turns(options: &ContendOptions) -> Result<Infallible> {
    let session = open(options.lock, &options.lock_at, TTL).await?;
    println!("{OPENED}");
    while !options.after.exists() {
        sleep(STEP).await;
    }
    let mut client = session(&options.name)?;
    loop {
        println!("{ASKS}");
        let token = client.lock().await?;
        let token = token.map_or((0, 0), |token| (token.cluster().0, token.revision()));
        let mut tenure = Tenure { granted: now(), ended: None, token };
        println!("{}", serde_json::to_string(&tenure)?);
        let until = Instant::now() + Duration::from_millis(options.hold);
        // each step is like a sale's: look at the lock, think, write
        let mut written = now();
        while Instant::now() < until && !client.is_lost() {
            sleep(STEP).await;
            written = now();
        }
        tenure.ended = Some(written);
        println!("{}", serde_json::to_string(&tenure)?);
        client.unlock().await?;
    }
}

/// The monotonic clock, in nanoseconds.
pub(super) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let of = |part: i64| u64::try_from(part).unwrap_or_default();
    of(time.tv_sec) * 1_000_000_000 + of(time.tv_nsec)
}

/// One grant of a contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tenure {
    pub(super) granted: u64,
    /// The last write under this grant; `None` while the contender holds the lock.
    pub(super) ended: Option<u64>,
    /// The cluster and the number of its token; 0 without one.
    pub(super) token: (u64, i64),
}

pub(super) struct Contender {
    pub(super) child: Child,
}

impl Contender {
    /// Starts a contender. It opens a session, and asks for the lock only after [`begin`](Self::begin).
    pub(super) fn start(
        dir: &OwnedDir,
        lock: LockMode,
        addresses: &[String],
        name: &str,
        hold: Duration,
    ) -> Result<Self> {
        let program = std::env::current_exe()?;
        let log = dir.path().join(format!("contender-{}.log", uuid::Uuid::new_v4().simple()));
        let (lock, hold) = (lock.name(), hold.as_millis());
        let flags = format!("contend --lock {lock} --name {name} --hold {hold}");
        let at = OsString::from(addresses.join(","));
        let places = ["--lock-at".into(), at, "--after".into(), after(&log).into()];
        let args = flags.split(' ').map(OsString::from).chain(places);
        let program = Program::new(&program, dir, &log, STOP_GRACE);
        let program = Program { without_env: is_setting, ..program };
        let child = program.start(args).context("a contender could not be started")?;
        Ok(Self { child })
    }

    /// Lets the contender ask for the lock.
    pub(super) fn begin(&self) -> Result<()> {
        std::fs::write(after(self.child.log()), "").context("a contender cannot begin")
    }

    /// Whether the contender has opened a session.
    pub(super) fn has_opened(&self) -> bool {
        self.said().lines().any(|line| line == OPENED)
    }

    /// How many times the contender has asked for the lock, and its grants.
    pub(super) fn tenures(&self) -> (usize, Vec<Tenure>) {
        tenures(&self.said())
    }

    fn said(&self) -> String {
        // a contender without a log has not started yet
        std::fs::read_to_string(self.child.log()).unwrap_or_default()
    }
}

/// The file whose existence lets the contender with this log ask for the lock.
fn after(log: &Path) -> PathBuf {
    log.with_extension("begin")
}

fn tenures(said: &str) -> (usize, Vec<Tenure>) {
    let mut tenures = Vec::<Tenure>::new();
    // the last line may be incomplete
    for tenure in said.lines().filter_map(|line| serde_json::from_str::<Tenure>(line).ok()) {
        tenures.pop_if(|last| last.granted == tenure.granted);
        tenures.push(tenure);
    }
    (said.lines().filter(|line| *line == ASKS).count(), tenures)
}

/// The longest time, in milliseconds, for which one of two contenders wrote after the other was granted the lock. A contender
/// that still holds the lock counts as writing until `until`.
pub(super) fn longest_overlap(one: &[Tenure], other: &[Tenure], until: [u64; 2]) -> f64 {
    let stale = |earlier: &Tenure, later: &[Tenure], until: u64| {
        let next = later.iter().map(|it| it.granted).filter(|granted| *granted > earlier.granted);
        let end = earlier.ended.unwrap_or(until);
        next.min().map_or(0, |granted| end.saturating_sub(granted))
    };
    let of_one = one.iter().map(|tenure| stale(tenure, other, until[0]));
    let of_other = other.iter().map(|tenure| stale(tenure, one, until[1]));
    millis(of_one.chain(of_other).max().unwrap_or_default())
}

/// Whether a contender was between a grant and its last write at this time.
pub(super) fn held_at(tenures: &[Tenure], at: u64) -> bool {
    tenures.iter().any(|it| it.granted <= at && it.ended.is_none_or(|ended| ended > at))
}

/// How many grants came with a token that another grant had. A smaller token alone is no fault: a stopped process learns late
/// that it was granted the lock.
pub(super) fn repeated_tokens(one: &[Tenure], other: &[Tenure]) -> usize {
    let tokens = one.iter().chain(other).map(|it| it.token).filter(|token| *token != (0, 0));
    let tokens: Vec<_> = tokens.collect();
    tokens.len() - tokens.iter().collect::<std::collections::HashSet<_>>().len()
}

#[allow(clippy::cast_precision_loss, reason = "an hour in nanoseconds is still exact")]
pub(super) fn millis(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an overlap lasts from the next holder's grant to the earlier holder's last write, even over several turns of the
    /// next holder; a token that comes twice is counted.
    #[test]
    fn finds_overlaps_and_repeated_tokens() {
        let tenure = |granted, ended, number| Tenure { granted, ended, token: (7, number) };
        let one = [tenure(0, Some(5_000_000), 1), tenure(20_000_000, None, 3)];
        let other =
            [tenure(4_000_000, Some(9_000_000), 2), tenure(30_000_000, Some(31_000_000), 3)];
        let overlap = longest_overlap(&one[..1], &other[..1], [0, 0]);
        assert!((overlap - 1.0).abs() < 1e-9, "{overlap}");
        let overlap = longest_overlap(&one, &other, [33_000_000, 0]);
        assert!((overlap - 3.0).abs() < 1e-9, "{overlap}");
        assert!(longest_overlap(&one[1..], &other[..1], [22_000_000, 0]).abs() < 1e-9);
        assert_eq!(repeated_tokens(&one, &other), 1);
        assert_eq!(repeated_tokens(&one[..1], &other[..1]), 0);
    }
}
