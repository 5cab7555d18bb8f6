//! The program `lab`: parses the flags and calls the library.

use std::error::Error;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use flash_sale::error_chain::ErrorChain;
use flash_sale::logging::{self, LogOptions};
use lab::arena::{self, ArenaOptions, contender};
use lab::bench::{self, BenchOptions};
#[cfg(feature = "chaos")]
use lab::chaos::{self, ChaosOptions};
use lab::demo::{self, DemoOptions};
use lab::serve::{self, ServeOptions};
use lab::watch::{self, WatchOptions};
use tokio::runtime;

/// Demo, bench and fault suite of the flash sale
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
    Demo(DemoOptions),
    Bench(BenchOptions),
    Arena(ArenaOptions),
    Watch(WatchOptions),
    #[cfg(feature = "chaos")]
    Chaos(ChaosOptions),
    /// Run one instance of the service, with the baselines and the page's controls
    Serve(Box<ServeOptions>),
    /// Take a lock again and again: a process of the arena
    #[command(hide = true)]
    Contend(contender::ContendOptions),
    /// Send orders and judge what became of them
    Loadtest(Box<loadtest::Cli>),
}

fn main() -> ExitCode {
    start(Arguments::parse()).unwrap_or_else(|error| {
        eprintln!("lab: {}", ErrorChain(&*error));
        ExitCode::FAILURE
    })
}

fn start(arguments: Arguments) -> Result<ExitCode, Box<dyn Error>> {
    let mut runtime = match &arguments.command {
        // one thread: see the program of its own
        Command::Loadtest(_) => runtime::Builder::new_current_thread(),
        _ => runtime::Builder::new_multi_thread(),
    };
    if let Command::Serve(options) = &arguments.command {
        options.service.workers.map(|workers| runtime.worker_threads(workers));
    }
    let runtime = runtime.enable_all().build()?;
    let is_watching = matches!(arguments.command, Command::Watch(_));
    let code = runtime.block_on(run(arguments));
    if is_watching {
        // do not wait for a name that is being looked up
        runtime.shutdown_background();
    }
    code
}

async fn run(Arguments { mut log, command }: Arguments) -> Result<ExitCode, Box<dyn Error>> {
    if std::env::var_os("RUST_LOG").is_none_or(|filter| filter.is_empty()) {
        // ZooKeeper's client logs each connection, and each fault
        log.log.get_or_insert_with(|| "info,zookeeper_client=error".to_owned());
    }
    logging::init(&log)?;
    Ok(match command {
        Command::Demo(options) => demo::run(options).await,
        Command::Bench(options) => bench::run(options).await,
        Command::Arena(options) => arena::run(options).await,
        Command::Contend(options) => contender::contend(options).await,
        Command::Watch(options) => watch::run(options).await,
        #[cfg(feature = "chaos")]
        Command::Chaos(options) => chaos::run(options).await,
        Command::Loadtest(cli) => loadtest::run(*cli).await,
        Command::Serve(options) => {
            serve::serve(*options).await?;
            ExitCode::SUCCESS
        }
    })
}
