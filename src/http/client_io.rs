//! The socket of one client, as the server sees it: who reads nothing is cut off, and who only stops
//! sending still gets an answer.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Request, Version};
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// After how long a client that stopped sending, and waits for its answer, is asked whether it is still there;
/// then after twice as long, and so on.
const FIRST_PROBE: Duration = Duration::from_millis(250);

/// An interim answer, which a client skips (RFC 9110, section 15.2). The system of a client that has gone
/// answers it with a reset, and the next one fails.
const PROBE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// What the connection's request has come to: shared by the socket and the service behind it.
#[derive(Debug, Default)]
pub(super) struct Exchange(AtomicU8);

impl Exchange {
    /// No whole request waits for an answer.
    const IDLE: u8 = 0;
    /// One does, of HTTP/1.0, which has no interim answers.
    const WAITS: u8 = 1;
    /// One does.
    const WAITS_AND_CAN_BE_PROBED: u8 = 2;

    /// Follows `request` until its body was read: from then on an answer is owed.
    pub(super) fn begin(self: &Arc<Self>, request: Request<Incoming>) -> Request<Body> {
        let owed = match request.version() {
            Version::HTTP_10 => Self::WAITS,
            _ => Self::WAITS_AND_CAN_BE_PROBED,
        };
        if request.body().is_end_stream() {
            self.0.store(owed, Ordering::Relaxed);
            return request.map(Body::new);
        }
        let exchange = Arc::clone(self);
        request.map(|incoming| Body::new(RequestBody { incoming, exchange, owed }))
    }

    /// The answer is the connection's from now on.
    pub(super) fn end(&self) {
        self.0.store(Self::IDLE, Ordering::Relaxed);
    }

    fn is(&self, state: u8) -> bool {
        self.0.load(Ordering::Relaxed) == state
    }
}

