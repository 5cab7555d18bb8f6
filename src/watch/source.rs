//! What the instances tell, whichever of them answers.

use std::time::Duration;

use futures_util::stream::{self, Stream};
use hyper::Uri;
use tokio::time::sleep;

use super::feed::{Feed, FeedError};
use super::sale::Sale;

/// How long to wait once all instances were asked in vain, before they are asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// What is told.
pub(super) enum Told {
    /// The sale at one moment; `is_first` on this connection, so that its notes are history.
    Sale { authority: String, is_first: bool, sale: Box<Sale> },
    /// Nothing, until there is another sale. An error that [is final](FeedError::is_final) will not pass.
    Lost { authority: String, error: FeedError },
}

struct Source {
    urls: Vec<Uri>,
    item: String,
    /// Which of the addresses is asked.
    at: usize,
    feed: Option<Feed>,
    is_first: bool,
    /// How often an instance was asked since the last one answered.
    asked: usize,
}

/// Asks the instances in turn, for ever.
pub(super) fn listen(urls: Vec<Uri>, item: String) -> impl Stream<Item = Told> {
    let source = Source { urls, item, at: 0, feed: None, is_first: true, asked: 0 };
    stream::unfold(source, |mut source| async {
        let told = source.next().await?;
        Some((told, source))
    })
}

impl Source {
    /// Nothing if there is nobody to ask.
    async fn next(&mut self) -> Option<Told> {
        let authority = authority(self.urls.get(self.at)?);
        let error = match self.sale().await {
            Ok(sale) => {
                self.asked = 0;
                let is_first = std::mem::take(&mut self.is_first);
                return Some(Told::Sale { authority, is_first, sale: Box::new(sale) });
            }
            Err(error) => error,
        };
        self.feed = None;
        self.at = (self.at + 1) % self.urls.len();
        Some(Told::Lost { authority, error })
    }

    async fn sale(&mut self) -> Result<Sale, FeedError> {
        let url = &self.urls[self.at];
        let feed = if let Some(feed) = &mut self.feed {
            feed
        } else {
            // one that has just gone away is followed by the next at once
            if self.asked >= self.urls.len() {
                sleep(PAUSE).await;
                self.asked = 0;
            }
            self.asked += 1;
            self.is_first = true;
            self.feed.insert(Feed::open(url, &self.item).await?)
        };
        let told = feed.next().await?;
        Sale::parse(&told)
            .map_err(|source| FeedError::NotUnderstood { authority: authority(url), source })
    }
}

/// Host and port.
pub(super) fn authority(url: &Uri) -> String {
    url.authority().map_or_else(String::new, ToString::to_string)
}
