//! The flags.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::articles::Article;
use crate::locks::LockMode;

/// Compares locks: speed, fairness, cost, and what each fault does to each of them.
///
/// Starts private servers and instances on this machine, prints tables, and writes results.json and tables.md.
/// Leaves nothing behind.
///
/// Exit status: 0 measured, 1 some runs failed that should not have, 2 could not run.
#[derive(Clone, Debug, Args)]
pub struct ArenaOptions {
    /// Only these locks, separated by commas [default: all whose servers are installed].
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = shared_lock())]
    pub locks: Vec<LockMode>,

    /// Only these measures, separated by commas [default: all; with --faults, takeover and oversold].
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub only: Vec<Measure>,

    /// Only these faults, separated by commas [default: all].
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub faults: Vec<Fault>,

    /// Only the flaws of these articles' locks, separated by commas.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub articles: Vec<Article>,

    /// Trials of each fault, 1 to 10000 [default: 20, or 1 with --short; 3 for the flaws].
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u32>::new().range(1..=10_000))]
    pub trials: Option<u32>,

    /// Trials that run side by side, each on servers of its own: 1 to 32.
    #[arg(long, default_value = "8", value_name = "N",
          value_parser = RangedU64ValueParser::<usize>::new().range(1..=32))]
    pub jobs: usize,

    /// Seed for the moments of the faults [default: random].
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Everything once with small numbers: a smoke test.
    #[arg(long)]
    pub short: bool,

    /// Directory for results.json and tables.md; created if missing.
    #[arg(long, default_value = "target/arena", value_name = "DIR")]
    pub out: PathBuf,
}

/// Parses the name of a lock that processes share.
fn shared_lock() -> impl TypedValueParser<Value = LockMode> {
    PossibleValuesParser::new(LockMode::shared().map(LockMode::name))
        .map(|name| LockMode::from_str(&name, false).expect("the name is one of the possible ones"))
}

/// A measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Measure {
    /// Two sessions take turns: the time from the release that is sent to the grant of the one that waits.
    Handovers,
    /// The same, with the servers of the lock 2 and 20 ms away.
    Distance,
    /// Clients that contend for a number of grants, and waiters that come one after the other; and, as `requests`, the
    /// requests at the lock's servers: for each grant, and while 100 clients wait.
    #[value(alias = "requests")]
    Fairness,
    /// Two processes take turns, and a fault hits one of them or the servers: how long nobody is served, and
    /// whether both hold the lock at once.
    Takeover,
    /// A sale with a holder that is killed or paused between reading and writing, under each fence.
    Oversold,
    /// What goes wrong under the locks of well-known articles, and not under ours. Not with --locks or --faults alone.
    Flaws,
}

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// A process is killed.
    Kill,
    /// A process is stopped for longer than its lease: 6 s.
    Pause,
    /// For as long, nothing gets through between a holder and the servers; no connection is closed, and the holder works on.
    Partition,
    /// A server of the lock is killed, and started again at once.
    Server,
    /// The leader of three servers is killed.
    Leader,
    /// The server is killed, and its replica takes its place, which knows the sessions but not the latest grants.
    Failover,
    /// The same with a synchronous standby, which is held up for a moment before: no write is answered before the standby has it.
    SyncFailover,
}

impl ArenaOptions {
    pub(super) fn measures(&self, measure: Measure) -> bool {
        match (self.only.as_slice(), self.faults.as_slice()) {
            ([], []) => measure != Measure::Flaws || self.locks.is_empty(),
            ([], _) => matches!(measure, Measure::Takeover | Measure::Oversold),
            (only, _) => only.contains(&measure),
        }
    }

    pub(super) fn injects(&self, fault: Fault) -> bool {
        self.faults.is_empty() || self.faults.contains(&fault)
    }

    pub(super) fn trials(&self) -> u32 {
        self.trials.unwrap_or(if self.short { 1 } else { 20 })
    }

    /// `full`, or `short` for a smoke test.
    pub(super) fn full_or_short<T>(&self, full: T, short: T) -> T {
        if self.short { short } else { full }
    }
}
