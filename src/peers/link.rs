//! The link as shipped: HTTP/2 over one connection to each peer.
//!
//! hyper's connection by itself, without a client around it: nothing sends a request again, and an answer belongs to its
//! request. A request that is dropped is reset, so that the peer learns of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::http::{Request, StatusCode, header};
use futures_util::StreamExt as _;
use http_body_util::{BodyDataStream, Full};
use hyper::body::Bytes;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{Link, LinkError, MAX_ADDRESSES, MAX_BYTES, Pieces};
use crate::error_chain::ErrorChain;
use crate::process::spawn;
use crate::sale::BoxError;
use crate::secret::SecretSource;
use crate::throttle::Throttle;

/// Where batches go.
pub(super) const PATH: &str = "/v1/batches";

/// The time to connect.
const CONNECT: Duration = Duration::from_secs(1);

/// How long a connection may give no sign while a request is under way.
const KEEP_ALIVE: Duration = Duration::from_secs(1);

/// Connections to peers, each opened when it is first used.
pub struct HttpLink {
    token: Option<SecretSource>,
    connections: Mutex<HashMap<Box<str>, Arc<Place>>>,
}

/// A connection, once one was opened. It is locked while another one is opened.
type Place = tokio::sync::Mutex<Option<Sender>>;

type Sender = SendRequest<Full<Bytes>>;

impl HttpLink {
    /// Shows this token at each door.
    pub fn new(token: Option<SecretSource>) -> Self {
        Self { token, connections: Mutex::default() }
    }

    /// A connection that is open as far as this process knows.
    async fn connection(&self, address: &str) -> Result<Sender, BoxError> {
        let place = {
            let mut connections = self.connections.lock();
            if connections.len() >= MAX_ADDRESSES && !connections.contains_key(address) {
                connections.clear();
            }
            Arc::clone(connections.entry(address.into()).or_default())
        };
        let mut place = place.lock().await;
        if let Some(open) = place.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(open.clone());
        }
        let stream = timeout(CONNECT, TcpStream::connect(address)).await??;
        stream.set_nodelay(true)?;
        let window = u32::try_from(MAX_BYTES).unwrap_or(u32::MAX);
        let handshake = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(window)
            .initial_connection_window_size(window)
            .keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .handshake(TokioIo::new(stream));
        let (sender, connection) = timeout(CONNECT, handshake).await??;
        let peer = address.to_owned();
        spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(peer, error = %ErrorChain(&error), "a connection to a peer ended");
            }
        });
        *place = Some(sender.clone());
        Ok(sender)
    }
}

#[async_trait]
impl Link for HttpLink {
    async fn send(&self, address: &str, frame: Vec<u8>) -> Result<Pieces, LinkError> {
        static REFUSED: Throttle = Throttle::new(Duration::from_mins(1));
        let not_sent = |error: BoxError| LinkError::NotSent(error);
        let mut request = Request::post(format!("http://{address}{PATH}"))
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
            let token = token.read().map_err(|error| not_sent(error.into()))?;
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.expose()));
        }
        let request = request.body(Full::from(frame)).map_err(|error| not_sent(error.into()))?;
        let mut sender = self.connection(address).await.map_err(not_sent)?;
        let answer = sender.try_send_request(request).await.map_err(|mut failed| {
            // the request comes back if nothing of it was written
            let is_unsent = failed.take_message().is_some();
            let error = failed.into_error().into();
            if is_unsent { LinkError::NotSent(error) } else { LinkError::NoAnswer(error) }
        })?;
        let status = answer.status();
        if status == StatusCode::OK {
            let pieces = BodyDataStream::new(answer.into_body());
            return Ok(pieces.map(|piece| piece.map_err(BoxError::from)).boxed());
        }
        if status == StatusCode::UNAUTHORIZED
            && let Some(suppressed) = REFUSED.pass()
        {
            tracing::error!(
                suppressed,
                "the peer at {address} refuses the token of this instance: orders wait for the lock instead. Give all \
                 instances the same --peer-token-file"
            );
        }
        let error = format!("the peer answered {status}").into();
        // a door says so before it looks at the frame; who else answers may have passed it on
        Err(if status.is_client_error() { not_sent(error) } else { LinkError::NoAnswer(error) })
    }
}
