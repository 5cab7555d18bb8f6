//! The program `lab`: parses the flags and calls the library.

use std::error::Error;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use demo::Part;
use flash_sale::error_chain::ErrorChain;
use flash_sale::logging::{self, LogOptions};
use lab::arena::{self, ArenaOptions, contender};
use lab::bench::{self, BenchOptions};
#[cfg(fenced_lock_chaos)]
use lab::chaos::{self, ChaosOptions};

/// Bench, arena and fault suite of the flash sale
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    log: LogOptions,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Bench(BenchOptions),
    Arena(ArenaOptions),
    #[cfg(fenced_lock_chaos)]
    Chaos(ChaosOptions),
    /// Take a lock again and again: a process of the arena
    #[command(hide = true)]
    Contend(contender::ContendOptions),
    #[command(flatten)]
    Part(Part),
}

fn main() -> ExitCode {
    let status = start(Arguments::parse()).unwrap_or_else(|error| {
        logging::say(&format!("lab: {}", ErrorChain(&*error)));
        // exit status 1 is a verdict
        ExitCode::from(2)
    });
    logging::end();
    status
}

fn start(Arguments { log, command }: Arguments) -> Result<ExitCode, Box<dyn Error>> {
    let part = if let Command::Part(part) = &command { Some(part) } else { None };
    let runtime = Part::runtime(part)?;
    runtime.block_on(async {
        Part::init_log(log)?;
        Ok(match command {
            Command::Bench(options) => bench::run(options).await,
            Command::Arena(options) => arena::run(options).await,
            Command::Contend(options) => contender::contend(options).await,
            #[cfg(fenced_lock_chaos)]
            Command::Chaos(options) => chaos::run(options).await,
            Command::Part(part) => part.run().await?,
        })
    })
}
