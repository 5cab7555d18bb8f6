//! The log, which goes to standard error.

use std::io::{IsTerminal as _, stderr};

use clap::{Args, ValueEnum};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::fmt::layer;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

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
    let text = options.log.clone().or_else(|| std::env::var("RUST_LOG").ok()).filter(set);
    let targets = parse(text.as_deref().unwrap_or("info"))?;
    let lines = layer().with_writer(stderr).with_ansi(stderr().is_terminal());
    let lines = match options.log_format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    // fails only if a log was started before, which goes on
    let _ = tracing_subscriber::registry().with(lines.with_filter(targets)).try_init();
    Ok(())
}

/// Parses levels by target. `Targets` would take the empty text behind a comma for the level `error`.
fn parse(text: &str) -> Result<Targets, ParseError> {
    let levels = text.split(',').map(str::trim).filter(|level| !level.is_empty());
    levels.collect::<Vec<_>>().join(",").parse()
}

fn filter(text: &str) -> Result<String, &'static str> {
    parse(text).map(|_| text.to_owned()).map_err(|_| {
        "a filter is error, warn, info, debug, trace or off, alone or for parts of the program, \
         such as info,flash_sale=debug"
    })
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn spaces_and_empty_parts_of_a_filter_mean_nothing() {
        for text in ["info,flash_sale=debug", "info, flash_sale=debug,", ",info,,flash_sale=debug"]
        {
            let targets = parse(text).expect(text);
            assert!(targets.would_enable("flash_sale::sale", &Level::DEBUG), "{text}");
            assert!(targets.would_enable("redis", &Level::INFO), "{text}");
            assert!(!targets.would_enable("redis", &Level::DEBUG), "{text}");
        }
        assert!(filter("flash_sale=loud").is_err());
    }
}
