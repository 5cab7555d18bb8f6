//! Serves a router on a socket, and stops without dropping a request.
//!
//! The server speaks only HTTP/1.1, as load balancers do to their backends. hyper-util's detection of HTTP/2 without TLS waits
//! without limit for the first bytes, and `axum::serve` for the head of a request. hyper's connection limits the time for the
//! head; `ClientIo` limits the time for writing.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::http::{HeaderValue, Request, header};
use axum::response::Response;
use axum::serve::Listener;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use super::client_io::{Client, ClientIo, PATIENCE};
use super::problem::{Problem, ProblemType};
use super::request_head::{self, MAX_HEADER_BYTES, MAX_URI_BYTES};
use crate::safeguard::LIMITS;
use crate::throttle::Throttle;

/// How many connections may wait to be accepted; the kernel may allow fewer.
const BACKLOG: u32 = 4096;

/// The system's buffers of each connection, which would take megabytes by default. The system may double these sizes.
const SEND_BUFFER_BYTES: u32 = 128 * 1024;
const RECEIVE_BUFFER_BYTES: u32 = 64 * 1024;

/// The most bytes of a head in memory. `request_head` has smaller limits, and answers with a problem. hyper answers a larger head
/// with a bare 431.
pub const MAX_HEAD_BUFFER: usize = 2 * (MAX_HEADER_BYTES + MAX_URI_BYTES);

/// How many clients beyond `max_connections` get an answer at the same time.
pub(crate) const MAX_BEYOND: usize = 64;

/// The paths that these clients may call: a busy instance must not look dead.
const PROBES: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// The time for handshakes that have begun, before the port closes. A handshake takes a round trip, and longer from a busy client.
const LAST_HANDSHAKES: Duration = Duration::from_millis(250);

/// Bounds on connections.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// The time for a client to send the head of a request, from the end of the request before; and the time to read 16 KiB of
    /// its answers, or the rest of them.
    pub header_timeout: Duration,
    /// The most open connections. Some further clients get answers to probes; to other calls they get `too-many-connections`.
    pub max_connections: usize,
    /// The time for requests in flight after the stop.
    pub shutdown_grace: Duration,
}

/// Listens on `address`.
///
/// # Errors
/// Those of the system, such as an address in use.
///
/// # Panics
/// Outside of a Tokio runtime.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // a restarted instance gets its port back while old connections linger in TIME_WAIT
    socket.set_reuseaddr(true)?;
    // connections inherit these sizes
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves `router`, which has the [defaults](super::with_defaults), until `stop` completes. After that, each client that is
/// connected, or has begun to connect, gets an answer to one more request. A client that does not send it, or does not read its
/// answers, is cut off after a second. Returns the number of connections that were cut off because their requests took longer
/// than the grace period.
///
/// # Cancel safety
/// Dropping the future closes every connection at once.
pub async fn serve(
    mut listener: TcpListener,
    router: Router,
    options: ServerOptions,
    stop: impl Future<Output = ()>,
) -> usize {
    let mut stop = pin!(stop);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .max_buf_size(if LIMITS.is_on() { MAX_HEAD_BUFFER } else { usize::MAX })
        // copying head and body together costs less than `writev` for answers this small
        .writev(false);
    // `half_close` stays off: a client that sends no more is gone. hyper then drops the handler, and a disconnected buyer's order
    // leaves the queue
    let (stopping, _) = watch::channel(false);
    let mut server = Server {
        http,
        router: TowerToHyperService::new(router),
        header_timeout: options.header_timeout,
        room: Arc::new(Semaphore::new(options.max_connections.min(Semaphore::MAX_PERMITS))),
        is_full: Throttle::new(Duration::from_secs(1)),
        stopping,
        connections: JoinSet::new(),
    };
    let beyond = Arc::new(Semaphore::new(MAX_BEYOND));
    let mut next = async || {
        let place = Arc::clone(&beyond).acquire_owned().await;
        (Listener::accept(&mut listener).await, place.ok())
    };
    loop {
        tokio::select! {
            () = &mut stop => break,
            // forget connections that have ended
            Some(_) = server.connections.join_next() => {}
            (client, place) = next() => server.take(client, place),
        }
    }
    server.stopping.send_replace(true);
    begin_no_handshake(&listener);
    let until = Instant::now() + LAST_HANDSHAKES;
    while let Ok(client) = timeout_at(until, Listener::accept(&mut listener)).await {
        server.take(client, None);
    }
    drop(listener);

    let connections = &mut server.connections;
    let all_end = async { while connections.join_next().await.is_some() {} };
    let _ = timeout(options.shutdown_grace, all_end).await;
    while connections.try_join_next().is_some() {}
    connections.len()
}

