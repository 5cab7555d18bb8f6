//! The program `flash-sale`: parses the flags and calls the library.

use std::ffi::OsString;
#[cfg(feature = "manual")]
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use flash_sale::config::{self, Config, unknown_variables};
use flash_sale::error_chain::ErrorChain;
use flash_sale::health::{self, HealthOptions};
use flash_sale::logging::{self, LogOptions};
use flash_sale::operator::{self, OperatorOptions};
use flash_sale::recover::{self, RecoverOptions};
use flash_sale::sale::BoxError;
use flash_sale::serve;
use tokio::runtime::{self, Runtime};

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
    Sale(Box<OperatorOptions>),
    /// Check an instance: exit status 0 if it is healthy, 1 with a reason if not
    Health(HealthOptions),
    /// Print the completions for a shell
    #[cfg(feature = "manual")]
    Completions {
        shell: clap_complete::Shell,
    },
    /// Print the page for man of the program, or of one of its commands, such as `sale start`
    #[cfg(feature = "manual")]
    Man {
        command: Vec<String>,
    },
}

fn main() -> ExitCode {
    let arguments: Arguments = config::arguments();
    let mut runtime = runtime::Builder::new_multi_thread();
    if let Command::Serve(config) = &arguments.command {
        config.workers.map(|workers| runtime.worker_threads(workers));
    }
    let ended = match runtime.enable_all().build() {
        Ok(runtime) => run_to_end(runtime, run(arguments)),
        Err(error) => Err(error.into()),
    };
    let status = ended.unwrap_or_else(|error| {
        logging::say(&format!("flash-sale: {}", ErrorChain(&*error)));
        ExitCode::FAILURE
    });
    logging::end();
    status
}

/// Does the work, and leaves its threads alone: one may look a name up for longer than any time limit.
fn run_to_end<T>(runtime: Runtime, work: impl Future<Output = T>) -> T {
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    done
}

async fn run(Arguments { log, command }: Arguments) -> Result<ExitCode, BoxError> {
    logging::init(&log)?;
    let text = |text: OsString| text.to_string_lossy().into_owned();
    let variables = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
    for (name, nearest) in unknown_variables(&Arguments::command(), variables) {
        tracing::warn!(
            "no flag reads the variable {name}, so it has no effect: is {nearest} meant?"
        );
    }
    match command {
        Command::Serve(config) => serve::serve(*config).await?,
        Command::Recover(options) => return recover::run(*options).await,
        Command::Sale(options) => return operator::run(*options).await,
        Command::Health(options) => health::check(&options).await?,
        #[cfg(feature = "manual")]
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "flash-sale", &mut script);
            // clap_complete 4.6 writes the name of a program with a `-` in two ways (clap issue 6421)
            let script = String::from_utf8(script)?.replace("flash__subcmd__sale", "flash__sale");
            io::stdout().write_all(script.as_bytes())?;
        }
        #[cfg(feature = "manual")]
        Command::Man { command: names } => {
            let mut program = Arguments::command();
            // gives the commands their full names
            program.build();
            let mut names = names.iter();
            let command = names.try_fold(&program, |command, name| command.find_subcommand(name));
            let command = command.ok_or("there is no such command: see flash-sale --help")?;
            clap_mangen::Man::new(command.clone()).render(&mut io::stdout())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Goal: the program ends though the system still looks a name up.
    #[test]
    fn it_waits_for_no_thread() {
        let (over, ended) = mpsc::channel();
        let (answers, asked) = mpsc::channel::<()>();
        thread::spawn(move || {
            let runtime = runtime::Builder::new_multi_thread().build().expect("a runtime");
            run_to_end(
                runtime,
                async move { drop(tokio::task::spawn_blocking(move || asked.recv())) },
            );
            over.send(())
        });
        ended.recv_timeout(Duration::from_secs(30)).expect("it ends");
        drop(answers);
    }
}
