//! Server-sent events of one instance.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use http_body_util::{BodyExt as _, Collected, Limited};
use hyper::{StatusCode, Uri, header};
use reqwest::redirect::Policy;
use reqwest::{Body, Client, Response};
use serde::Deserialize;
use sse_stream::{Sse, SseByteStream};
use tokio::time::timeout;

use super::sale::plain;

/// How long an instance may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How long it may be silent: it sends at least a comment twice a second.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(2);

/// The longest message that is read, in bytes.
const MESSAGE_LIMIT: usize = 16 * 1024 * 1024;

/// The longest refusal that is read, in bytes.
const REFUSAL_LIMIT: usize = 64 * 1024;

/// Why there are no messages.
#[derive(Debug, thiserror::Error)]
pub(super) enum FeedError {
    #[error("cannot reach {authority}")]
    Unreachable { authority: String, source: io::Error },
    #[error("{authority} cannot be watched: it answered {status}{detail}")]
    Refused { authority: String, status: StatusCode, detail: String },
    #[error("{authority} sends no events: is it an instance of flash-sale?")]
    NoEvents { authority: String },
    #[error("{authority} cannot be watched now: it answered {status}{detail}")]
    Busy { authority: String, status: StatusCode, detail: String },
    #[error("the connection to {authority} broke")]
    Broke { authority: String, source: sse_stream::Error },
    #[error("no message from {authority} for {SILENCE_TIMEOUT:?}")]
    Silent { authority: String },
    #[error("{authority} has ended the connection")]
    Ended { authority: String },
    #[error("{authority} sent a message in an unknown format: is it another version?")]
    NotUnderstood { authority: String, source: serde_json::Error },
}

impl FeedError {
    /// Whether it is useless to ask this address again. `has_answered`: it has sent a sale before, so the address is
    /// right and another program answers there for a while.
    pub(super) fn is_final(&self, has_answered: bool) -> bool {
        match self {
            Self::Refused { .. } | Self::NotUnderstood { .. } => true,
            Self::NoEvents { .. } => !has_answered,
            _ => false,
        }
    }
}

type Messages = BoxStream<'static, Result<Sse, sse_stream::Error>>;

/// A stream of messages.
pub(super) struct Feed {
    authority: String,
    messages: Messages,
}

impl Feed {
    pub(super) async fn open(url: &Uri, item: &str) -> Result<Self, FeedError> {
        let authority = authority(url);
        let answer = match open(&authority, item).await {
            Ok(answer) => answer,
            Err(source) => return Err(FeedError::Unreachable { authority, source }),
        };
        let status = answer.status();
        let kind = answer.headers().get(header::CONTENT_TYPE);
        let has_events = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        match status {
            StatusCode::OK if has_events => Ok(Self { authority, messages: messages(answer) }),
            StatusCode::OK => Err(FeedError::NoEvents { authority }),
            status => {
                let Problem { kind, detail } = problem(answer.into()).await;
                Err(if passes(status) || kind == "unknown-item" {
                    FeedError::Busy { authority, status, detail }
                } else if status == StatusCode::NOT_FOUND {
                    FeedError::NoEvents { authority }
                } else {
                    FeedError::Refused { authority, status, detail }
                })
            }
        }
    }

    /// The data of the next message.
    pub(super) async fn next(&mut self) -> Result<String, FeedError> {
        let authority = || self.authority.clone();
        while let Some(message) = self.messages.next().await {
            match message {
                Ok(Sse { data: Some(data), .. }) => return Ok(data),
                Ok(_) => {}
                Err(sse_stream::Error::Body(source)) if is_timeout(&*source) => {
                    return Err(FeedError::Silent { authority: authority() });
                }
                Err(source) => return Err(FeedError::Broke { authority: authority(), source }),
            }
        }
        Err(FeedError::Ended { authority: authority() })
    }
}

/// Host and port.
pub(super) fn authority(url: &Uri) -> String {
    url.authority().map_or_else(String::new, ToString::to_string)
}

/// Whether a retry may succeed.
fn passes(status: StatusCode) -> bool {
    let for_now =
        [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_EARLY, StatusCode::TOO_MANY_REQUESTS];
    status.is_server_error() || for_now.contains(&status)
}

/// The reason of a refusal.
#[derive(Default, Deserialize)]
struct Problem {
    #[serde(rename = "type")]
    kind: String,
    detail: String,
}

/// Empty if there is no readable problem in time.
async fn problem(body: Body) -> Problem {
    let body = timeout(ANSWER_TIMEOUT, Limited::new(body, REFUSAL_LIMIT).collect()).await;
    let body = body.ok().and_then(Result::ok).map(Collected::to_bytes).unwrap_or_default();
    let mut problem: Problem = serde_json::from_slice(&body).unwrap_or_default();
    if !problem.detail.is_empty() {
        problem.detail = format!(" ({})", plain(&problem.detail));
    }
    problem
}

async fn open(authority: &str, item: &str) -> io::Result<Response> {
    let item: String = form_urlencoded::byte_serialize(item.as_bytes()).collect();
    let client = Client::builder().no_proxy().redirect(Policy::none()).build();
    let request = client.map_err(cause)?.get(format!("http://{authority}/events?item={item}"));
    let answer = request.header(header::ACCEPT, "text/event-stream").send();
    timeout(ANSWER_TIMEOUT, answer).await?.map_err(cause)
}

/// The innermost cause: the outer ones say only that a request failed.
#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn cause(error: reqwest::Error) -> io::Error {
    let mut cause: &dyn Error = &error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    io::Error::other(cause.to_string())
}

fn is_timeout(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref().is_some_and(|error: &io::Error| error.kind() == io::ErrorKind::TimedOut)
}

/// The messages of a body. A comment ends the silence, and is no message.
fn messages(answer: Response) -> Messages {
    let begun = Arc::new(AtomicUsize::new(0));
    let taken = Arc::clone(&begun);
    let bytes = stream::try_unfold((answer, begun), async |(mut answer, begun)| {
        let bytes = timeout(SILENCE_TIMEOUT, answer.chunk()).await?.map_err(cause)?;
        let Some(bytes) = bytes else { return Ok(None) };
        if begun.fetch_add(bytes.len(), Ordering::Relaxed) > MESSAGE_LIMIT {
            return Err(io::Error::other("a message is too long"));
        }
        Ok(Some((bytes, (answer, begun))))
    });
    SseByteStream::new(Box::pin(bytes)).inspect(move |_| taken.store(0, Ordering::Relaxed)).boxed()
}
