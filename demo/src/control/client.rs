//! One HTTP request on a separate connection.

use std::io;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderName};
use axum::http::request::Builder;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::time::timeout;

/// The header that names the instance which passes on a call of its page.
pub(crate) const FROM: HeaderName = HeaderName::from_static("x-instance");

/// Sends the request with this JSON body, and returns the status and the body of the answer.
///
/// # Errors
/// There is no complete answer within `limit`.
pub(crate) async fn send(
    request: Builder,
    body: impl Into<Bytes>,
    limit: Duration,
) -> io::Result<(StatusCode, Bytes)> {
    let request = request.header(CONTENT_TYPE, "application/json").body(Full::new(body.into()));
    let request = request.map_err(io::Error::other)?;
    let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build_http();
    let exchange = async {
        let answer = client.request(request).await.map_err(io::Error::other)?;
        let status = answer.status();
        let body = answer.into_body().collect().await.map_err(io::Error::other)?;
        Ok((status, body.to_bytes()))
    };
    timeout(limit, exchange).await?
}
