//! The program `flash-sale`: parses the flags and calls the library.

use std::error::Error;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use flash_sale::config::Config;
use flash_sale::error_chain::ErrorChain;
use flash_sale::health::{self, HealthOptions};
use flash_sale::logging::{self, LogOptions};
use flash_sale::recover::{self, RecoverOptions};
use flash_sale::sale::BoxError;
use flash_sale::serve;
use tokio::runtime;

/// A flash sale that sells no unit twice
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
    /// Run one instance of the service until SIGTERM or Ctrl-C
    Serve(Box<Config>),
    Recover(Box<RecoverOptions>),
    /// Check an instance: exit status 0 if it is healthy, 1 with a reason if not
    Health(HealthOptions),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut runtime = runtime::Builder::new_multi_thread();
    if let Command::Serve(config) = &arguments.command {
        config.workers.map(|workers| runtime.worker_threads(workers));
    }
    match runtime.enable_all().build() {
        Ok(runtime) => runtime.block_on(run(arguments)).unwrap_or_else(|error| fail(&*error)),
        Err(error) => fail(&error),
    }
}

async fn run(Arguments { log, command }: Arguments) -> Result<ExitCode, BoxError> {
    logging::init(&log)?;
    match command {
        Command::Serve(config) => serve::serve(*config).await?,
        Command::Recover(options) => return recover::run(*options).await,
        Command::Health(options) => health::check(&options).await?,
    }
    Ok(ExitCode::SUCCESS)
}

fn fail(error: &(dyn Error + 'static)) -> ExitCode {
    eprintln!("flash-sale: {}", ErrorChain(error));
    ExitCode::FAILURE
}
