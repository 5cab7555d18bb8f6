//! The socket of one client. It limits the time for writing, notices at once when the client is gone, and gives hyper's own
//! answers a body.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use futures_util::FutureExt as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Sleep, sleep};

use super::problem::{self, Problem, ProblemType};

/// How many bytes of an answer a client must read within the timeout, or the rest if less is left.
const LEAST_BYTES: usize = 16 * 1024;

/// The time for a client for which the server should not wait: one beyond the limit of connections, or one after the stop.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// The state that the connection, the socket and the requests of one client share.
#[derive(Debug)]
pub(super) struct Client {
    stopping: watch::Receiver<bool>,
    /// Whether a whole request was received and has no answer yet.
    is_served: AtomicBool,
    /// How many bytes were written since [`stalls_a_stop`](Self::stalls_a_stop) looked last.
    written: AtomicUsize,
}

impl Client {
    pub(super) fn new(stopping: watch::Receiver<bool>) -> Self {
        Self { stopping, is_served: AtomicBool::new(false), written: AtomicUsize::new(0) }
    }

    /// Wraps the body of a request. When the body is dropped, the request counts as received.
    pub(super) fn sends(self: &Arc<Self>, body: Incoming) -> Body {
        self.is_served.store(body.is_end_stream(), Ordering::Relaxed);
        let rest = UnreadBody(Arc::clone(self));
        Body::new(body.map_err(move |error| {
            let _ = &rest;
            error
        }))
    }

    /// Notes that the answer is ready. Returns whether it is the last one of its connection, since the instance stops.
    pub(super) fn is_answered(&self) -> bool {
        self.is_served.store(false, Ordering::Relaxed);
        *self.stopping.borrow()
    }

    /// Waits for the stop, and then until only the client has delayed the server for [`PATIENCE`]: it sends no request, or only a
    /// part of one, or does not read its answers.
    pub(super) async fn stalls_a_stop(&self) {
        let _ = self.stopping.clone().wait_for(|stops| *stops).await;
        let is_served = || self.is_served.load(Ordering::Relaxed);
        let mut was_served = is_served();
        loop {
            self.written.store(0, Ordering::Relaxed);
            sleep(PATIENCE).await;
            let waits = !was_served && !is_served();
            if waits && self.written.load(Ordering::Relaxed) < LEAST_BYTES {
                return;
            }
            was_served = is_served();
        }
    }
}

/// When dropped, notes that nobody reads the rest of the request's body.
struct UnreadBody(Arc<Client>);

impl Drop for UnreadBody {
    fn drop(&mut self) {
        self.0.is_served.store(true, Ordering::Relaxed);
    }
}

/// A connection to a client.
pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin {
    /// Ready once the client sends no more, or has sent a byte that nobody has read. Returns whether the client sends no more.
    fn poll_end(&self, cx: &mut Context<'_>) -> Poll<bool>;
}

impl Socket for TcpStream {
    fn poll_end(&self, cx: &mut Context<'_>) -> Poll<bool> {
        let _ = ready!(self.poll_read_ready(cx));
        let ready = self.ready(Interest::READABLE).now_or_never();
        Poll::Ready(matches!(ready, Some(Ok(ready)) if ready.is_read_closed()))
    }
}

/// The socket of one client. If the client reads too little within the timeout, a write fails, which ends the connection.
#[derive(Debug)]
pub(super) struct ClientIo<S> {
    socket: S,
    write_timeout: Duration,
    client: Arc<Client>,
    /// Whether hyper waits for bytes. Otherwise it has unread requests, and does not notice when the client is gone.
    is_read: bool,
    /// When to look again whether the client is gone.
    again: Option<Pin<Box<Sleep>>>,
    /// Set while a write waits for the client.
    deadline: Option<Pin<Box<Sleep>>>,
    /// How many bytes were written since the deadline was set.
    written: usize,
}

/// The number of open sockets of clients in this process.
static OPEN: AtomicUsize = AtomicUsize::new(0);

pub(super) fn open_connections() -> usize {
    OPEN.load(Ordering::Relaxed)
}

impl<S> Drop for ClientIo<S> {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<S: Socket> ClientIo<S> {
    pub(super) fn new(socket: S, write_timeout: Duration, client: Arc<Client>) -> Self {
        OPEN.fetch_add(1, Ordering::Relaxed);
        Self {
            socket,
            write_timeout,
            client,
            is_read: false,
            again: None,
            deadline: None,
            written: 0,
        }
    }

    /// Fails a write that still waits at the deadline.
    fn check_deadline<T>(
        &mut self,
        cx: &mut Context<'_>,
        progress: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if progress.is_pending() {
            let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(self.write_timeout)));
            ready!(deadline.as_mut().poll(cx));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        progress
    }
}

impl<S: Socket> AsyncRead for ClientIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.socket).poll_read(cx, buf);
        self.is_read = read.is_pending();
        read
    }
}

