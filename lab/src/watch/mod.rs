//! The `watch` command: a sale in the terminal, from `GET /events` of one instance.

mod feed;
mod layout;
mod lines;
mod sale;
mod screen;
mod source;
mod terminal;

use std::io::{self, IsTerminal as _, Write as _};
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use flash_sale::error_chain::ErrorChain;
use futures_util::StreamExt as _;
use hyper::Uri;
use rustix::io::Errno;
use rustix::process::{getpid, kill_process};
use tokio::time::{MissedTickBehavior, interval, sleep};

use self::feed::FeedError;
use self::screen::Screen;
use self::source::News;
use crate::signals::{Signal, Signals};

/// The longest time between two draws: ages are shown.
const DRAW_EVERY: Duration = Duration::from_secs(1);

/// Longer than the kernel takes to stop all threads of this process.
const STOPPING: Duration = Duration::from_millis(50);

/// The last two: Ctrl-Z, and a terminal that has another size.
const SIGNALS: [Signal; 6] =
    [Signal::INT, Signal::QUIT, Signal::TERM, Signal::HUP, Signal::TSTP, Signal::WINCH];

/// Shows stock, holder, queue and rates of a sale, in place, until Ctrl-C.
///
/// If standard output is no terminal, writes a line for each change, at most one a second.
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

/// Why watching has failed.
#[derive(Debug, thiserror::Error)]
enum WatchError {
    #[error(transparent)]
    Feed(#[from] FeedError),
    #[error("cannot listen to signals")]
    Signals(#[source] io::Error),
    #[error("cannot write")]
    Output(#[from] io::Error),
}

/// Watches until Ctrl-C, Ctrl-\\, SIGTERM or SIGHUP, or until its output is closed. The exit code is 0 then,
/// and 1 if no address can be watched, or the output fails.
pub async fn run(options: WatchOptions) -> ExitCode {
    // asked first: a terminal that has gone away is none any more
    let on_terminal = io::stdout().is_terminal();
    match watch(options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(WatchError::Output(error)) if is_unread(&error, on_terminal) => ExitCode::SUCCESS,
        Err(error) => {
            // if this cannot be written, the exit code remains
            let _ = writeln!(io::stderr(), "lab watch: {}", ErrorChain(&error));
            ExitCode::FAILURE
        }
    }
}

/// Whether the output is closed: the pipe, or the terminal, which may be noticed before its signal comes.
fn is_unread(error: &io::Error, on_terminal: bool) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
        || (on_terminal && Errno::from_io_error(error) == Some(Errno::IO))
}

async fn watch(options: WatchOptions) -> Result<(), WatchError> {
    let mut signals = Signals::listen(&SIGNALS).map_err(WatchError::Signals)?;
    let mut screen = Screen::new(&options.item);
    let mut news = pin!(source::listen(options.urls, options.item));
    let mut ticks = interval(DRAW_EVERY);
    // after a stop, draw once and not once for each second
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        tokio::select! {
            biased;
            signal = signals.next() => match signal {
                Signal::HUP => {
                    // fails if the terminal has gone away
                    drop(screen.end());
                    return Ok(());
                }
                Signal::TSTP => {
                    screen.leave()?;
                    suspend().await?;
                    screen.draw()?;
                }
                Signal::WINCH => screen.draw()?,
                _ => return Ok(screen.end()?),
            },
            Some(news) = news.next() => match news {
                News::Sale { authority, is_first, sale } => {
                    screen.show(&authority, *sale, is_first)?;
                }
                News::Lost { error, is_final: true, .. } => {
                    screen.end()?;
                    return Err(error.into());
                }
                News::Lost { authority, error, .. } => {
                    screen.lost(&authority, ErrorChain(&error).to_string())?;
                }
            },
            _ = ticks.tick() => screen.draw()?,
        }
    }
}

/// Stops this process until a shell continues it. Without a shell, it goes on by itself.
async fn suspend() -> io::Result<()> {
    // unlike SIGSTOP, it does not stop a process without a shell that could continue it
    kill_process(getpid(), Signal::TTOU)?;
    // another thread may have got the signal: do not draw yet
    sleep(STOPPING).await;
    Ok(())
}
