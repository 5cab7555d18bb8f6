//! Asks a server on this machine whether it is there.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// How long one question may take.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The longest answer that is read, in bytes.
const ANSWER_LIMIT: usize = 256 * 1024;

/// Sends one HTTP request to `127.0.0.1:port` and returns the status and the body.
///
/// # Errors
/// When there is no whole answer within 2 s, or one of more than 256 KiB.
pub async fn http(
    method: Method,
    port: u16,
    path: &str,
    body: &'static str,
) -> io::Result<(StatusCode, String)> {
    within_timeout(async {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, format!("127.0.0.1:{port}"))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONNECTION, "close")
            .body(Full::new(Bytes::from_static(body.as_bytes())))
            .map_err(io::Error::other)?;
        let answer = async {
            let answer = sender.send_request(request).await.map_err(io::Error::other)?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), ANSWER_LIMIT).collect().await;
            let body = body.map_err(io::Error::other)?.to_bytes();
            Ok((status, String::from_utf8_lossy(&body).into_owned()))
        };
        // the connection makes progress only while it is polled, and ends with the answer
        let (answer, _) = tokio::join!(answer, connection);
        answer
    })
    .await
}

/// Sends one inline command to the Redis at `127.0.0.1:port` and returns what it says.
///
/// # Errors
/// When there is no answer within 2 s, or one of more than 256 KiB.
pub async fn redis(port: u16, command: &str) -> io::Result<String> {
    within_timeout(async {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        // QUIT makes it close the connection after the answer
        stream.write_all(format!("{command}\r\nQUIT\r\n").as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(ANSWER_LIMIT as u64).read_to_end(&mut answer).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    })
    .await
}

async fn within_timeout<T>(future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(TIMEOUT, future)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
