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

/// How long it may say nothing: it says something twice a second.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(8);

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
    buffer: Vec<u8>,
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
                buffer: Vec::new(),
                _connection: connection,
            }),
            StatusCode::OK | StatusCode::NOT_FOUND => Err(FeedError::NoEvents { authority }),
            status => {
                let detail = detail(answer.into_body()).await;
                Err(if passes(status) {
                    FeedError::Busy { authority, status, detail }
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
            if let Some(end) = self.buffer.windows(2).position(|two| two == b"\n\n") {
                let message: Vec<u8> = self.buffer.drain(..end + 2).collect();
                if let Some(data) = data_of(&message) {
                    return Ok(data);
                }
                continue;
            }
            let frame = timeout(SILENCE_TIMEOUT, self.body.frame()).await;
            let frame = frame.map_err(|_| FeedError::Silent { authority: authority() })?;
            let frame = frame.ok_or_else(|| FeedError::Ended { authority: authority() })?;
            let frame = frame.map_err(|error| FeedError::Broke {
                authority: authority(),
                source: io::Error::other(error),
            })?;
            if let Ok(data) = frame.into_data() {
                self.buffer.extend_from_slice(&data);
            }
            if self.buffer.len() > MESSAGE_LIMIT {
                return Err(FeedError::TooLong { authority: authority() });
            }
        }
    }
}

/// Whether another try may get another answer.
fn passes(status: StatusCode) -> bool {
    let for_now =
        [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_EARLY, StatusCode::TOO_MANY_REQUESTS];
    status.is_server_error() || for_now.contains(&status)
}

/// What an instance says of its refusal; nothing if it says nothing that is understood in time.
async fn detail(body: Incoming) -> String {
    #[derive(Deserialize)]
    struct Problem {
        detail: String,
    }
    let body = timeout(ANSWER_TIMEOUT, Limited::new(body, REFUSAL_LIMIT).collect()).await;
    let body = body.ok().and_then(Result::ok).map(Collected::to_bytes).unwrap_or_default();
    let problem: Option<Problem> = serde_json::from_slice(&body).ok();
    problem.map_or_else(String::new, |problem| format!(" ({})", plain(&problem.detail)))
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

    #[test]
    fn only_messages_have_data() {
        assert_eq!(data_of(b": still here\n\n"), None);
        assert_eq!(data_of(b"retry: 1000\n\n"), None);
        let message = b"id: 1-2\nevent: change\ndata: {\"a\":1}\n\n";
        assert_eq!(data_of(message).as_deref(), Some("{\"a\":1}"));
    }
}