/// The state that all connections share.
struct Server {
    http: http1::Builder,
    router: TowerToHyperService<Router>,
    header_timeout: Duration,
    /// A permit for each of `max_connections`.
    room: Arc<Semaphore>,
    /// Lets a line a second into the log while there is no room.
    is_full: Throttle,
    /// Whether each answer is the last one of its connection.
    stopping: watch::Sender<bool>,
    connections: JoinSet<()>,
}

impl Server {
    /// Serves a client. If there is no room, the client takes the place `beyond` the limit.
    fn take(
        &mut self,
        (stream, peer): (TcpStream, SocketAddr),
        beyond: Option<OwnedSemaphorePermit>,
    ) {
        let room = Arc::clone(&self.room).try_acquire_owned().ok();
        let is_beyond = room.is_none();
        let time = if is_beyond { PATIENCE.min(self.header_timeout) } else { self.header_timeout };
        let place = room.or(beyond);
        if is_beyond && let Some(suppressed) = self.is_full.pass() {
            let port = stream.local_addr().map_or(0, |address| address.port());
            tracing::warn!(
                suppressed,
                port,
                "this port has as many connections as --max-connections and the limit on open files allow: others get 503"
            );
        }
        // answers are small and complete, and Nagle's algorithm would only delay them
        let _ = stream.set_nodelay(true);
        let client = Arc::new(Client::new(self.stopping.subscribe()));
        let io = TokioIo::new(ClientIo::new(stream, time, Arc::clone(&client)));
        let (router, requester) = (self.router.clone(), Arc::clone(&client));
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo(peer));
            answer(&router, request, &requester, is_beyond)
        });
        let connection = self.http.header_read_timeout(time).serve_connection(io, service);
        self.connections.spawn(async move {
            tokio::select! {
                biased;
                // a broken connection is no fault of the service
                ended = connection => if let Err(error) = ended {
                    tracing::debug!(error = &error as &dyn std::error::Error, "connection ended");
                },
                () = client.stalls_a_stop() => tracing::debug!("the stop did not wait for a client"),
            }
            drop(place);
        });
    }
}

/// Answers one request. If the request violates HTTP, is too large or finds no room, the router gets the problem as its answer,
/// and no handler sees the request.
fn answer(
    router: &TowerToHyperService<Router>,
    mut request: Request<Incoming>,
    client: &Arc<Client>,
    is_beyond: bool,
) -> impl Future<Output = Result<Response, Infallible>> + use<> {
    let checked = if is_beyond && !PROBES.contains(&request.uri().path()) {
        let detail = "this instance has no room for another connection: use another one, or wait";
        Err(Problem::new(ProblemType::TOO_MANY_CONNECTIONS, detail))
    } else {
        request_head::check(&request)
    };
    let is_last = is_beyond || checked.is_err() || request_head::is_chunked(request.headers());
    // here, since hyper looks for the next request before it first polls the future
    request_head::detach_from_read_buffer(&mut request);
    if let Err(problem) = checked {
        request.extensions_mut().insert(problem);
    }
    let client = Arc::clone(client);
    let answer = router.call(request.map(|body| client.sends(body)));
    async move {
        let mut answer = answer.await?;
        if client.is_answered() || is_last {
            answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(answer)
    }
}

/// Lets no new connection begin, while handshakes that have begun end. A client whose first segment is dropped sends it again a
/// second later, and is refused. Without this, a client whose handshake is under way when the port closes could send an order and
/// get a reset, and a proxy does not repeat an order that it has sent. With 2 ms of network, this befell three in four clients
/// that connected all the time.
#[cfg(target_os = "linux")]
fn begin_no_handshake(listener: &TcpListener) {
    use socket2::{SockFilter, SockRef};
    let filter = [
        // load the flags of the TCP segment, and keep SYN and ACK
        SockFilter::new(0x30, 0, 0, 13),
        SockFilter::new(0x54, 0, 0, 0x12),
        // SYN alone begins a handshake: take no byte of such a segment, and all of any other one
        SockFilter::new(0x15, 0, 1, 0x02),
        SockFilter::new(0x06, 0, 0, 0),
        SockFilter::new(0x06, 0, 0, u32::MAX),
    ];
    let _ = SockRef::from(listener).attach_filter(&filter);
}

#[cfg(not(target_os = "linux"))]
fn begin_no_handshake(_listener: &TcpListener) {}