/// A body that tells its end.
struct RequestBody {
    incoming: Incoming,
    exchange: Arc<Exchange>,
    owed: u8,
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(cx));
        if frame.is_none() {
            self.exchange.0.store(self.owed, Ordering::Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

/// The socket of one client.
///
/// A write that makes no progress for the timeout fails, which ends the connection.
///
/// The end of what a client sends is kept from hyper while an answer is owed: hyper would take it for a
/// client that has gone. TCP tells the two apart only when something is sent, hence [`PROBE`].
#[derive(Debug)]
pub(super) struct ClientIo<S> {
    socket: S,
    exchange: Arc<Exchange>,
    write_timeout: Duration,
    /// Ends when a write has waited for too long.
    stall: Option<Pin<Box<Sleep>>>,
    /// Whether hyper has begun to write and not flushed.
    is_writing: bool,
    half_closed: Option<HalfClosed>,
}

/// The client sends nothing more, and waits for an answer.
#[derive(Debug)]
struct HalfClosed {
    /// Who reads, and is told once the answer is written.
    reader: Waker,
    next_probe: Pin<Box<Sleep>>,
    pause: Duration,
}

impl<S: AsyncRead + AsyncWrite + Unpin> ClientIo<S> {
    pub(super) fn new(socket: S, exchange: Arc<Exchange>, write_timeout: Duration) -> Self {
        let (stall, half_closed) = (None, None);
        Self { socket, exchange, write_timeout, stall, is_writing: false, half_closed }
    }

    fn owes_answer(&self) -> bool {
        self.is_writing || !self.exchange.is(Exchange::IDLE)
    }

    /// Fails in the place of a write that has made no progress for too long.
    fn bound<T>(
        &mut self,
        cx: &mut Context<'_>,
        progress: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if progress.is_ready() {
            self.stall = None;
            return progress;
        }
        let stall = self.stall.get_or_insert_with(|| Box::pin(sleep(self.write_timeout)));
        ready!(stall.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Waits until the answer is written; fails if the client has gone.
    fn poll_half_closed(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let half_closed = self.half_closed.get_or_insert_with(|| HalfClosed {
            reader: cx.waker().clone(),
            next_probe: Box::pin(sleep(FIRST_PROBE)),
            pause: FIRST_PROBE,
        });
        half_closed.reader.clone_from(cx.waker());
        loop {
            ready!(half_closed.next_probe.as_mut().poll(cx));
            half_closed.pause *= 2;
            half_closed.next_probe.as_mut().reset(Instant::now() + half_closed.pause);
            if self.is_writing || !self.exchange.is(Exchange::WAITS_AND_CAN_BE_PROBED) {
                continue;
            }
            match Pin::new(&mut self.socket).poll_write(cx, PROBE) {
                Poll::Ready(Ok(written)) if written < PROBE.len() => {
                    // what is left of it would come after the answer has begun
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(_)) | Poll::Pending => {}
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for ClientIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.half_closed.is_none() {
            let before = buf.filled().len();
            ready!(Pin::new(&mut self.socket).poll_read(cx, buf))?;
            if buf.filled().len() > before {
                return Poll::Ready(Ok(()));
            }
        }
        if self.owes_answer() { self.poll_half_closed(cx) } else { Poll::Ready(Ok(())) }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ClientIo<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.is_writing = true;
        let written = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.bound(cx, written)
    }

    /// hyper flushes when it has written all that it had.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        ready!(self.bound(cx, flushed))?;
        self.is_writing = false;
        if !self.owes_answer()
            && let Some(half_closed) = &self.half_closed
        {
            half_closed.reader.wake_by_ref();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.socket).poll_shutdown(cx);
        self.bound(cx, shut)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a client that reads is served however slow it is, and one that does not is cut off; one that
    //! stopped sending is served, and one that has gone is not. Method: a pipe in memory, and paused time.

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::time::timeout;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn pipe(state: u8) -> (ClientIo<DuplexStream>, DuplexStream) {
        let (server, client) = duplex(64);
        let exchange = Arc::new(Exchange(AtomicU8::new(state)));
        (ClientIo::new(server, exchange, TIMEOUT), client)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_is_cut_off() {
        let (mut io, _client) = pipe(Exchange::IDLE);
        let began_at = Instant::now();
        let error = io.write_all(&[b'x'; 65]).await.expect_err("nobody reads");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(began_at.elapsed(), TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_slowly_is_served() {
        let (mut io, mut client) = pipe(Exchange::IDLE);
        let reading = tokio::spawn(async move {
            for _ in 0..640 {
                sleep(TIMEOUT / 2).await;
                client.read_u8().await.expect("the server writes on");
            }
        });
        io.write_all(&[b'x'; 640]).await.expect("it is read, byte by byte");
        reading.await.expect("all was read");
    }

    /// The end is told when the answer is written, and not before.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_stopped_sending_gets_its_answer() {
        for (state, probes) in [(Exchange::WAITS, 0), (Exchange::WAITS_AND_CAN_BE_PROBED, 2)] {
            let (mut io, mut client) = pipe(state);
            client.shutdown().await.expect("it only stops sending");
            timeout(4 * FIRST_PROBE, io.read_u8()).await.expect_err("not told yet");
            io.exchange.end();
            io.write_all(b"!").await.expect("written");
            io.flush().await.expect("flushed");
            assert_eq!(io.read(&mut [0]).await.expect("told now"), 0);
            drop(io);
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.expect("the answer");
            assert_eq!(answer, [PROBE.repeat(probes), b"!".to_vec()].concat());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_has_gone_is_noticed() {
        let (mut io, client) = pipe(Exchange::WAITS_AND_CAN_BE_PROBED);
        drop(client);
        io.read_u8().await.expect_err("it has gone");
        assert!(io.owes_answer(), "or the end itself would have been told");
    }

    #[tokio::test]
    async fn the_end_is_told_where_nothing_is_owed() {
        let (mut io, client) = pipe(Exchange::IDLE);
        drop(client);
        assert_eq!(io.read(&mut [0]).await.expect("an end is no error"), 0);
    }
}
