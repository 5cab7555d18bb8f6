//! The head of a request: its limits, violations of HTTP/1.1 that the parser accepts, and its memory.

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderValue, Request, Uri, Version, header};

use super::problem::{Problem, ProblemType};
use crate::safeguard::LIMITS;

/// The most bytes that all headers together may have.
pub const MAX_HEADER_BYTES: usize = 16 * 1024;

/// The most bytes that path and query together may have.
pub const MAX_URI_BYTES: usize = 8 * 1024;

/// Refuses a request that is malformed or whose head is too large, before any handler sees it.
///
/// hyper's own limits are larger, and its answers have no body: see [`server`](super::server).
///
/// # Errors
/// `bad-request`, `uri-too-long` or `headers-too-large`.
pub(super) fn check<B>(request: &Request<B>) -> Result<(), Problem> {
    let headers = request.headers();
    let bad = |detail| Err(Problem::new(ProblemType::BAD_REQUEST, detail));
    let lines = |name| headers.get_all(name).iter().count();
    // a proxy may read another host, or another end of the body, from such a request (RFC 9112, 3.2 and 6.1)
    let hosts = lines(header::HOST);
    if hosts > 1 || (hosts == 0 && request.version() == Version::HTTP_11) {
        return bad("a request of HTTP/1.1 has one header Host");
    }
    if lines(header::TRANSFER_ENCODING) > usize::from(is_chunked(headers)) {
        return bad("the one transfer coding is `chunked`, applied once");
    }
    if !LIMITS.is_on() {
        return Ok(());
    }
    let uri_bytes = request.uri().path_and_query().map_or(0, |text| text.as_str().len());
    if uri_bytes > MAX_URI_BYTES {
        let detail = format!("path and query together have at most {MAX_URI_BYTES} bytes");
        return Err(Problem::new(ProblemType::URI_TOO_LONG, detail));
    }
    // each header was sent as name, colon, space, value and line end
    let header_bytes: usize =
        headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if header_bytes > MAX_HEADER_BYTES {
        let detail = format!("all headers together have at most {MAX_HEADER_BYTES} bytes");
        return Err(Problem::new(ProblemType::HEADERS_TOO_LARGE, detail));
    }
    Ok(())
}

/// Whether the body is chunked. The parser ignores a `Content-Length` beside it, so the connection must not be used again (RFC
/// 9112, section 6.1).
pub(super) fn is_chunked(headers: &HeaderMap) -> bool {
    let coding = headers.get(header::TRANSFER_ENCODING);
    coding.is_some_and(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
}

/// Copies the parts of the head that share memory with the buffer into which hyper read them.
///
/// While a request is handled, hyper waits for the end of the connection, and needs a buffer of 8 KiB for that. If the request
/// shares that buffer, hyper allocates another one: this would be the largest part of the memory of a waiting order.
pub(super) fn detach_from_read_buffer<B>(request: &mut Request<B>) {
    for value in request.headers_mut().values_mut() {
        if let Ok(copy) = HeaderValue::from_bytes(value.as_bytes()) {
            *value = copy;
        }
    }
    let uri = request.uri();
    // a URI with a host, which clients send to proxies, stays shared: this is rare, and costs only memory
    if let (None, Some(path)) = (uri.authority(), uri.path_and_query()) {
        let copy = Bytes::copy_from_slice(path.as_str().as_bytes());
        if let Ok(copy) = Uri::from_maybe_shared(copy) {
            *request.uri_mut() = copy;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that a connection has read: a path and a value.
    const READ: &[u8] = b"/stock/reduce?item=tea|an-order-id";

    #[test]
    fn the_head_is_the_same_and_lies_elsewhere() {
        let buffer = Bytes::copy_from_slice(READ);
        let bar = READ.iter().position(|byte| *byte == b'|').expect("it is there");
        let mut request = Request::new(());
        *request.uri_mut() = Uri::from_maybe_shared(buffer.slice(..bar)).expect("a path");
        let id = HeaderValue::from_maybe_shared(buffer.slice(bar + 1..)).expect("an id");
        request.headers_mut().insert("idempotency-key", id);
        let is_in_buffer = |part: &[u8]| buffer.as_ptr_range().contains(&part.as_ptr());
        let path = |request: &Request<()>| is_in_buffer(request.uri().path().as_bytes());
        let id =
            |request: &Request<()>| is_in_buffer(request.headers()["idempotency-key"].as_bytes());
        assert!(path(&request) && id(&request), "or this test shows nothing");

        detach_from_read_buffer(&mut request);

        assert!(!path(&request), "the path");
        assert!(!id(&request), "the header");
        assert_eq!(request.uri(), "/stock/reduce?item=tea");
        assert_eq!(request.headers()["idempotency-key"], "an-order-id");
    }
}