impl<S: Socket> AsyncWrite for ClientIo<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let instead = instead_of(bytes);
        let written =
            Pin::new(&mut self.socket).poll_write(cx, instead.as_deref().unwrap_or(bytes));
        let written = ready!(self.check_deadline(cx, written))?;
        self.client.written.fetch_add(written, Ordering::Relaxed);
        self.written += written;
        if self.written >= LEAST_BYTES {
            (self.deadline, self.written) = (None, 0);
        }
        // this answer is so short that the socket takes it in one piece
        Poll::Ready(Ok(if instead.is_some() { bytes.len() } else { written }))
    }

    /// hyper flushes after it has written everything, and each time that it has looked for work.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // bytes of further requests hide the client's end, and requests of a client that is gone must not be handled
        if !self.is_read
            && let Poll::Ready(is_end) = self.socket.poll_end(cx)
        {
            if is_end {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            // the end may follow bytes that nobody reads yet, and then wakes nobody: look again later
            let again = self.again.insert(Box::pin(sleep(PATIENCE)));
            let _ = again.as_mut().poll(cx);
        }
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        ready!(self.check_deadline(cx, flushed))?;
        (self.deadline, self.written) = (None, 0);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.socket).poll_shutdown(cx);
        self.check_deadline(cx, shut)
    }
}

/// If these bytes are hyper's own answer, which has no body, the bytes to write in their place: hyper found the head malformed
/// or too large.
fn instead_of(bytes: &[u8]) -> Option<Vec<u8>> {
    let (kind, detail) = match bytes.get(..13)? {
        b"HTTP/1.1 400 " => (ProblemType::BAD_REQUEST, "the head of the request is not HTTP/1.1"),
        b"HTTP/1.1 431 " => (
            ProblemType::HEADERS_TOO_LARGE,
            "there are at most 100 headers, with at most 16 KiB together; path and query have at most 8 KiB",
        ),
        _ => return None,
    };
    // an answer of a handler with such a status always has a body
    if !bytes.windows(19).any(|text| text == b"content-length: 0\r\n") {
        return None;
    }
    let body = serde_json::to_string(&Problem::new(kind, detail)).ok()?;
    let head = format!("HTTP/1.1 {}\r\ncontent-type: {}\r\n", kind.status, problem::MEDIA_TYPE);
    let rest = format!("connection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    Some([head, rest].concat().into_bytes())
}

#[cfg(test)]
mod tests {
    //! Goal: a slow reader is served, and a client that hardly reads is cut off. Method: a pipe in memory, and paused time.

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    impl Socket for DuplexStream {
        fn poll_end(&self, _cx: &mut Context<'_>) -> Poll<bool> {
            Poll::Pending
        }
    }

    /// Goal: a client that reads byte by byte is too slow.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_slowly_is_served() {
        for (step, is_enough) in [(LEAST_BYTES, true), (1, false)] {
            let (server, mut client) = duplex(64);
            let state = Arc::new(Client::new(watch::channel(false).1));
            let mut io = ClientIo::new(server, TIMEOUT, state);
            let reading = tokio::spawn(async move {
                for _ in 0..10 {
                    sleep(TIMEOUT * 9 / 10).await;
                    client.read_exact(&mut vec![0; step]).await.expect("there is more");
                }
            });
            let written = io.write_all(&vec![b'x'; 10 * LEAST_BYTES]).await;
            assert_eq!(written.is_ok(), is_enough, "{step} bytes at once");
            reading.await.expect("all was read");
        }
    }
}
