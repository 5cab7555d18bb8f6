//! A load test with a verdict: sends a burst of orders to the instances of a flash sale and proves,
//! or disproves, that every unit was sold exactly once. It speaks HTTP alone and knows nothing of
//! the service's code.
//!
//! # Layout
//! - `cli`: the flags and their environment variables.
//! - `endpoint`, `connection`, `api`: one instance, one HTTP connection to it, and the calls
//!   that are not orders.
//! - `plan`, `buyer`, `answer`, `abandon`: one buyer's order, asked until it is answered, or abandoned.
//! - `load`, `pace`, `progress`: all of them at once, or at a rate, and how far they are.
//! - `checker`: what was seen of a run, and what follows from it (pure functions).
//! - `record`: a run in a file.
//! - `latency`, `cpu`, `report`, `table`: what is told about the run, as JSON and as text.
//! - `run`, `end`, `check`: one run from beginning to end, and a recorded one.
//!
//! With `--history` the run is recorded in a file that stands alone, and `loadtest check` judges it
//! again.
//!
//! The exit code is 0 for PASS, 1 for FAIL (also where more than one order in a hundred got no answer,
//! since the others prove little then), and 2 if there was no run to judge: a wrong flag, or a
//! service that cannot be reached or is not ready.
#![allow(rustdoc::private_intra_doc_links, reason = "the layout is for readers of the code")]

mod abandon;
mod answer;
mod api;
mod buyer;
mod check;
mod checker;
mod cli;
mod connection;
mod cpu;
mod end;
mod endpoint;
mod latency;
mod load;
mod pace;
mod plan;
mod progress;
mod record;
pub mod report;
mod run;
mod table;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

use crate::cli::Command;
pub use crate::cli::{Args, Cli};
pub use crate::load::Live;
pub use crate::report::Report;

/// Sends the orders and judges what became of them, for a caller in the same process: it prints nothing, does
/// not ask whether the instances are ready, and tells in `live` how far it is.
///
/// # Errors
/// There is nothing to judge; the source says why.
///
/// # Cancel safety
/// Once the future is dropped, no further order is sent.
pub async fn run_in_process(
    args: &Args,
    live: &Arc<Live>,
) -> Result<Report, Box<dyn Error + Send + Sync>> {
    let plan = run::plan(args).await?;
    Ok(run::run(args, &plan, live).await?)
}

/// Does what `cli` says, prints the report, and gives the exit code.
pub async fn run(cli: Cli) -> ExitCode {
    let Cli { command, args } = cli;
    if let Some(Command::Check(args)) = command {
        return tell(check::check(&args), args.json);
    }
    // each connection takes a file descriptor; where this is refused, opening one too many says what to do
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let report = if args.probe_path.is_some() {
        run::probe(&args).await
    } else {
        run::run_shown(&args).await
    };
    tell(report, args.json)
}

fn tell(report: Result<Report, impl Error>, json: bool) -> ExitCode {
    match report {
        Ok(report) => {
            // the verdict stands, and is told by the exit code, even if nobody reads the text
            let _ = print(&report, json);
            if report.pass { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("loadtest: {}", in_full(&error));
            ExitCode::from(2)
        }
    }
}

/// People read stdout, unless a program does: then they read stderr.
fn print(report: &Report, json: bool) -> io::Result<()> {
    let text = table::Table(report);
    if json {
        write!(io::stderr(), "{text}")?;
        let mut stdout = io::stdout().lock();
        serde_json::to_writer_pretty(&mut stdout, report)?;
        writeln!(stdout)
    } else {
        write!(io::stdout(), "{text}")
    }
}

/// An error and all its sources, in one line.
fn in_full(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    // a chain of errors is a few links long; the bound is for one that names itself
    for _ in 0..16 {
        let Some(cause) = source else { break };
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
