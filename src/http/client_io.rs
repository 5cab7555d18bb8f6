//! The socket of one client: a client that reads nothing is cut off; one that only stops sending gets its
//! answer.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::Version;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// The pause before the first probe of a client that stopped sending and waits for its answer. It doubles with
/// each probe.
const FIRST_PROBE: Duration = Duration::from_millis(250);

/// An interim answer, which a client skips (RFC 9110, section 15.2). If the client is gone, its system answers
/// with a reset, and the next probe fails.
const PROBE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// How much of an answer a client has to read within the timeout, unless less is left.
const LEAST_BYTES: usize = 16 * 1024;

/// The state of the connection's request, shared by the socket and the service behind it.
#[derive(Debug, Default)]
pub(super) struct Exchange(AtomicU8);

impl Exchange {
    /// No request waits for an answer.
    const IDLE: u8 = 0;
    /// A request of HTTP/1.0, which has no interim answers, waits for an answer.
    const WAITS: u8 = 1;
    /// A request waits for an answer.
    const WAITS_AND_CAN_BE_PROBED: u8 = 2;

    /// The head of a request of this version has come.
    pub(super) fn begin(&self, version: Version) {
        let waits = match version {
            Version::HTTP_10 => Self::WAITS,
            _ => Self::WAITS_AND_CAN_BE_PROBED,
        };
        self.0.store(waits, Ordering::Relaxed);
    }

    /// The answer has been handed to the connection.
    pub(super) fn end(&self) {
        self.0.store(Self::IDLE, Ordering::Relaxed);
    }

    fn is(&self, state: u8) -> bool {
        self.0.load(Ordering::Relaxed) == state
    }
}

/// The socket of one client, read and written by one task.
///
/// A write fails, which ends the connection, if the client reads too little within the timeout.
///
/// While a request waits for its answer, hyper does not see the end of the client's data: it would take the
/// client for gone. TCP shows the difference only when something is sent, hence [`PROBE`].
#[derive(Debug)]
pub(super) struct ClientIo<S> {
    socket: S,
    exchange: Arc<Exchange>,
    write_timeout: Duration,
    /// The time limit of a client that does not read all.
    stall: Option<Pin<Box<Sleep>>>,
    /// How much it has read since.
    taken: usize,
    /// Whether hyper has written and not flushed.
    is_writing: bool,
    /// Set when the client stopped sending: the next probe, and the pause before it.
    half_closed: Option<(Pin<Box<Sleep>>, Duration)>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> ClientIo<S> {
    pub(super) fn new(socket: S, exchange: Arc<Exchange>, write_timeout: Duration) -> Self {
        let (stall, half_closed) = (None, None);
        Self { socket, exchange, write_timeout, stall, taken: 0, is_writing: false, half_closed }
    }

    fn owes_answer(&self) -> bool {
        self.is_writing || !self.exchange.is(Exchange::IDLE)
    }

    /// Fails a write that waits for a client which reads too little.
    fn bound<T>(
        &mut self,
        cx: &mut Context<'_>,
        progress: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if progress.is_pending() {
            let stall = self.stall.get_or_insert_with(|| Box::pin(sleep(self.write_timeout)));
            ready!(stall.as_mut().poll(cx));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        progress
    }

    /// Waits until the answer is written. Fails if the client is gone.
    fn poll_half_closed(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let (next_probe, pause) =
            self.half_closed.get_or_insert_with(|| (Box::pin(sleep(FIRST_PROBE)), FIRST_PROBE));
        loop {
            ready!(next_probe.as_mut().poll(cx));
            *pause *= 2;
            next_probe.as_mut().reset(Instant::now() + *pause);
            if self.is_writing || !self.exchange.is(Exchange::WAITS_AND_CAN_BE_PROBED) {
                continue;
            }
            match Pin::new(&mut self.socket).poll_write(cx, PROBE) {
                Poll::Ready(Ok(written)) if written < PROBE.len() => {
                    // the rest of the probe would follow the beginning of the answer
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
        let written = ready!(self.bound(cx, written))?;
        self.taken += written;
        if self.taken >= LEAST_BYTES {
            (self.stall, self.taken) = (None, 0);
        }
        Poll::Ready(Ok(written))
    }

    /// hyper flushes when it has written everything.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        ready!(self.bound(cx, flushed))?;
        (self.stall, self.taken, self.is_writing) = (None, 0, false);
        if self.half_closed.is_some() && !self.owes_answer() {
            // wakes the reader, which can see the end now
            cx.waker().wake_by_ref();
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
    //! Goal: a slow reader is served, and a client that does not read is cut off; one that stopped sending is
    //! served, and one that is gone is not. Method: a pipe in memory, and paused time.

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

    /// Goal: reading byte by byte is too slow.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_slowly_is_served() {
        for (step, is_enough) in [(LEAST_BYTES, true), (1, false)] {
            let (mut io, mut client) = pipe(Exchange::IDLE);
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

    /// Goal: hyper sees the end of the client's data when the answer is written, and not before.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_stopped_sending_gets_its_answer() {
        for (state, probes) in [(Exchange::WAITS, 0), (Exchange::WAITS_AND_CAN_BE_PROBED, 2)] {
            let (mut io, mut client) = pipe(state);
            client.shutdown().await.expect("it only stops sending");
            timeout(4 * FIRST_PROBE, io.read_u8()).await.expect_err("not yet");
            io.exchange.end();
            io.write_all(b"!").await.expect("written");
            io.flush().await.expect("flushed");
            assert_eq!(io.read(&mut [0]).await.expect("now"), 0);
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
        assert!(io.owes_answer(), "or hyper would have seen the end");
    }

    #[tokio::test]
    async fn the_end_is_told_where_nothing_is_owed() {
        let (mut io, client) = pipe(Exchange::IDLE);
        drop(client);
        assert_eq!(io.read(&mut [0]).await.expect("an end is no error"), 0);
    }
}
