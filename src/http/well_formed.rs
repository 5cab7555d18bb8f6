//! What HTTP/1.1 forbids and the parser lets through.

use axum::http::{HeaderMap, Request, Version, header};

use super::problem::{Problem, ProblemType};

/// Refuses a request that a server must refuse: one whose host, or whose end, a proxy in front may have
/// understood differently.
///
/// # Errors
/// `bad-request`.
pub(super) fn check<B>(request: &Request<B>) -> Result<(), Problem> {
    let headers = request.headers();
    let lines = |name| headers.get_all(name).iter().count();
    // RFC 9112, section 3.2
    let hosts = lines(header::HOST);
    let detail = if hosts > 1 || (hosts == 0 && request.version() == Version::HTTP_11) {
        "a request of HTTP/1.1 has one header Host"
    // section 6.1
    } else if lines(header::TRANSFER_ENCODING) > usize::from(is_chunked(headers)) {
        "the one transfer coding is `chunked`, applied once"
    } else {
        return Ok(());
    };
    Err(Problem::new(ProblemType::BadRequest, detail))
}

/// Whether the body ends where its chunks say. The parser forgets a `Content-Length` beside it, so the
/// connection must not be used again (RFC 9112, section 6.1).
pub(super) fn is_chunked(headers: &HeaderMap) -> bool {
    let coding = headers.get(header::TRANSFER_ENCODING);
    coding.is_some_and(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
}
