//! A load test with a verdict: sends a burst of orders to the instances of a flash sale and proves,
//! or disproves, that every unit was sold exactly once. It speaks HTTP alone and knows nothing of
//! the service's code.
//!
//! # Layout
//! - `cli`: the flags and their environment variables.
//! - `endpoint`, `connection`, `api`: one instance, one HTTP connection to it, and the calls
//!   that are not orders.
//! - `buyer`, `answer`: one buyer's order, asked until it is answered; `conduct`: what the buyer does with it.
//! - `load`: all buyers at once, or at a rate; `cpu`: what that costs.
//! - `checker`: judges the record of a run (pure functions); its [`model`] of a sale is public.
//! - `record`: a run in a file.
//! - `report`, `table`: the report, as JSON and as text.
//! - `run`: one run from beginning to end.
//!
//! With `--history` the run is recorded in a file that stands alone, and `loadtest check` judges it
//! again.
//!
//! The exit code is 0 for PASS, and 1 for FAIL (also if more than one order in a hundred got no answer). It is 2 if there was
//! no run to judge: a wrong flag, or a service that is unreachable or not ready. It is 130 for a run that Ctrl-C ended and in
//! which nothing wrong was found.
#![allow(rustdoc::private_intra_doc_links, reason = "the layout is for readers of the code")]

mod answer;
mod api;
mod buyer;
mod checker;
mod cli;
mod conduct;
mod connection;
mod cpu;
mod endpoint;
mod load;
mod record;
pub mod report;
mod run;
mod table;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result};

pub use crate::checker::model;
use crate::checker::model::Order;
use crate::cli::Command;
pub use crate::cli::{Args, Cli, Limits};
pub use crate::load::Live;
pub use crate::report::Report;

/// Sends orders and judges the outcome, for a caller in the same process. Counts in `live`. Prints nothing, and does not
/// check that the instances are ready. Returns also the orders, by their numbers.
///
/// # Errors
/// There is nothing to judge.
///
/// # Cancel safety
/// Once the future is dropped, no further order is sent.
pub async fn run_in_process(args: &Args, live: &Arc<Live>) -> Result<(Report, Vec<Order>)> {
    let endpoints = run::resolve(args).await?;
    let (report, history) = run::run(args, endpoints, live).await?;
    Ok((report, history.orders))
}

/// Runs the command, prints the report, and returns the exit code.
pub async fn run(cli: Cli) -> ExitCode {
    status(cli).await.into()
}

async fn status(cli: Cli) -> u8 {
    let Cli { command, args } = cli;
    if let Some(Command::Check { file, limits, json }) = command {
        return print_report(check(&file, limits), json);
    }
    // each connection takes a file descriptor; if this fails, opening too many says so
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    print_report(run::run_shown(&args).await, args.json)
}

/// Prints the report on stdout, or with `json` on stderr.
fn print_report(report: Result<Report>, json: bool) -> u8 {
    let report = match report {
        Ok(report) => report,
        Err(error) => {
            eprintln!("loadtest: {error:#}");
            return 2;
        }
    };
    // if printing fails, the exit code still tells
    let _ = if json {
        let object = serde_json::to_string_pretty(&report).expect("plain data");
        write!(io::stderr(), "{report}").and_then(|()| writeln!(io::stdout(), "{object}"))
    } else {
        write!(io::stdout(), "{report}")
    };
    match report.pass {
        true => 0,
        // a shell reports this code for a program that Ctrl-C has ended
        false if report.interrupted && report.findings.is_empty() => 130,
        false => 1,
    }
}

/// A seed for a run without one: random, and short enough to type.
pub fn any_seed() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0 % 1_000_000_000
}

/// Judges a recorded run.
///
/// # Errors
/// The file cannot be read, or does not contain a whole run.
pub fn check(file: &Path, limits: Limits) -> Result<Report> {
    let what = || format!("{} cannot be judged", file.display());
    let file = File::open(file).with_context(what)?;
    judge(BufReader::new(file), limits).with_context(what)
}

/// Judges the record of a run from any source.
///
/// # Errors
/// The record is not a whole run.
pub fn judge(record: impl Read, limits: Limits) -> Result<Report> {
    Ok(Report::new(&record::read(record)?, limits))
}
