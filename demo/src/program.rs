//! The parts of a cluster as commands: a program that starts a cluster starts itself with these commands.

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use flash_sale::logging::{self, LogOptions};
use tokio::runtime::{Builder, Runtime};

use crate::control::{self, ControlOptions};
use crate::serve::{self, ServeOptions};

/// A command that every program with a [`Cluster`](crate::cluster::Cluster) has.
#[derive(Subcommand)]
pub enum Part {
    /// Run one instance of the service, with other guards, faults, and the page's controls
    Serve(Box<ServeOptions>),
    /// Run the page's controls for instances that were started with --control
    Control(ControlOptions),
    /// Send orders and judge what became of them
    Loadtest(Box<loadtest::Cli>),
}

impl Part {
    /// The runtime for this part, or for another command.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn runtime(part: Option<&Self>) -> std::io::Result<Runtime> {
        let mut runtime = match part {
            // one thread, as in the load test's own program
            Some(Self::Loadtest(_)) => Builder::new_current_thread(),
            _ => Builder::new_multi_thread(),
        };
        if let Some(Self::Serve(options)) = part {
            options.service.workers.map(|workers| runtime.worker_threads(workers));
        }
        runtime.enable_all().build()
    }

    /// Starts the log of a program that has these parts.
    ///
    /// # Errors
    /// `RUST_LOG` is not a filter.
    pub fn init_log(mut options: LogOptions) -> Result<()> {
        if std::env::var_os("RUST_LOG").is_none_or(|filter| filter.is_empty()) {
            // ZooKeeper's client logs each connection and each fault
            options.log.get_or_insert_with(|| "info,zookeeper_client=error".to_owned());
        }
        logging::init(&options).map_err(anyhow::Error::msg)
    }

    /// Runs this part to its end.
    ///
    /// # Errors
    /// See [`serve::serve`].
    pub async fn run(self) -> Result<ExitCode> {
        match self {
            Self::Loadtest(cli) => return Ok(loadtest::run(*cli).await),
            Self::Serve(options) => {
                serve::serve(*options).await.map_err(anyhow::Error::from_boxed)?;
            }
            Self::Control(options) => control::serve(options).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
