//! Serving a router on a socket, and stopping without dropping a request.
//!
//! The server speaks HTTP/1.1 alone: load balancers use it to their backends, and hyper-util's detection of HTTP/2
//! without TLS waits for the first bytes without a bound. So does `axum::serve` for the head of a request. hyper's
//! connection has a time limit for the head; `ClientIo` adds one for writing.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderValue, Request, header};
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::client_io::ClientIo;
use super::request_head::{self, MAX_HEADER_BYTES, MAX_URI_BYTES};
use crate::safeguard::LIMITS;
use crate::throttle::Throttle;

/// How many connections may wait to be accepted; the kernel may allow fewer.
const BACKLOG: u32 = 4096;

/// The buffers of the system for each connection, which by default hold megabytes. The system may double them.
const SEND_BUFFER_BYTES: u32 = 128 * 1024;
const RECEIVE_BUFFER_BYTES: u32 = 64 * 1024;

/// The most bytes of a head in memory. A client meets our own smaller limits, which answer with a problem; hyper
/// answers a head beyond this with a bare 431.
pub const MAX_HEAD_BUFFER: usize = 2 * (MAX_HEADER_BYTES + MAX_URI_BYTES);

/// The pause after the system failed to accept a connection: file descriptors or memory have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Bounds on connections.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// The time for a client to send the head of a request, which includes the time that the connection is idle;
    /// and to read 16 KiB of its answers, or the rest of them.
    pub header_timeout: Duration,
    /// The most open connections; more wait to be accepted.
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
    // the connections inherit them
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves `router`, which has the [defaults](super::with_defaults), until `stop` completes, then answers the requests that are in flight. Returns the number of
/// connections that were cut off, because their requests took longer than the grace period.
///
/// # Cancel safety
/// Dropping the future closes every connection at once.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    options: ServerOptions,
    stop: impl Future<Output = ()>,
) -> usize {
    let mut stop = pin!(stop);
    let graceful = GracefulShutdown::new();
    let permits = Arc::new(Semaphore::new(options.max_connections.min(Semaphore::MAX_PERMITS)));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(options.header_timeout)
        .max_buf_size(if LIMITS.is_on() { MAX_HEAD_BUFFER } else { usize::MAX })
        // for answers this small, copying head and body together costs less than `writev`
        .writev(false);
    // `half_close` stays off: a client that sends no more is gone. hyper drops the handler, so that the order of
    // a disconnected buyer leaves the queue
    let mut connections = JoinSet::new();
    loop {
        let (stream, permit) = tokio::select! {
            () = &mut stop => break,
            // removes the ended connections
            Some(_) = connections.join_next() => continue,
            accepted = accept(&listener, &permits) => accepted,
        };
        // answers are small and complete: Nagle's algorithm would only delay them
        let _ = stream.set_nodelay(true);
        let router = TowerToHyperService::new(router.clone());
        let service = service_fn(move |request| answer(&router, request));
        let io = TokioIo::new(ClientIo::new(stream, options.header_timeout));
        let connection = graceful.watch(http.serve_connection(io, service));
        connections.spawn(async move {
            // a broken connection is no fault of the service
            if let Err(error) = connection.await {
                tracing::debug!(error = &error as &dyn std::error::Error, "connection ended");
            }
            drop(permit);
        });
    }
    drop(listener);

    if timeout(options.shutdown_grace, graceful.shutdown()).await.is_ok() {
        return 0;
    }
    while connections.try_join_next().is_some() {}
    connections.len()
}

/// Answers one request. For one that violates HTTP or is too large, the router gets the problem to answer with, and
/// no handler sees it.
fn answer(
    router: &TowerToHyperService<Router>,
    mut request: Request<Incoming>,
) -> impl Future<Output = Result<Response, Infallible>> + use<> {
    let is_chunked = request_head::is_chunked(request.headers());
    let checked = request_head::check(&request);
    // at once, not when the future is first polled: by then hyper has looked for the next request
    request_head::detach_from_read_buffer(&mut request);
    if let Err(problem) = checked {
        request.extensions_mut().insert(problem);
    }
    let answer = router.call(request);
    async move {
        let mut answer = answer.await?;
        if is_chunked {
            answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(answer)
    }
}

/// The next connection, once there is room for one.
async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> (TcpStream, OwnedSemaphorePermit) {
    static FAILURES: Throttle = Throttle::new(Duration::from_secs(1));
    let permit = Arc::clone(permits).acquire_owned().await.expect("the semaphore is never closed");
    loop {
        match listener.accept().await {
            Ok((stream, _peer)) => return (stream, permit),
            Err(error) if is_of_the_connection(&error) => {}
            Err(error) => {
                if let Some(suppressed) = FAILURES.pass() {
                    tracing::warn!(%error, suppressed, "cannot accept a connection");
                }
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Whether only this connection failed: the next one may be there already.
fn is_of_the_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}
