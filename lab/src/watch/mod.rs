//! The `watch` command: a sale in the terminal, as `GET /events` of one instance tells it.

mod feed;
mod layout;
mod lines;
mod sale;
mod screen;
mod signals;
mod source;
mod terminal;

use std::io::{self, IsTerminal as _, Write as _};
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use flash_sale::chain::Chain;
use futures_util::StreamExt as _;
use hyper::Uri;
use rustix::io::Errno;
use tokio::time::{MissedTickBehavior, interval};

use self::feed::FeedError;
use self::screen::Screen;
use self::signals::{Order, Signals};
use self::source::Told;

/// How often what is on a terminal is drawn at least: it tells how old things are.
const DRAW_EVERY: Duration = Duration::from_secs(1);

/// Shows stock, holder, queue and rates of a sale, in place, until Ctrl-C.
///
/// Writes a line for each change, at most one a second, where standard output is no terminal.
///
/// Exit status: 0 ended by the user, 1 no address can be watched.
#[derive(Args, Clone, Debug)]
pub struct WatchOptions {
    /// Instances to ask; if one fails, the next is asked
    #[arg(value_name = "URL", default_value = "http://127.0.0.1:8080", value_parser = address)]
    pub urls: Vec<Uri>,

    /// Item
    #[arg(long, env = "FLASH_SALE_WATCH_ITEM", value_name = "NAME", default_value = "default")]
    pub item: String,
}

fn address(text: &str) -> Result<Uri, &'static str> {
    let uri: Option<Uri> = text.parse().ok();
    let plain = uri.filter(|uri| {
        let is_host = |authority: &str| !authority.is_empty() && !authority.contains('@');
        uri.scheme_str() == Some("http")
            && uri.authority().is_some_and(|authority| is_host(authority.as_str()))
            && uri.path_and_query().is_none_or(|rest| matches!(rest.as_str(), "" | "/"))
    });
    plain.ok_or("an instance's address looks like http://127.0.0.1:8080, without a path")
}

/// Why watching has ended by itself.
#[derive(Debug, thiserror::Error)]
enum WatchError {
    #[error(transparent)]
    Feed(#[from] FeedError),
    #[error("cannot listen to signals")]
    Signals(#[source] io::Error),
    #[error("cannot write")]
    Output(#[from] io::Error),
}

/// Watches until Ctrl-C, Ctrl-\\, SIGTERM or SIGHUP, or until nobody reads what it writes. The exit code is 0
/// then, and 1 if none of the addresses can be watched, or nothing can be written.
pub async fn run(options: WatchOptions) -> ExitCode {
    // one that has gone away is none any more
    let on_terminal = io::stdout().is_terminal();
    match watch(options).await {
        Ok(()) => ExitCode::SUCCESS,
        // who reads no more has seen enough
        Err(WatchError::Output(error)) if is_unread(&error, on_terminal) => ExitCode::SUCCESS,
        Err(error) => {
            // the exit code tells of it also where this cannot be written
            let _ = writeln!(io::stderr(), "lab watch: {}", Chain(&error));
            ExitCode::FAILURE
        }
    }
}

/// Whether nobody is there to read: the pipe is closed, or the terminal has gone away, which may be noticed
/// before its signal comes.
fn is_unread(error: &io::Error, on_terminal: bool) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
        || (on_terminal && Errno::from_io_error(error) == Some(Errno::IO))
}

async fn watch(options: WatchOptions) -> Result<(), WatchError> {
    let mut signals = Signals::listen().map_err(WatchError::Signals)?;
    let mut screen = Screen::new(&options.item);
    let mut told = pin!(source::listen(options.urls, options.item));
    let mut ticks = interval(DRAW_EVERY);
    // after a stop once, not once for each second of it
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        tokio::select! {
            biased;
            order = signals.next() => match order {
                Order::End => return Ok(screen.end()?),
                Order::Hangup => {
                    // a terminal that has gone away takes nothing; one that has not is given back
                    drop(screen.end());
                    return Ok(());
                }
                Order::Suspend => {
                    screen.leave()?;
                    signals::suspend().await?;
                    screen.draw()?;
                }
                Order::Draw => screen.draw()?,
            },
            Some(told) = told.next() => match told {
                Told::Sale { authority, is_first, sale } => {
                    screen.show(&authority, *sale, is_first)?;
                }
                Told::Lost { error, is_final: true, .. } => {
                    screen.end()?;
                    return Err(error.into());
                }
                Told::Lost { authority, error, .. } => {
                    screen.lost(&authority, Chain(&error).to_string())?;
                }
            },
            _ = ticks.tick() => screen.draw()?,
        }
    }
}
