//! Requests to servers.

use std::error::Error;
use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(2);

/// The longest answer of a ZooKeeper that is read, in bytes.
const ANSWER_LIMIT: u64 = 256 * 1024;

/// Sends one HTTP request with a JSON body to `127.0.0.1:port` on a separate connection and returns the status and the body.
///
/// # Errors
/// If there is no complete answer within 2 s.
pub async fn http(
    method: Method,
    port: u16,
    path: &str,
    body: impl Into<Bytes>,
) -> io::Result<(StatusCode, String)> {
    ask(&format!("127.0.0.1:{port}"), method, path, body, TIMEOUT).await
}

/// Sends one HTTP request with a JSON body to the server at `authority`, a host and a port, and returns the status and the
/// body.
///
/// # Errors
/// If there is no complete answer within `limit`.
pub async fn ask(
    authority: &str,
    method: Method,
    path: &str,
    body: impl Into<Bytes>,
    limit: Duration,
) -> io::Result<(StatusCode, String)> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, authority)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(body.into()))
        .map_err(io::Error::other)?;
    let answer = async {
        let answer = send(authority, request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await.map_err(io::Error::other)?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    };
    timeout(limit, answer).await?
}

/// Sends this request to the server at `authority` on a separate connection, which lasts until the body of the answer has
/// ended.
///
/// # Errors
/// If there is no answer.
pub async fn send<B>(authority: &str, request: Request<B>) -> io::Result<Response<Incoming>>
where
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let stream = TcpStream::connect(authority).await?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    tokio::spawn(connection);
    sender.send_request(request).await.map_err(io::Error::other)
}

/// Sends one of its four-letter words to the ZooKeeper at `127.0.0.1:port` and returns its answer.
///
/// # Errors
/// When there is no answer within 2 s, or one of more than 256 KiB.
pub async fn zookeeper(port: u16, word: &str) -> io::Result<String> {
    let answer = async {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.write_all(word.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(ANSWER_LIMIT).read_to_end(&mut answer).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    timeout(TIMEOUT, answer).await?
}
