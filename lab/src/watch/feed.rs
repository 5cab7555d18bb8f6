//! Server-sent events of one instance.

use std::io;
use std::time::Duration;

use http_body_util::{BodyExt as _, Collected, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Request, Response, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::sale::plain;
use super::source::authority;

/// How long an instance may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How long it may say nothing: it says something twice a second, and what is shown for longer is old.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(2);

/// The longest message that is read, in bytes.
const MESSAGE_LIMIT: usize = 16 * 1024 * 1024;

/// The longest refusal that is read, in bytes.
const REFUSAL_LIMIT: usize = 64 * 1024;

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
pub(super) enum FeedError {
    #[error("cannot reach {authority}")]
    Unreachable { authority: String, source: io::Error },
    #[error("{authority} cannot be watched: it answered {status}{detail}")]
    Refused { authority: String, status: StatusCode, detail: String },
    #[error("{authority} tells of no sale: is it an instance of flash-sale?")]
    NoEvents { authority: String },
    #[error("{authority} cannot be watched now: it answered {status}{detail}")]
    Busy { authority: String, status: StatusCode, detail: String },
    #[error("the connection to {authority} broke")]
    Broke { authority: String, source: io::Error },
    #[error("{authority} has said nothing for {SILENCE_TIMEOUT:?}")]
    Silent { authority: String },
    #[error("{authority} has ended the connection")]
    Ended { authority: String },
    #[error("a message of {authority} has more than {MESSAGE_LIMIT} bytes")]
    TooLong { authority: String },
    #[error("what {authority} tells is not understood: is it of another version?")]
    NotUnderstood { authority: String, source: serde_json::Error },
}

impl FeedError {
    /// Whether to ask the same address again is of no use. `has_told`: whether there was a sale before, so
    /// that the address is right and something else answers there for a while.
    pub(super) fn is_final(&self, has_told: bool) -> bool {
        match self {
            Self::Refused { .. } | Self::NotUnderstood { .. } => true,
            Self::NoEvents { .. } => !has_told,
            _ => false,
        }
    }
}

/// A stream of messages.
pub(super) struct Feed {
    authority: String,
    body: Incoming,
    messages: Messages,
    _connection: AbortOnDropHandle<()>,
}

impl Feed {
    pub(super) async fn open(url: &Uri, item: &str) -> Result<Self, FeedError> {
        let authority = authority(url);
        let opened = timeout(ANSWER_TIMEOUT, open(url, item)).await;
        let opened = opened.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let (answer, connection) = match opened {
            Ok(opened) => opened,
            Err(source) => return Err(FeedError::Unreachable { authority, source }),
        };
        let status = answer.status();
        let kind = answer.headers().get(header::CONTENT_TYPE);
        let has_events = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        match status {
            StatusCode::OK if has_events => Ok(Self {
                authority,
                body: answer.into_body(),
                messages: Messages::default(),
                _connection: connection,
            }),
            StatusCode::OK => Err(FeedError::NoEvents { authority }),
            status => {
                let Problem { kind, detail } = problem(answer.into_body()).await;
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
        loop {
            while let Some(message) = self.messages.next() {
                if let Some(data) = data_of(&message) {
                    return Ok(data);
                }
            }
            let frame = timeout(SILENCE_TIMEOUT, self.body.frame()).await;
            let frame = frame.map_err(|_| FeedError::Silent { authority: authority() })?;
            let frame = frame.ok_or_else(|| FeedError::Ended { authority: authority() })?;
            let frame = frame.map_err(|error| FeedError::Broke {
                authority: authority(),
                source: io::Error::other(error),
            })?;
            if let Ok(data) = frame.into_data() {
                self.messages.push(&data);
            }
            if self.messages.begun() > MESSAGE_LIMIT {
                return Err(FeedError::TooLong { authority: authority() });
            }
        }
    }
}

/// What was received, cut into messages.
#[derive(Default)]
struct Messages {
    buffer: Vec<u8>,
    /// So many of its bytes are known to be before the end of the first message.
    searched: usize,
}

impl Messages {
    fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next one that is whole.
    fn next(&mut self) -> Option<Vec<u8>> {
        let unsearched = &self.buffer[self.searched..];
        let Some(end) = unsearched.windows(2).position(|two| two == b"\n\n") else {
            // the last byte may be half of an end
            self.searched = self.buffer.len().saturating_sub(1);
            return None;
        };
        let end = self.searched + end + 2;
        self.searched = 0;
        Some(self.buffer.drain(..end).collect())
    }

    /// How many bytes there are that are not taken yet.
    fn begun(&self) -> usize {
        self.buffer.len()
    }
}

/// Whether another try may get another answer.
fn passes(status: StatusCode) -> bool {
    let for_now =
        [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_EARLY, StatusCode::TOO_MANY_REQUESTS];
    status.is_server_error() || for_now.contains(&status)
}

/// What an instance says of its refusal.
#[derive(Default, Deserialize)]
struct Problem {
    #[serde(rename = "type")]
    kind: String,
    detail: String,
}

/// Nothing if it says nothing that is understood in time.
async fn problem(body: Incoming) -> Problem {
    let body = timeout(ANSWER_TIMEOUT, Limited::new(body, REFUSAL_LIMIT).collect()).await;
    let body = body.ok().and_then(Result::ok).map(Collected::to_bytes).unwrap_or_default();
    let mut problem: Problem = serde_json::from_slice(&body).unwrap_or_default();
    if !problem.detail.is_empty() {
        problem.detail = format!(" ({})", plain(&problem.detail));
    }
    problem
}

/// The data of a message; nothing in a comment.
fn data_of(message: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(message).ok()?;
    let data: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    (!data.is_empty()).then(|| data.join("\n"))
}

async fn open(url: &Uri, item: &str) -> io::Result<(Response<Incoming>, AbortOnDropHandle<()>)> {
    let authority = url.authority().ok_or(io::ErrorKind::InvalidInput)?;
    let port = authority.port_u16().unwrap_or(80);
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((host, port)).await?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let connection = AbortOnDropHandle::new(tokio::spawn(async {
        // what breaks is told by the body
        drop(connection.await);
    }));
    let item: String = form_urlencoded::byte_serialize(item.as_bytes()).collect();
    let request = Request::get(format!("/events?item={item}"))
        .header(header::HOST, authority.as_str())
        .header(header::ACCEPT, "text/event-stream")
        .body(Empty::<Bytes>::new())
        .map_err(io::Error::other)?;
    let answer = sender.send_request(request).await.map_err(io::Error::other)?;
    Ok((answer, connection))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: however the bytes come, the messages are the same.
    #[test]
    fn messages_are_cut_at_empty_lines() {
        let sent = b"a\nb\n\nc\n\n\nd\n\n";
        for size in 1..=sent.len() {
            let (mut messages, mut received) = (Messages::default(), Vec::new());
            for bytes in sent.chunks(size) {
                messages.push(bytes);
                received.extend(std::iter::from_fn(|| messages.next()));
            }
            assert_eq!(received, [&b"a\nb\n\n"[..], b"c\n\n", b"\nd\n\n"], "{size}");
            assert_eq!(messages.begun(), 0);
        }
    }

    /// Goal: a message that comes byte by byte is not searched from its start each time.
    #[test]
    fn a_long_message_is_searched_once() {
        let mut messages = Messages::default();
        for _ in 0..1000 {
            messages.push(b"a");
            assert_eq!(messages.next(), None);
            assert_eq!(messages.searched, messages.begun() - 1);
        }
    }

    #[test]
    fn only_messages_have_data() {
        assert_eq!(data_of(b": still here\n\n"), None);
        assert_eq!(data_of(b"retry: 1000\n\n"), None);
        let message = b"id: 1-2\nevent: change\ndata: {\"a\":1}\n\n";
        assert_eq!(data_of(message).as_deref(), Some("{\"a\":1}"));
    }
}
