//! A connection to the store, in memory: a stream of bytes in each direction. Nothing arrives by itself: the simulator
//! takes the requests and sends the answers.

use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::data::{Reply, Text};

/// A connection that is open: the end of the service and the end of the store.
pub fn connection() -> (ClientEnd, StoreEnd) {
    let wire = Arc::<Mutex<Wire>>::default();
    (ClientEnd(Arc::clone(&wire)), StoreEnd { wire, requests: Vec::new() })
}

#[derive(Default)]
struct Wire {
    to_store: Vec<u8>,
    to_client: Vec<u8>,
    reader: Option<Waker>,
    /// Wakes the end of the store, which waits for a request.
    server: Option<Waker>,
    is_cut: bool,
    is_left: bool,
}

impl Wire {
    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    fn leave(&mut self) {
        self.is_left = true;
        self.wake_server();
    }

    fn wake_server(&mut self) {
        if let Some(server) = self.server.take() {
            server.wake();
        }
    }
}

/// The end of the service: the stream for its Redis client.
pub struct ClientEnd(Arc<Mutex<Wire>>);

impl AsyncRead for ClientEnd {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut wire = self.0.lock();
        if !wire.to_client.is_empty() {
            let size = buffer.remaining().min(wire.to_client.len());
            buffer.put_slice(&wire.to_client[..size]);
            wire.to_client.drain(..size);
            return Poll::Ready(Ok(()));
        }
        if wire.is_cut {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        wire.reader = Some(context.waker().clone());
        Poll::Pending
    }
}

impl AsyncWrite for ClientEnd {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut wire = self.0.lock();
        if wire.is_cut {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        wire.to_store.extend(bytes);
        wire.wake_server();
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.lock().leave();
        Poll::Ready(Ok(()))
    }
}

impl Drop for ClientEnd {
    fn drop(&mut self) {
        self.0.lock().leave();
    }
}

pub struct StoreEnd {
    wire: Arc<Mutex<Wire>>,
    /// The beginning of the next request.
    requests: Vec<u8>,
}

impl StoreEnd {
    /// Takes the next request that the client has sent whole, also after the client has left.
    pub fn next_request(&mut self) -> Option<Vec<Text>> {
        self.requests.append(&mut mem::take(&mut self.wire.lock().to_store));
        let mut rest = &self.requests[..];
        let words = number(&mut rest, b'*')?;
        let request = (0..words).map(|_| {
            let size = number(&mut rest, b'$')?;
            let (word, behind) = rest.split_at_checked(size)?;
            rest = behind.strip_prefix(b"\r\n")?;
            Some(word.to_vec())
        });
        let request = request.collect::<Option<_>>()?;
        let used = self.requests.len() - rest.len();
        self.requests.drain(..used);
        Some(request)
    }

    /// Waits for the [next request](Self::next_request). `None` at the end: the client has left, or the connection was cut.
    pub fn poll_request(&mut self, context: &mut Context<'_>) -> Poll<Option<Vec<Text>>> {
        self.wire.lock().server = Some(context.waker().clone());
        let is_over = {
            let wire = self.wire.lock();
            wire.is_left || wire.is_cut
        };
        match self.next_request() {
            None if !is_over => Poll::Pending,
            request => Poll::Ready(request),
        }
    }

    /// Whether the client has sent more than the store took.
    pub fn has_more(&self) -> bool {
        !self.requests.is_empty() || !self.wire.lock().to_store.is_empty()
    }

    /// Delivers an answer. The answers must be in the order of the requests. A client that has left does not get it.
    pub fn answer(&self, reply: &Reply) {
        let mut wire = self.wire.lock();
        if !wire.is_cut {
            reply.encode(&mut wire.to_client);
            wire.wake();
        }
    }

    /// Ends the connection: the client reads what was delivered, and then an error. Requests that were sent stay here.
    pub fn cut(&self) {
        let mut wire = self.wire.lock();
        wire.is_cut = true;
        wire.wake();
        wire.wake_server();
    }
}

/// The number of a line of this kind; `None` until the line is complete.
fn number(rest: &mut &[u8], kind: u8) -> Option<usize> {
    let end = rest.iter().position(|b| *b == b'\r')?;
    let line = rest[..end].strip_prefix(&[kind]).expect("the client sends requests only");
    let number = str::from_utf8(line).ok().and_then(|text| text.parse().ok());
    *rest = rest[end..].strip_prefix(b"\r\n")?;
    Some(number.expect("the client sends RESP"))
}
