//! The `watch` command: a sale in the terminal, as `GET /events` of one instance tells it.

mod feed;
mod sale;
mod screen;

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use hyper::Uri;
use tokio::time::sleep;

use self::feed::{Feed, FeedError};
use self::sale::Sale;
use self::screen::Screen;
use crate::chain::Chain;

/// How long to wait before the next instance is asked.
const PAUSE: Duration = Duration::from_secs(1);

/// Shows stock, holder, queue and rates of a sale, in place, until Ctrl-C.
///
/// Where standard output is no terminal, it writes a line whenever something has changed, at most one a
/// second.
#[derive(Args, Clone, Debug)]
pub struct WatchOptions {
    /// The instances to ask: the first that answers; if it goes away, the next
    #[arg(value_name = "URL", default_value = "http://127.0.0.1:8080", value_parser = address)]
    pub urls: Vec<Uri>,

    /// What is sold
    #[arg(long, env = "FLASH_SALE_WATCH_ITEM", value_name = "NAME", default_value = "default")]
    pub item: String,
}

fn address(text: &str) -> Result<Uri, &'static str> {
    let uri: Option<Uri> = text.parse().ok();
    let plain = uri.filter(|uri| {
        uri.scheme_str() == Some("http")
            && uri.authority().is_some()
            && matches!(uri.path(), "" | "/")
    });
    plain.ok_or("an instance's address looks like http://127.0.0.1:8080")
}

/// Watches until Ctrl-C, or until nobody reads what it writes. The exit code is 0 then, and 1 if the
/// instance says that it cannot be watched.
pub async fn run(options: WatchOptions) -> ExitCode {
    tokio::select! {
        code = watch(&options) => code,
        // an error means that signals cannot be listened to: then the default ends the process
        Ok(()) = tokio::signal::ctrl_c() => ExitCode::SUCCESS,
    }
}

async fn watch(options: &WatchOptions) -> ExitCode {
    let mut screen = Screen::new();
    for url in options.urls.iter().cycle() {
        let error = match follow(url, &options.item, &mut screen).await {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => error,
        };
        if let FeedError::Refused { .. } = &error {
            eprintln!("flash-sale watch: {}", Chain(&error));
            return ExitCode::FAILURE;
        }
        let said = screen.say(&format!("{}: trying again", Chain(&error)));
        if said.is_err() {
            return ExitCode::SUCCESS;
        }
        sleep(PAUSE).await;
    }
    ExitCode::SUCCESS
}

/// Shows what one instance tells, until it tells no more; `Ok` if nobody reads what is shown.
async fn follow(url: &Uri, item: &str, screen: &mut Screen) -> Result<(), FeedError> {
    let mut feed = Feed::open(url, item).await?;
    loop {
        let told = feed.next().await?;
        let Some(sale) = Sale::parse(&told) else { return Err(FeedError::NotUnderstood) };
        if screen.show(&sale).is_err() {
            return Ok(());
        }
    }
}
