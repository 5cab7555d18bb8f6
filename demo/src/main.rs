//! The program `demo`: parses the flags and calls the library.

use std::process::ExitCode;

use clap::Parser;
use demo::{DemoOptions, Part};
use flash_sale::error_chain::ErrorChain;
use flash_sale::logging::{self, LogOptions};

/// Starts private servers and instances on this machine, sells out under load and prints the
/// verdict.
///
/// Then serves until Ctrl-C. Leaves nothing behind.
///
/// Exit status: 0 PASS, 1 FAIL, 2 could not run, 128 + N ended by signal N before the verdict.
#[derive(Parser)]
#[command(version, term_width = 80, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(flatten)]
    demo: DemoOptions,
    #[command(flatten)]
    log: LogOptions,
    #[command(subcommand)]
    part: Option<Part>,
}

fn main() -> ExitCode {
    let status = start(Arguments::parse()).unwrap_or_else(|error| {
        logging::say(&format!("demo: {}", ErrorChain(error.as_ref())));
        // exit status 1 is a verdict
        ExitCode::from(2)
    });
    logging::end();
    status
}

fn start(Arguments { log, demo, part }: Arguments) -> anyhow::Result<ExitCode> {
    let runtime = Part::runtime(part.as_ref())?;
    runtime.block_on(async {
        Part::init_log(log)?;
        match part {
            Some(part) => part.run().await,
            None => Ok(demo::run(demo).await),
        }
    })
}
