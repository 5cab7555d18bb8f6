//! The door for peers: HTTP/2, with mutual TLS or without, on a port of its own.
//!
//! It has one path. `curl --http2-prior-knowledge --data @frame.json http://HOST:PORT/v1/batches` shows its answer.

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
use super::tls::Io;
use super::{Credentials, Door, FRAME_LIFE, MAX_BYTES, MAX_STREAMS};
use crate::error_chain::ErrorChain;
use crate::throttle::Throttle;

/// The most connections that have shown no credential of a peer yet. A further one closes the oldest of them.
const MAX_STRANGERS: usize = 64;

/// How long a new connection may take to show a credential of a peer.
const STRANGER: Duration = Duration::from_secs(5);

/// How often the door pings a connection, and how long the peer may take to answer. A peer that has stopped reading does not
/// answer.
const KEEP_ALIVE: Duration = Duration::from_secs(2);

/// How long the last answers may take after a stop.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// A door, and the credentials that it asks for.
pub struct Doorkeeper {
    /// The door.
    pub door: Door,
    /// The token and the certificates that each peer must show.
    pub credentials: Credentials,
}

impl Doorkeeper {
    fn admits(&self, headers: &HeaderMap) -> Result<(), StatusCode> {
        static REFUSED: Throttle = Throttle::new(Duration::from_mins(1));
        let Some(token) = &self.credentials.token else { return Ok(()) };
        let sent = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        // the door reads the file only for a client that shows a token
        let sent = sent.and_then(|sent| sent.strip_prefix(b"Bearer "));
        let is_known = |sent| token.read_tokens().map(|all| all.iter().any(|it| it.matches(sent)));
        let why = match sent.map(is_known) {
            Some(Ok(true)) => return Ok(()),
            Some(Err(error)) => format!("its token cannot be compared: {error}"),
            _ => "it has another token than this instance".to_owned(),
        };
        if let Some(suppressed) = REFUSED.pass() {
            tracing::error!(suppressed, "a peer was refused: {why}");
        }
        Err(StatusCode::UNAUTHORIZED)
    }
}

/// The state that the requests of one connection share.
#[derive(Clone)]
struct Shared {
    keeper: Arc<Doorkeeper>,
    /// Whether the connection has shown a credential of a peer.
    is_known: Arc<AtomicBool>,
}

async fn batch(State(shared): State<Shared>, request: Request) -> Response {
    if let Err(status) = shared.keeper.admits(request.headers()) {
        return status.into_response();
    }
    shared.is_known.store(true, Ordering::Relaxed);
    let body = Limited::new(request.into_body(), MAX_BYTES).collect();
    // a frame that takes longer would be too old
    let frame = match timeout(FRAME_LIFE, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(_)) => return StatusCode::PAYLOAD_TOO_LARGE.into_response(),
        Err(_) => return StatusCode::REQUEST_TIMEOUT.into_response(),
    };
    let lines = shared.keeper.door.answer(&frame).map(Ok::<_, std::convert::Infallible>);
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response()
}

