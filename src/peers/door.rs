//! The door for peers: HTTP/2 without TLS, on a port of its own.
//!
//! It has one path. `curl --http2-prior-knowledge --data @frame.json http://HOST:PORT/v1/batches` shows what it answers.

use std::collections::VecDeque;
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
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::link::PATH;
use super::{Door, FRAME_LIFE, MAX_BYTES, MAX_PEERS, MAX_STREAMS};
use crate::secret::SecretSource;
use crate::throttle::Throttle;

/// The most connections that have not shown that they are a peer's: the next one closes the oldest of them.
const MAX_STRANGERS: usize = 64;

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
        let sent = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        // the file is not read for who shows none
        if let Some(sent) = sent.and_then(|sent| sent.strip_prefix(b"Bearer ")) {
            let tokens = token.read_tokens().map_err(|error| {
                tracing::error!(%error, "cannot read the token of the peers");
                StatusCode::UNAUTHORIZED
            })?;
            if tokens.iter().any(|token| token.matches(sent)) {
                return Ok(());
            }
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
    let mut connections = JoinSet::new();
    let mut strangers: VecDeque<(AbortHandle, Arc<AtomicBool>)> = VecDeque::new();
    loop {
        let has_room = connections.len() < MAX_PEERS + MAX_STRANGERS;
        tokio::select! {
            () = stop.cancelled() => break,
            // removes the ended connections
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if has_room => match accepted {
                Ok((stream, _)) => {
                    strangers.retain(|(task, is_known)| {
                        !task.is_finished() && !is_known.load(Ordering::Relaxed)
                    });
                    if strangers.len() >= MAX_STRANGERS
                        && let Some((oldest, _)) = strangers.pop_front()
                    {
                        oldest.abort();
                    }
                    let shared = Shared { keeper: Arc::clone(&keeper), is_known: Arc::default() };
                    let is_known = Arc::clone(&shared.is_known);
                    let task = connections.spawn(connection(stream, shared, stop.clone()));
                    strangers.push_back((task, is_known));
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

async fn connection(stream: TcpStream, shared: Shared, stop: CancellationToken) {
    let _ = stream.set_nodelay(true);
    let is_known = Arc::clone(&shared.is_known);
    let router = Router::new().route(PATH, post(batch)).with_state(shared);
    let window = u32::try_from(MAX_BYTES).unwrap_or(u32::MAX);
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(window)
        .initial_connection_window_size(window)
        .max_concurrent_streams(u32::try_from(MAX_STREAMS).unwrap_or(u32::MAX))
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

#[cfg(test)]
mod tests {
    use fenced_lock::{ClusterId, Token};
    use futures_util::future::pending;
    use testkit::wait::within;
    use tokio::sync::watch;
    use tokio::time::Instant;

    use super::super::wire::{Frame, NotDone, Tenure, Watermark, any_order};
    use super::super::{
        HttpLink, Link as _, LinkError, Outgoing, Peers, Received, Receiver, SendError,
    };
    use super::*;
    use crate::inventory::Item;
    use crate::secret::Secret;

    /// A holder that never comes to an end with a batch, and counts them.
    struct Stalled(watch::Sender<usize>);

    impl Receiver for Stalled {
        fn receive(&self, _: Frame) -> Result<Received, NotDone> {
            self.0.send_modify(|count| *count += 1);
            Ok(Received { done: Box::pin(pending()), store_answered_at: Box::new(Instant::now) })
        }
    }

    async fn send(peers: &Peers, address: &str) -> Result<(), SendError> {
        let tenure = Tenure { key: "lock/1-1".into(), token: Token::new(ClusterId(1), 5) };
        let batch = Outgoing {
            address,
            tenure: &tenure,
            item: &Item::DEFAULT,
            instance: "8080",
            watermark: Watermark::default(),
            orders: vec![any_order()],
            patience: Duration::from_mins(1),
        };
        peers.send(batch, pending()).await.map(drop)
    }

    /// Goal: strangers do not shut the door, however many, and none comes in; nor do batches that stall: there is a place for so
    /// many, and what finds none waits, and is not sent.
    #[tokio::test]
    async fn who_comes_in() {
        let token = |text: &str| Some(SecretSource::Text(Secret::from(text)));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address: Arc<str> = listener.local_addr().expect("its address").to_string().into();
        let (came, mut count) = watch::channel(0);
        let door = Door {
            peers: Arc::new(Peers::new(&address, Arc::new(HttpLink::new(None)))),
            receiver: Arc::new(Stalled(came)),
        };
        let (keeper, stop) =
            (Doorkeeper { door, token: token("zero\none") }, CancellationToken::new());
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, keeper, stop.clone()));
        let mut strangers = Vec::new();
        for _ in 0..MAX_PEERS + MAX_STRANGERS + 9 {
            strangers.push(TcpStream::connect(&*address).await.expect("it accepts"));
        }
        for text in [None, Some("other")] {
            let link = HttpLink::new(text.and_then(token));
            let refused = send(&Peers::new("sender:1", Arc::new(link)), &address).await;
            let is_unsent = matches!(refused, Err(SendError::Link(LinkError::NotSent(_))));
            assert!(is_unsent, "with the token {text:?}: {refused:?}");
        }
        let link = Arc::new(HttpLink::new(token("one")));
        let long = link.send(&address, Box::new(|| vec![b' '; MAX_BYTES + 1])).await;
        assert!(matches!(long, Err(LinkError::NotSent(_))), "it is too long");
        let peers = Arc::new(Peers::new("sender:1", link));
        let clock = send(&peers, &address).await;
        assert!(matches!(clock, Err(SendError::NotDone(NotDone::TooLate))), "{clock:?}");
        assert_eq!(*count.borrow(), 0);
        let stall = |tasks: &mut JoinSet<()>| {
            let (peers, address) = (Arc::clone(&peers), Arc::clone(&address));
            tasks.spawn(async move { panic!("{:?}", send(&peers, &address).await) })
        };
        let stalled: Vec<_> = (0..MAX_STREAMS).map(|_| stall(&mut tasks)).collect();
        let so_many = count.wait_for(|count| *count == MAX_STREAMS);
        assert!(within("all come in", so_many).await.is_ok());
        stall(&mut tasks);
        stalled[0].abort();
        let one_more = count.wait_for(|count| *count == MAX_STREAMS + 1);
        assert!(within("there is a place again", one_more).await.is_ok());
    }
}
