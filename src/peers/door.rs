//! The door for peers: HTTP/2 without TLS, on a port of its own.
//!
//! It has one path. `curl --http2-prior-knowledge --data @frame.json http://HOST:PORT/v1/batches` shows what it answers.

use std::error::Error as _;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use futures_util::StreamExt as _;
use http_body_util::{BodyExt as _, Limited};
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::link::PATH;
use super::{Door, FRAME_LIFE, MAX_BYTES};
use crate::secret::SecretSource;
use crate::throttle::Throttle;

/// The most connections of peers.
const MAX_CONNECTIONS: usize = 256;

/// The time for a new connection to show that it is a peer's.
const STRANGER: Duration = Duration::from_secs(5);

/// How often a connection is asked for a sign, and how long it may take: one that does not read gives none.
const KEEP_ALIVE: Duration = Duration::from_secs(2);

/// The time for the last answers after a stop.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// A door, and who may come in.
pub struct Doorkeeper {
    /// The door.
    pub door: Door,
    /// What each peer must show; `None`: nothing.
    pub token: Option<SecretSource>,
}

impl Doorkeeper {
    fn admits(&self, headers: &HeaderMap) -> Result<(), StatusCode> {
        static REFUSED: Throttle = Throttle::new(Duration::from_mins(1));
        let Some(token) = &self.token else { return Ok(()) };
        let token = token.read().map_err(|error| {
            tracing::error!(%error, "cannot read the token of the peers");
            StatusCode::UNAUTHORIZED
        })?;
        let sent = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        if sent.and_then(|sent| sent.strip_prefix(b"Bearer ")).is_some_and(|it| token.matches(it)) {
            return Ok(());
        }
        if let Some(suppressed) = REFUSED.pass() {
            tracing::error!(suppressed, "a peer has another token than this instance: refused");
        }
        Err(StatusCode::UNAUTHORIZED)
    }
}

/// What the requests of one connection share.
#[derive(Clone)]
struct Shared {
    keeper: Arc<Doorkeeper>,
    /// Whether it is a peer's.
    is_known: Arc<AtomicBool>,
}

async fn batch(State(shared): State<Shared>, request: Request) -> Response {
    if let Err(status) = shared.keeper.admits(request.headers()) {
        return status.into_response();
    }
    shared.is_known.store(true, Ordering::Relaxed);
    let body = Limited::new(request.into_body(), MAX_BYTES).collect();
    // what takes longer would be too old
    let frame = match timeout(FRAME_LIFE, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(_)) => return StatusCode::PAYLOAD_TOO_LARGE.into_response(),
        Err(_) => return StatusCode::REQUEST_TIMEOUT.into_response(),
    };
    let lines = shared.keeper.door.answer(&frame).map(Ok::<_, std::convert::Infallible>);
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response()
}

/// Lets peers in until `stop`, and gives the last answers then.
///
/// # Cancel safety
/// Dropping the future closes every connection.
pub async fn serve(listener: TcpListener, keeper: Doorkeeper, stop: CancellationToken) {
    let keeper = Arc::new(keeper);
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            let place = Arc::clone(&room).acquire_owned().await;
            (listener.accept().await, place)
        };
        tokio::select! {
            () = stop.cancelled() => break,
            // removes the ended connections
            Some(_) = connections.join_next() => {}
            (accepted, place) = next => match accepted {
                Ok((stream, _)) => {
                    let connection = connection(stream, Arc::clone(&keeper), stop.clone());
                    connections.spawn(async move {
                        connection.await;
                        drop(place);
                    });
                }
                // no file is left, or the peer has gone
                Err(error) => {
                    tracing::debug!(%error, "a peer could not connect");
                    sleep(Duration::from_millis(10)).await;
                }
            }
        }
    }
    drop(listener);
    let all_end = async { while connections.join_next().await.is_some() {} };
    let _ = timeout(LAST_ANSWERS, all_end).await;
}

async fn connection(stream: TcpStream, keeper: Arc<Doorkeeper>, stop: CancellationToken) {
    let _ = stream.set_nodelay(true);
    let shared = Shared { keeper, is_known: Arc::default() };
    let is_known = Arc::clone(&shared.is_known);
    let router = Router::new().route(PATH, post(batch)).with_state(shared);
    let window = u32::try_from(MAX_BYTES).unwrap_or(u32::MAX);
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(window)
        .initial_connection_window_size(window)
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    let stranger = async {
        sleep(STRANGER).await;
        if is_known.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    };
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = stranger => return tracing::debug!("a connection that is no peer's was closed"),
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(source = error.source(), "a connection of a peer ended");
    }
}
