//! The log, which goes to standard error.

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

/// The form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line, for machines.
    Json,
}

/// The flags of the log.
#[derive(Args, Clone, Debug)]
pub struct LogOptions {
    /// What to log: a level, or levels for parts of the program [default: `RUST_LOG`, or info]
    #[arg(long, global = true, env = "FLASH_SALE_LOG", value_name = "FILTER", value_parser = filter)]
    pub log: Option<String>,

    /// Format of the log
    #[arg(
        long,
        global = true,
        env = "FLASH_SALE_LOG_FORMAT",
        value_name = "FORMAT",
        default_value = "text"
    )]
    pub log_format: LogFormat,
}

/// Starts the log of this process; a second call has no effect.
///
/// # Errors
/// If `RUST_LOG` is not a filter; [`LogOptions::log`] was checked when it was parsed.
pub fn init(options: &LogOptions) -> Result<(), ParseError> {
    // an empty variable counts as none
    let set = |text: &String| !text.trim().is_empty();
    let text = options
        .log
        .clone()
        .or_else(|| std::env::var("RUST_LOG").ok())
        .filter(set)
        .unwrap_or_else(|| "info".into());
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_new(text)?)
        .with_writer(std::io::stderr);
    // fails only if a log was started before, which goes on
    let _ = match options.log_format {
        LogFormat::Text => {
            let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
            subscriber.with_ansi(colours).try_init()
        }
        LogFormat::Json => subscriber.json().try_init(),
    };
    Ok(())
}

fn filter(text: &str) -> Result<String, &'static str> {
    EnvFilter::try_new(text).map(|_| text.to_owned()).map_err(|_| {
        "a filter is error, warn, info, debug, trace or off, alone or for parts of the program, \
         such as info,flash_sale=debug"
    })
}