/// Lets peers in until `stop`, then gives the last answers.
///
/// # Cancel safety
/// Dropping the future closes every connection.
pub async fn serve(listener: TcpListener, keeper: Doorkeeper, stop: CancellationToken) {
    let keeper = Arc::new(keeper);
    let mut connections = JoinSet::new();
    let mut strangers: VecDeque<(AbortHandle, Arc<AtomicBool>)> = VecDeque::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            // removes the ended connections
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
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
                // no file descriptor is left, or the peer has gone
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
    let io = match &shared.keeper.credentials.tls {
        None => Ok(Box::new(stream) as Box<dyn Io>),
        Some(tls) => timeout(STRANGER, tls.accept(stream)).await.map_err(Into::into).flatten(),
    };
    let io = match io {
        Ok(io) => io,
        Err(error) => {
            static REFUSED: Throttle = Throttle::new(Duration::from_mins(1));
            if let Some(suppressed) = REFUSED.pass() {
                let error = ErrorChain(&*error);
                tracing::error!(%error, suppressed, "a connection without the peers' TLS: refused");
            }
            return;
        }
    };
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
        .serve_connection(TokioIo::new(io), TowerToHyperService::new(router));
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
    use crate::sale::BoxError;
    use crate::secret::{Secret, SecretSource};

    /// A holder that keeps each batch. It counts the batches that arrive and the batches that are dropped.
    struct Stalled(watch::Sender<(usize, usize)>);

    struct Batch(watch::Sender<(usize, usize)>);

    impl Drop for Batch {
        fn drop(&mut self) {
            self.0.send_modify(|(_, gone)| *gone += 1);
        }
    }

    impl Receiver for Stalled {
        fn receive(&self, _: Frame) -> Result<Received, NotDone> {
            self.0.send_modify(|(came, _)| *came += 1);
            let batch = Batch(self.0.clone());
            let done = async {
                let _batch = batch;
                pending().await
            };
            Ok(Received { done: Box::pin(done), store_answered_at: Box::new(Instant::now) })
        }
    }

    fn showing(token: Option<&str>) -> Credentials {
        let token = token.map(|text| SecretSource::Text(Secret::from(text)));
        Credentials { token, tls: None }
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

    /// Opens a door for peers that show the token `one`. Returns its address, and a count of the batches that have arrived.
    async fn open(tasks: &mut JoinSet<()>) -> (Arc<str>, watch::Receiver<(usize, usize)>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address: Arc<str> = listener.local_addr().expect("its address").to_string().into();
        let (came, count) = watch::channel((0, 0));
        let link = Arc::new(HttpLink::new(Credentials::default()));
        let peers = Arc::new(Peers::new(&address, link));
        let door = Door { peers, receiver: Arc::new(Stalled(came)) };
        let keeper = Doorkeeper { door, credentials: showing(Some("zero\none")) };
        tasks.spawn(serve(listener, keeper, CancellationToken::new()));
        (address, count)
    }

    type Sender = hyper::client::conn::http2::SendRequest<Body>;

    /// One connection of a client, and the future that drives it.
    async fn connect(address: &str) -> (Sender, impl Future<Output = hyper::Result<()>> + use<>) {
        let stream = TcpStream::connect(address).await.expect("it accepts");
        let client = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        client.handshake(TokioIo::new(stream)).await.expect("it speaks HTTP/2")
    }

    /// The status of the answer to this body, with the right token.
    async fn post(sender: &mut Sender, body: Body) -> StatusCode {
        let request = Request::post(format!("http://door{PATH}"));
        let request = request.header(header::AUTHORIZATION, "Bearer one").body(body);
        let answer = sender.send_request(request.expect("a request")).await;
        answer.expect("an answer").status()
    }

    /// Goal: the door cuts off a client without a token, a body without an end, and a peer that has stopped reading. It keeps an
    /// idle peer. Method: the test moves the clock.
    #[tokio::test]
    async fn who_stands_still_is_cut_off() {
        let mut tasks = JoinSet::new();
        let (address, mut count) = open(&mut tasks).await;
        let (_stranger, driver) = connect(&address).await;
        let stranger = tokio::spawn(driver);
        let (mut idle, driver) = connect(&address).await;
        tasks.spawn(async { driver.await.expect("it stays open") });
        assert_eq!(post(&mut idle, Body::empty()).await, StatusCode::OK);
        let mut slow = idle.clone();
        let endless = Body::from_stream(futures_util::stream::pending::<Result<&str, BoxError>>());
        let slow = tokio::spawn(async move { post(&mut slow, endless).await });
        let port = address.parse::<std::net::SocketAddr>().expect("an address").port();
        let proxy = testkit::Proxy::to(port).await.expect("a port");
        let way = format!("127.0.0.1:{}", proxy.port());
        let deaf = Peers::new("sender:1", Arc::new(HttpLink::new(showing(Some("one")))));
        assert!(send(&deaf, &way).await.is_err(), "it learns the time");
        let deaf = tokio::spawn(async move { send(&deaf, &way).await });
        assert!(within("it comes", count.wait_for(|count| *count == (1, 0))).await.is_ok());
        proxy.silence();
        for _ in 0..=2 * STRANGER.as_secs() {
            tokio::time::pause();
            tokio::time::advance(Duration::from_millis(500)).await;
            tokio::time::resume();
            // when this answer comes, everything that was due has been sent and read
            assert_eq!(post(&mut idle, Body::empty()).await, StatusCode::OK);
        }
        let slow = within("a body without an end is refused", slow).await.expect("it ends");
        assert_eq!(slow, StatusCode::REQUEST_TIMEOUT);
        let _ = within("who shows nothing is cut off", stranger).await;
        let cut_off = count.wait_for(|count| *count == (1, 1));
        assert!(within("who reads nothing is cut off", cut_off).await.is_ok());
        assert!(within("it gives up", deaf).await.expect("no panic").is_err());
    }

    /// Goal: any number of strangers leaves the door open for peers, and no stranger comes in. If batches stall, only as many are
    /// sent as there are places, and the others wait unsent.
    #[tokio::test]
    async fn who_comes_in() {
        let mut tasks = JoinSet::new();
        let (address, mut count) = open(&mut tasks).await;
        let mut strangers = Vec::new();
        for _ in 0..2 * MAX_STRANGERS {
            strangers.push(TcpStream::connect(&*address).await.expect("it accepts"));
        }
        for text in [None, Some("other")] {
            let link = HttpLink::new(showing(text));
            let refused = send(&Peers::new("sender:1", Arc::new(link)), &address).await;
            let is_unsent = matches!(refused, Err(SendError::Link(LinkError::NotSent(_))));
            assert!(is_unsent, "with the token {text:?}: {refused:?}");
        }
        let link = Arc::new(HttpLink::new(showing(Some("one"))));
        let long = link.send(&address, Box::new(|| vec![b' '; MAX_BYTES + 1])).await;
        assert!(matches!(long, Err(LinkError::NotSent(_))), "it is too long");
        let peers = Arc::new(Peers::new("sender:1", link));
        let clock = send(&peers, &address).await;
        assert!(matches!(clock, Err(SendError::NotDone(NotDone::TooLate))), "{clock:?}");
        assert_eq!(*count.borrow(), (0, 0));
        let stall = |tasks: &mut JoinSet<()>| {
            let (peers, address) = (Arc::clone(&peers), Arc::clone(&address));
            tasks.spawn(async move { panic!("{:?}", send(&peers, &address).await) })
        };
        let stalled: Vec<_> = (0..MAX_STREAMS).map(|_| stall(&mut tasks)).collect();
        let so_many = count.wait_for(|(came, _)| *came == MAX_STREAMS);
        assert!(within("all come in", so_many).await.is_ok());
        stall(&mut tasks);
        stalled[0].abort();
        let one_more = count.wait_for(|(came, _)| *came == MAX_STREAMS + 1);
        assert!(within("there is a place again", one_more).await.is_ok());
    }
}
