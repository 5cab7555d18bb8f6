//! A load test with a verdict: sends a burst of orders to the instances of a flash sale and proves,
//! or disproves, that every unit was sold exactly once. It speaks HTTP alone and knows nothing of
//! the service's code.
//!
//! # Layout
//! - [`cli`]: the flags and their environment variables.
//! - [`endpoint`], [`connection`], [`api`]: one instance, one HTTP connection to it, and the calls
//!   that are not orders.
//! - [`buyer`], [`load`], [`progress`]: one buyer's order, asked until it is answered; all of them
//!   at once.
//! - [`history`], [`audit`], [`verdict`], [`reason`]: what was recorded, and what follows from it
//!   (pure functions).
//! - [`latency`], [`report`], [`table`]: what is told about the run, as JSON and as text.
//! - [`run`]: one run from beginning to end.
//!
//! The exit code is 0 for PASS, 1 for FAIL (also where more than one order in a hundred got no answer,
//! since the others prove little then), and 2 if there was no run to judge: a wrong flag, or a
//! service that cannot be reached or is not ready.

mod api;
mod audit;
mod buyer;
mod cli;
mod connection;
mod endpoint;
mod history;
mod latency;
mod load;
mod progress;
mod reason;
mod report;
mod run;
mod table;
#[cfg(test)]
mod tests;
mod verdict;

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

#[tokio::main]
async fn main() -> ExitCode {
    let args = cli::Args::parse();
    let report = match run::run(&args).await {
        Ok(report) => report,
        Err(error) => {
            eprintln!("loadtest: {}", in_full(&error));
            return ExitCode::from(2);
        }
    };
    // the verdict stands, and is told by the exit code, even if nobody reads the text
    let _ = print(&report, args.json);
    if report.pass { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// People read stdout, unless a program does: then they read stderr.
fn print(report: &report::Report, json: bool) -> io::Result<()> {
    if json {
        write!(io::stderr(), "{}", table::Table(report))?;
        let mut stdout = io::stdout().lock();
        serde_json::to_writer_pretty(&mut stdout, report)?;
        writeln!(stdout)
    } else {
        write!(io::stdout(), "{}", table::Table(report))
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
