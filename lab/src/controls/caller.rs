//! Calls to the instances of a demo.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// The longest answer that is read, in bytes.
const ANSWER_LIMIT: usize = 64 * 1024;

/// A connection to one instance, made when it is first needed and again when it broke.
pub(super) struct Caller {
    authority: Arc<str>,
    connection: Option<Connection>,
}

struct Connection {
    sender: SendRequest<Full<Bytes>>,
    task: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What an instance answered.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
}

impl Caller {
    pub(super) fn new(authority: Arc<str>) -> Self {
        Self { authority, connection: None }
    }

    /// Connects, unless connected.
    pub(super) async fn connect(&mut self) -> io::Result<()> {
        if self.connection.as_ref().is_some_and(|connection| !connection.sender.is_closed()) {
            return Ok(());
        }
        let stream = TcpStream::connect(&*self.authority).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        let task = tokio::spawn(async {
            // what breaks is told to the sender
            drop(connection.await);
        });
        self.connection = Some(Connection { sender, task: task.abort_handle() });
        Ok(())
    }

    /// Sends a request with these headers, and reads the answer.
    ///
    /// # Errors
    /// No whole answer within `limit`.
    pub(super) async fn call(
        &mut self,
        method: Method,
        path: &str,
        headers: &[(&'static str, &str)],
        body: Bytes,
        limit: Duration,
    ) -> io::Result<Answer> {
        let answer = timeout(limit, self.exchange(method, path, headers, body)).await;
        let answer = answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        if answer.is_err() {
            // what comes late must not be taken for the answer to the next request
            self.connection = None;
        }
        answer
    }

    async fn exchange(
        &mut self,
        method: Method,
        path: &str,
        headers: &[(&'static str, &str)],
        body: Bytes,
    ) -> io::Result<Answer> {
        self.connect().await?;
        let connection = self.connection.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let mut request =
            Request::builder().method(method).uri(path).header(header::HOST, &*self.authority);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body)).map_err(io::Error::other)?;
        connection.sender.ready().await.map_err(io::Error::other)?;
        let answer = connection.sender.send_request(request).await.map_err(io::Error::other)?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_LIMIT).collect().await;
        Ok(Answer { status, body: body.map_err(io::Error::other)?.to_bytes() })
    }
}
