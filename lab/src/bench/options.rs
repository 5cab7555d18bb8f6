//! The flags of the bench.

use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::locks::LockMode;

/// Compares the guarded sale with other guards and with no guard, on this machine.
///
/// Starts private servers and instances, prints tables, and writes results.json and tables.md. Leaves nothing behind.
///
/// Exit status: 0 every load was answered and accounted for, 1 some were not, 2 could not run.
#[derive(Clone, Debug, Args)]
pub struct BenchOptions {
    /// Everything once with tiny numbers: a smoke test.
    #[arg(long)]
    pub short: bool,

    /// Directory for results.json and tables.md; created if missing.
    #[arg(long, default_value = "target/bench", value_name = "DIR")]
    pub out: PathBuf,

    /// Only these measures, separated by commas.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub only: Vec<Measure>,

    /// Only these contenders, separated by commas.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub contenders: Vec<Contender>,

    /// Rounds, 1 to 100 [default: 5, and 1 of distances; or 1 with --short].
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=100))]
    pub rounds: Option<usize>,
}

/// A measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// Orders a second under steady load; also shares, latency and CPU time.
    Throughput,
    /// Answers a second once nothing is left; also latency and CPU time.
    SoldOut,
    /// All buyers at once, more than there are units.
    Burst,
    /// How often the lock passes between two instances with one client each.
    Handovers,
    /// Throughput and latency with etcd and Redis some milliseconds away, and by the numbers of connections and instances,
    /// guarded and not.
    Distance,
    /// Latency at 2,000 orders a second, which no contender finds too many, with two and with eight instances.
    Paced,
}

impl BenchOptions {
    pub(super) fn measures(&self, measure: Measure) -> bool {
        self.only.is_empty() || self.only.contains(&measure)
    }

    pub(super) fn compares(&self, contender: Contender) -> bool {
        self.contenders.is_empty() || self.contenders.contains(&contender)
    }

    /// `full`, or `short` for a smoke test.
    pub(super) fn full_or_short<T>(&self, full: T, short: T) -> T {
        if self.short { short } else { full }
    }

    /// The number of rounds, unless it is given.
    pub(super) fn rounds(&self, full: usize) -> usize {
        self.rounds.unwrap_or(self.full_or_short(full, 1))
    }
}

/// A way to guard the sale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// The product: the holder of the lock runs all waiting orders of its process.
    Combined,
    /// The product with `--peer-listen`: the instances send their orders to the one that holds the lock.
    Forwarded,
    /// The same batches, script, order ids and ledger, and no lock.
    BatchedScript,
    /// The same script with the same order ids and ledger, for each order alone, and no lock.
    AtomicScript,
    /// Go's mutex recipe: a claim for each request, and a watch on the one before it.
    EtcdRecipe,
    /// A handler without a store: the upper bound of instances and load test.
    NoStore,
}

impl Contender {
    /// The guard of its instances.
    pub(super) fn lock(self) -> LockMode {
        match self {
            Self::Combined | Self::Forwarded | Self::NoStore => LockMode::Etcd,
            Self::BatchedScript => LockMode::BatchedScript,
            Self::AtomicScript => LockMode::AtomicScript,
            Self::EtcdRecipe => LockMode::EtcdRecipe,
        }
    }

    pub(super) fn flags(self) -> &'static [&'static str] {
        if self == Self::Forwarded { &["--peer-listen", "127.0.0.1:0"] } else { &[] }
    }

    pub(super) fn sells(self) -> bool {
        self != Self::NoStore
    }

    /// Whether it pays for the lock with every request.
    pub(super) fn is_slow(self) -> bool {
        self == Self::EtcdRecipe
    }
}
