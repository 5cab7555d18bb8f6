//! What one can ask of the fault suite.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{BoolishValueParser, RangedU64ValueParser};

/// Injects faults while orders are sent, and judges what the clients saw.
///
/// Each row starts servers and instances of its own, injects one kind of fault again and again, proves
/// that it happened, and has the clients' record checked. Then the same fault meets a service without
/// the defence: it must lose, oversell or hang. Nothing that was started is left behind.
///
/// Exits with 0 if every row holds and every control fails, 1 if not, 2 if that could not be found
/// out, and 128 and the signal's number if a signal came before the end.
#[derive(Clone, Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags, each a switch of its own")]
pub struct ChaosOptions {
    /// How long each row sends orders, in seconds: 5 to 3600.
    #[arg(long, env = "CHAOS_SECONDS", default_value = "24", value_name = "N",
          value_parser = RangedU64ValueParser::<u64>::new().range(5..=3600))]
    pub seconds: u64,

    /// Decides when faults happen, and which ones; without it, a different one each time.
    #[arg(long, env = "CHAOS_SEED", value_name = "N")]
    pub seed: Option<u64>,

    /// Only these rows, separated by commas.
    #[arg(long, value_name = "ROW", value_delimiter = ',')]
    pub only: Vec<String>,

    /// Print the rows and their controls, and run nothing.
    #[arg(long)]
    pub list: bool,

    /// A few rows, for eight seconds each and with fewer orders: shows that the suite works.
    #[arg(long, value_parser = BoolishValueParser::new())]
    pub short: bool,

    /// How many rows run side by side: 1 to 16.
    #[arg(long, env = "CHAOS_JOBS", default_value = "3", value_name = "N",
          value_parser = RangedU64ValueParser::<usize>::new().range(1..=16))]
    pub jobs: usize,

    /// Without the controls.
    #[arg(long)]
    pub no_controls: bool,

    /// Keep the history and the logs of each run, not only of those that failed.
    #[arg(long)]
    pub keep: bool,

    /// The directory for results.json, and for what is kept; it is made if it is missing.
    #[arg(long, default_value = "target/chaos", value_name = "DIR")]
    pub out: PathBuf,
}
