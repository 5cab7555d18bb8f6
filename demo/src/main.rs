//! The program `demo`: parses the flags and calls the library.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use demo::DemoOptions;
use demo::control::{self, ControlOptions};
use demo::instance::{self, ServeOptions};
use flash_sale::config;
use flash_sale::error_chain::ErrorChain;
use flash_sale::logging::{self, LogOptions};
use tokio::runtime::Builder;

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

/// A process of a demo.
#[derive(Subcommand)]
enum Part {
    /// Run one instance of the service, which the page can control
    Serve(Box<ServeOptions>),
    /// Run the page and its controls, for instances that were started with --control
    Control(ControlOptions),
}

fn main() -> ExitCode {
    let status = start(config::arguments()).unwrap_or_else(|error| {
        logging::say(&format!("demo: {}", ErrorChain(error.as_ref())));
        // exit status 1 is a verdict
        ExitCode::from(2)
    });
    logging::end();
    status
}

fn start(Arguments { log, demo, part }: Arguments) -> anyhow::Result<ExitCode> {
    let mut runtime = Builder::new_multi_thread();
    if let Some(Part::Serve(options)) = &part {
        options.service.workers.map(|workers| runtime.worker_threads(workers));
    }
    runtime.enable_all().build()?.block_on(async {
        logging::init(&log).map_err(anyhow::Error::msg)?;
        match part {
            None => return demo::run(&demo).await,
            Some(Part::Serve(options)) => {
                instance::serve(*options).await.map_err(anyhow::Error::from_boxed)?;
            }
            Some(Part::Control(options)) => control::serve(options).await?,
        }
        Ok(ExitCode::SUCCESS)
    })
}
