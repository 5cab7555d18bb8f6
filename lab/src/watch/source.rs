//! The messages of the first instance that answers.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::stream::{self, Stream};
use hyper::Uri;
use tokio::time::{Instant, sleep};

use super::feed::{Feed, FeedError, authority};
use super::sale::Sale;

/// How long to wait before all instances are asked again. An instance that hangs up sooner counts as not
/// answering.
const PAUSE: Duration = Duration::from_secs(1);

/// News of the sale.
pub(super) enum News {
    /// The sale at one moment; `is_first` on this connection, so that its notes are history.
    Sale { authority: String, is_first: bool, sale: Box<Sale> },
    /// There is no news until the next `Sale`; never again if `is_final`.
    Lost { authority: String, error: FeedError, is_final: bool },
}

struct Source {
    urls: Vec<Uri>,
    item: String,
    /// Which of the addresses is asked.
    at: usize,
    feed: Option<Feed>,
    /// When its first sale came.
    answered_at: Option<Instant>,
    /// Attempts since an instance answered for longer than the pause, or since the last pause.
    asked: usize,
    has_answered: bool,
    /// The addresses whose last error [is final](FeedError::is_final).
    refused: BTreeSet<usize>,
}

/// Asks the instances in turn, forever.
pub(super) fn listen(urls: Vec<Uri>, item: String) -> impl Stream<Item = News> {
    let source = Source {
        urls,
        item,
        at: 0,
        feed: None,
        answered_at: None,
        asked: 0,
        has_answered: false,
        refused: BTreeSet::new(),
    };
    stream::unfold(source, |mut source| async {
        let news = source.next().await?;
        Some((news, source))
    })
}

impl Source {
    /// `None` without addresses.
    async fn next(&mut self) -> Option<News> {
        let authority = authority(self.urls.get(self.at)?);
        let error = match self.sale().await {
            Ok(sale) => {
                self.has_answered = true;
                self.refused.clear();
                let is_first = self.answered_at.is_none();
                self.answered_at.get_or_insert_with(Instant::now);
                return Some(News::Sale { authority, is_first, sale: Box::new(sale) });
            }
            Err(error) => error,
        };
        self.feed = None;
        if self.answered_at.take().is_some_and(|at| at.elapsed() > PAUSE) {
            self.asked = 0;
        }
        if error.is_final(self.has_answered) {
            self.refused.insert(self.at);
        } else {
            self.refused.remove(&self.at);
        }
        // another one may still answer
        let is_final = self.refused.len() == self.urls.len();
        self.at = (self.at + 1) % self.urls.len();
        Some(News::Lost { authority, error, is_final })
    }

    async fn sale(&mut self) -> Result<Sale, FeedError> {
        let url = &self.urls[self.at];
        let feed = if let Some(feed) = &mut self.feed {
            feed
        } else {
            // after one that had answered, the next is asked at once
            if self.asked >= self.urls.len() {
                sleep(PAUSE).await;
                self.asked = 0;
            }
            self.asked += 1;
            self.feed.insert(Feed::open(url, &self.item).await?)
        };
        let news = feed.next().await?;
        Sale::parse(&news)
            .map_err(|source| FeedError::NotUnderstood { authority: authority(url), source })
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::StreamExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio_util::task::AbortOnDropHandle;

    use super::super::sale::tests::message;
    use super::*;

    /// Answers each caller with the next of these texts, and again with the last, and hangs up.
    async fn answering(answers: Vec<String>) -> (Uri, AbortOnDropHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let url = format!("http://{}", listener.local_addr().expect("it listens"));
        let answering = tokio::spawn(async move {
            for number in 0.. {
                let (mut caller, _) = listener.accept().await.expect("a call");
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    assert_ne!(caller.read_buf(&mut request).await.expect("the caller asks"), 0);
                }
                let answer = &answers[answers.len().min(number + 1) - 1];
                caller.write_all(answer.as_bytes()).await.expect("the caller listens");
            }
        });
        (url.parse().expect("it is an address"), AbortOnDropHandle::new(answering))
    }

    fn one_sale() -> String {
        let data = message(5, 0);
        format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {data}\n\n")
    }

    /// Goal: an instance that sends one sale and hangs up each time is not asked without a pause.
    #[tokio::test]
    async fn who_hangs_up_at_once_is_asked_after_a_pause() {
        let (url, _answering) = answering(vec![one_sale()]).await;
        let mut news = pin!(listen(vec![url], "default".to_owned()));
        let started = Instant::now();
        for _ in 0..2 {
            assert!(matches!(news.next().await, Some(News::Sale { is_first: true, .. })));
            assert!(matches!(news.next().await, Some(News::Lost { .. })));
        }
        assert!(started.elapsed() >= PAUSE);
    }

    fn answer(status: &str) -> String {
        format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n")
    }

    /// Of each loss until the end, or until there are this many, whether it is final.
    async fn losses(urls: Vec<Uri>, most: usize) -> Vec<bool> {
        let mut news = pin!(listen(urls, "default".to_owned()));
        let mut losses = Vec::new();
        while losses.len() < most && losses.last() != Some(&true) {
            if let Some(News::Lost { is_final, .. }) = news.next().await {
                losses.push(is_final);
            }
        }
        losses
    }

    /// Goal: one address that refuses does not stop the others from being asked; the end comes when all refuse.
    #[tokio::test]
    async fn all_addresses_have_to_refuse() {
        let (refusing, _refusing) = answering(vec![answer("400 Bad Request")]).await;
        let (starting, _starting) =
            answering(vec![answer("503 Service Unavailable"), answer("404 Not Found")]).await;
        assert_eq!(losses(vec![refusing.clone()], 4).await, [true]);
        assert_eq!(losses(vec![refusing, starting], 9).await, [false, false, false, true]);
    }

    /// Goal: a passing error is retried, and so is an instance that sent a sale before and answers 404 now.
    #[tokio::test]
    async fn what_passes_is_no_end() {
        let (busy, _busy) =
            answering(vec![answer("429 Too Many Requests"), answer("400 Bad Request")]).await;
        assert_eq!(losses(vec![busy], 4).await, [false, true]);
        let answers = vec![one_sale(), answer("404 Not Found"), answer("400 Bad Request")];
        let (hidden, _hidden) = answering(answers).await;
        assert_eq!(losses(vec![hidden], 4).await, [false, false, true]);
    }
}
