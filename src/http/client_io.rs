//! The socket of one client, with a time limit for writing.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How much of an answer a client has to read within the timeout, unless less is left.
const LEAST_BYTES: usize = 16 * 1024;

/// The socket of one client. A write fails, which ends the connection, if the client reads too little within the
/// timeout.
#[derive(Debug)]
pub(super) struct ClientIo<S> {
    socket: S,
    write_timeout: Duration,
    /// Set while a write waits for the client.
    deadline: Option<Pin<Box<Sleep>>>,
    /// How much was written since the deadline was set.
    written: usize,
}

/// The sockets of clients in this process.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// The number of open connections of clients.
pub(super) fn open_connections() -> usize {
    OPEN.load(Ordering::Relaxed)
}

impl<S> Drop for ClientIo<S> {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> ClientIo<S> {
    pub(super) fn new(socket: S, write_timeout: Duration) -> Self {
        OPEN.fetch_add(1, Ordering::Relaxed);
        Self { socket, write_timeout, deadline: None, written: 0 }
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

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for ClientIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ClientIo<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(cx, bytes);
        let written = ready!(self.check_deadline(cx, written))?;
        self.written += written;
        if self.written >= LEAST_BYTES {
            (self.deadline, self.written) = (None, 0);
        }
        Poll::Ready(Ok(written))
    }

    /// hyper flushes when it has written everything.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
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

#[cfg(test)]
mod tests {
    //! Goal: a slow reader is served, and a client that does not read is cut off. Method: a pipe in memory, and
    //! paused time.

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::time::Instant;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn pipe() -> (ClientIo<DuplexStream>, DuplexStream) {
        let (server, client) = duplex(64);
        (ClientIo::new(server, TIMEOUT), client)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_is_cut_off() {
        let (mut io, _client) = pipe();
        let began_at = Instant::now();
        let error = io.write_all(&[b'x'; 65]).await.expect_err("nobody reads");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(began_at.elapsed(), TIMEOUT);
    }

    /// Goal: reading byte by byte is too slow.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_slowly_is_served() {
        for (step, is_enough) in [(LEAST_BYTES, true), (1, false)] {
            let (mut io, mut client) = pipe();
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
