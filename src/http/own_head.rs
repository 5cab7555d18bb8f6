//! A request that holds on to none of its connection's memory.

use axum::body::Bytes;
use axum::http::{HeaderValue, Request, Uri};

/// Copies what a request's head shares with the buffer that it was read into.
///
/// hyper looks for the end of the connection as long as a request is worked on, and wants a buffer of
/// 8 KiB for that. If the request still shares the one that it came in, that is another one, for each
/// request: the largest part of what a waiting order takes.
pub(super) fn own_head<B>(request: &mut Request<B>) {
    for value in request.headers_mut().values_mut() {
        if let Ok(copy) = HeaderValue::from_bytes(value.as_bytes()) {
            *value = copy;
        }
    }
    let uri = request.uri();
    // with a host in it, as proxies are asked, it shares on: that is rare, and only costs memory
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

    /// What a connection has read: a path and a value.
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

        own_head(&mut request);

        assert!(!path(&request), "the path");
        assert!(!id(&request), "the header");
        assert_eq!(request.uri(), "/stock/reduce?item=tea");
        assert_eq!(request.headers()["idempotency-key"], "an-order-id");
    }
}
