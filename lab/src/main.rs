//! The program `lab`: parses the flags and calls the library.

use std::error::Error;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use flash_sale::config;
use flash_sale::error_chain::ErrorChain;
use flash_sale::logging::{self, LogOptions};
use lab::arena::{self, ArenaOptions, contender};
use lab::bench::{self, BenchOptions};
#[cfg(fenced_lock_chaos)]
use lab::chaos::{self, ChaosOptions};
use lab::instance::{self, ServeOptions};
use tokio::runtime::Builder;

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
    /// Run one instance of the service, under other locks, without safeguards, or with faults
    Serve(Box<ServeOptions>),
    /// Send orders and judge what became of them
    Loadtest(Box<loadtest::Cli>),
}

fn main() -> ExitCode {
    let status = start(config::arguments()).unwrap_or_else(|error| {
        logging::say(&format!("lab: {}", ErrorChain(&*error)));
        // exit status 1 is a verdict
        ExitCode::from(2)
    });
    logging::end();
    status
}

fn start(Arguments { mut log, command }: Arguments) -> Result<ExitCode, Box<dyn Error>> {
    let mut runtime = match &command {
        // one thread, as in the load test's own program
        Command::Loadtest(_) => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    if let Command::Serve(options) = &command {
        options.service.workers.map(|workers| runtime.worker_threads(workers));
    }
    if std::env::var_os("RUST_LOG").is_none_or(|filter| filter.is_empty()) {
        // ZooKeeper's client logs each connection and each fault
        log.log.get_or_insert_with(|| "info,zookeeper_client=error".to_owned());
    }
    runtime.enable_all().build()?.block_on(async {
        logging::init(&log)?;
        Ok(match command {
            Command::Bench(options) => bench::run(options).await,
            Command::Arena(options) => arena::run(options).await,
            Command::Contend(options) => contender::contend(options).await,
            #[cfg(fenced_lock_chaos)]
            Command::Chaos(options) => chaos::run(options).await,
            Command::Loadtest(cli) => loadtest::run(*cli).await,
            Command::Serve(options) => {
                instance::serve(*options).await.map_err(|error| error as Box<dyn Error>)?;
                ExitCode::SUCCESS
            }
        })
    })
}
