//! The flags.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{BoolishValueParser, RangedU64ValueParser};

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
