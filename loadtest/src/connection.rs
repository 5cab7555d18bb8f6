//! One HTTP/1.1 connection.

use std::pin::pin;
use std::time::Duration;

use futures_util::{FutureExt, poll};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{self, HeaderValue};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::endpoint::Endpoint;

/// More bytes than any answer of the service has: a page of the ledger has at most 1,000 short orders.
const BODY_LIMIT_BYTES: usize = 4 << 20;

/// How many polls certainly write a request.
const POLLS_TO_WRITE: usize = 3;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The future that moves the bytes of a connection.
type Driver = http1::Connection<TokioIo<TcpStream>, Full<Bytes>>;

/// An open connection, for one request at a time, so it is not `Clone`. Dropping it closes it, also in the middle of a request.
#[derive(Debug)]
pub(crate) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    /// The sender polls it: a separate task would cost two more wake-ups for each request. `None` after its end.
    driver: Option<Driver>,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    /// The `Retry-After` header, if it is in seconds.
    pub(crate) retry_after: Option<Duration>,
    /// Whether the answer is marked as repeated.
    pub(crate) replayed: bool,
    pub(crate) body: Bytes,
}

/// Why there is no answer. After any of these but [`Self::Connect`], the request may have taken effect.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error("cannot connect to {url}")]
    Connect { url: String, source: std::io::Error },
    #[error("the connection broke")]
    Broken(#[source] BoxError),
    #[error("no answer within {}", humantime::format_duration(*.0))]
    Timeout(Duration),
}

impl Connection {
    /// Opens a connection.
    ///
    /// # Errors
    /// The instance does not accept it within `limit`.
    pub(crate) async fn open(
        endpoint: &Endpoint,
        limit: Duration,
    ) -> Result<Self, ConnectionError> {
        let connect = async {
            let stream = TcpStream::connect(&endpoint.addresses[..]).await?;
            // a small request must not wait for the answer to the one before it
            stream.set_nodelay(true)?;
            Ok(stream)
        };
        let stream = tokio::time::timeout(limit, connect).await;
        let stream = stream.unwrap_or_else(|late| Err(late.into()));
        let stream = stream
            .map_err(|source| ConnectionError::Connect { url: endpoint.url.clone(), source })?;
        // requests are small: `writev` costs more than copying
        let handshake = http1::Builder::new().writev(false).handshake(TokioIo::new(stream));
        let (sender, connection) = handshake.await.map_err(broken)?;
        Ok(Self { sender, driver: Some(connection) })
    }

    /// The idle connection, or a new one if there is none or the instance has closed it.
    ///
    /// # Errors
    /// The instance does not accept a new one within `limit`.
    pub(crate) async fn reuse_or_open(
        idle: Option<Self>,
        endpoint: &Endpoint,
        limit: Duration,
    ) -> Result<Self, ConnectionError> {
        if let Some(mut idle) = idle {
            // the socket was not polled since the last answer
            let ended = idle.driver.as_mut().is_none_or(|driver| driver.now_or_never().is_some());
            if !ended && !idle.sender.is_closed() {
                return Ok(idle);
            }
        }
        Self::open(endpoint, limit).await
    }

    /// Sends a request and reads the whole answer.
    ///
    /// # Errors
    /// There is no complete answer within `limit`. Then the connection cannot be used again.
    pub(crate) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
        limit: Duration,
    ) -> Result<Answer, ConnectionError> {
        tokio::time::timeout(limit, self.exchange(request))
            .await
            .map_err(|_| ConnectionError::Timeout(limit))?
    }

    /// Sends a request, and closes the connection after `stay` without reading an answer.
    pub(crate) async fn send_and_close(mut self, request: Request<Full<Bytes>>, stay: Duration) {
        let mut exchange = Box::pin(self.exchange(request));
        // the first poll wakes the connection, and the next one writes so short a request
        for _ in 0..POLLS_TO_WRITE {
            if poll!(&mut exchange).is_ready() {
                return;
            }
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(stay).await;
    }

    async fn exchange(&mut self, request: Request<Full<Bytes>>) -> Result<Answer, ConnectionError> {
        let mut answer = pin!(answer(&mut self.sender, request));
        if let Some(driver) = &mut self.driver {
            tokio::select! {
                biased;
                answer = &mut answer => return answer,
                // the sender gets its error as well, and everything that came before its end
                _ = driver => {}
            }
        }
        self.driver = None;
        answer.await
    }
}

async fn answer(
    sender: &mut SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> Result<Answer, ConnectionError> {
    sender.ready().await.map_err(broken)?;
    let response = sender.send_request(request).await.map_err(broken)?;
    let (head, body) = response.into_parts();
    let retry_after = head.headers.get(header::RETRY_AFTER).and_then(seconds);
    let replayed = head.headers.get("idempotency-replayed").is_some_and(|value| value == "true");
    let body = Limited::new(body, BODY_LIMIT_BYTES).collect().await.map_err(broken)?;
    Ok(Answer { status: head.status, retry_after, replayed, body: body.to_bytes() })
}

fn broken(error: impl Into<BoxError>) -> ConnectionError {
    ConnectionError::Broken(error.into())
}

fn seconds(value: &HeaderValue) -> Option<Duration> {
    value.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}
