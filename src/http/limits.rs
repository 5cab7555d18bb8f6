//! Bounds on a request's head.

use std::task::{Context, Poll};

use axum::http::{HeaderMap, Request, Uri};
use axum::response::{IntoResponse, Response};
use futures_util::future::{Either, Ready, ready};
use tower::{Layer, Service};

use super::problem::{Problem, ProblemType};
use super::safeguard::LIMITS;

/// The most bytes that all headers together may have.
pub const MAX_HEADER_BYTES: usize = 16 * 1024;

/// The most bytes that path and query together may have.
pub const MAX_URI_BYTES: usize = 8 * 1024;

/// Refuses a request whose head is too large, before anything looks at it.
///
/// hyper has limits too, but it answers without a body; they stand behind these, see
/// [`server`](super::server).
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadLimits;

impl<S> Layer<S> for HeadLimits {
    type Service = LimitHead<S>;

    fn layer(&self, inner: S) -> LimitHead<S> {
        LimitHead { inner }
    }
}

/// See [`HeadLimits`].
#[derive(Clone, Debug)]
pub(super) struct LimitHead<S> {
    inner: S,
}

impl<S, B> Service<Request<B>> for LimitHead<S>
where
    S: Service<Request<B>, Response = Response>,
{
    type Response = Response;
    type Error = S::Error;
    type Future = Either<S::Future, Ready<Result<Response, S::Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        match check(request.uri(), request.headers()) {
            Ok(()) => Either::Left(self.inner.call(request)),
            Err(problem) => Either::Right(ready(Ok(problem.into_response()))),
        }
    }
}

fn check(uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
    if !LIMITS.is_on() {
        return Ok(());
    }
    let uri_bytes = uri.path_and_query().map_or(0, |text| text.as_str().len());
    if uri_bytes > MAX_URI_BYTES {
        let detail = format!("path and query together have at most {MAX_URI_BYTES} bytes");
        return Err(Problem::new(ProblemType::UriTooLong, detail));
    }
    // as they were sent: name, colon, space, value and line end
    let header_bytes: usize =
        headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if header_bytes > MAX_HEADER_BYTES {
        let detail = format!("all headers together have at most {MAX_HEADER_BYTES} bytes");
        return Err(Problem::new(ProblemType::HeadersTooLarge, detail));
    }
    Ok(())
}
