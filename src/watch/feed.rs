//! Server-sent events of one instance.

use std::io;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

/// How long an instance may take to answer, and may say nothing: it says something every ten seconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest message that is read, in bytes.
const MESSAGE_LIMIT: usize = 16 * 1024 * 1024;

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
pub(super) enum FeedError {
    #[error("cannot reach {authority}")]
    Unreachable { authority: String, source: io::Error },
    #[error("{authority} cannot be watched: it answered {status}")]
    Refused { authority: String, status: StatusCode },
    #[error("{authority} cannot be watched now: it answered {status}")]
    Busy { authority: String, status: StatusCode },
    #[error("the stream broke")]
    Broke(#[source] io::Error),
    #[error("the stream ended")]
    Ended,
    #[error("the stream says what is not understood")]
    NotUnderstood,
}

/// A stream of messages.
pub(super) struct Feed {
    body: Incoming,
    buffer: Vec<u8>,
    _connection: AbortOnDropHandle<()>,
}

impl Feed {
    pub(super) async fn open(url: &Uri, item: &str) -> Result<Self, FeedError> {
        let authority = url.authority().map_or("", |authority| authority.as_str());
        let unreachable =
            |source| FeedError::Unreachable { authority: authority.to_owned(), source };
        let opened = timeout(ANSWER_TIMEOUT, open(url, item)).await;
        let opened = opened.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let (status, body, connection) = opened.map_err(unreachable)?;
        let authority = authority.to_owned();
        match status {
            StatusCode::OK => Ok(Self { body, buffer: Vec::new(), _connection: connection }),
            status if status.is_server_error() => Err(FeedError::Busy { authority, status }),
            status => Err(FeedError::Refused { authority, status }),
        }
    }

    /// The data of the next message.
    pub(super) async fn next(&mut self) -> Result<String, FeedError> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|two| two == b"\n\n") {
                let message: Vec<u8> = self.buffer.drain(..end + 2).collect();
                if let Some(data) = data_of(&message) {
                    return Ok(data);
                }
                continue;
            }
            let frame = timeout(SILENCE_TIMEOUT, self.body.frame()).await;
            let frame = frame.map_err(|_| FeedError::Broke(io::ErrorKind::TimedOut.into()))?;
            let frame = frame.ok_or(FeedError::Ended)?;
            let frame = frame.map_err(|error| FeedError::Broke(io::Error::other(error)))?;
            if let Ok(data) = frame.into_data() {
                self.buffer.extend_from_slice(&data);
            }
            if self.buffer.len() > MESSAGE_LIMIT {
                return Err(FeedError::NotUnderstood);
            }
        }
    }
}

/// The data of a message; nothing in a comment.
fn data_of(message: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(message).ok()?;
    let data: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    (!data.is_empty()).then(|| data.join("\n"))
}

async fn open(url: &Uri, item: &str) -> io::Result<(StatusCode, Incoming, AbortOnDropHandle<()>)> {
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
    Ok((answer.status(), answer.into_body(), connection))
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
