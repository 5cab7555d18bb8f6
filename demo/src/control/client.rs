//! One HTTP request on a connection of its own.

use std::io;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::header::{CONTENT_TYPE, HOST, HeaderName};
use axum::http::{Method, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

/// Names the instance that passes a call of its page on.
pub(crate) const FROM: HeaderName = HeaderName::from_static("x-instance");

/// A request with a JSON body.
pub(crate) fn request(method: Method, path: &str, body: Bytes) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = method;
    *request.uri_mut() = path.parse().unwrap_or_default();
    let json = "application/json".parse().expect("a header value");
    request.headers_mut().insert(CONTENT_TYPE, json);
    request
}

/// Sends the request to `authority`, and returns the status and the body of the answer.
///
/// # Errors
/// There is no whole answer within `limit`.
pub(crate) async fn send(
    authority: &str,
    mut request: Request<Full<Bytes>>,
    limit: Duration,
) -> io::Result<(StatusCode, Bytes)> {
    let exchange = async {
        let host = authority.parse().map_err(io::Error::other)?;
        request.headers_mut().insert(HOST, host);
        let stream = TokioIo::new(TcpStream::connect(authority).await?);
        let (mut sender, connection) = http1::handshake(stream).await.map_err(io::Error::other)?;
        let _driver = AbortOnDropHandle::new(tokio::spawn(connection));
        let answer = sender.send_request(request).await.map_err(io::Error::other)?;
        let status = answer.status();
        let body = answer.into_body().collect().await.map_err(io::Error::other)?;
        Ok((status, body.to_bytes()))
    };
    timeout(limit, exchange).await?
}
