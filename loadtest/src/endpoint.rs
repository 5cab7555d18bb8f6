//! The address of an instance.

use std::io;
use std::net::SocketAddr;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{self, HeaderValue};
use hyper::http::uri::Authority;
use hyper::{Method, Request, Uri};

/// The media type of bodies and answers.
pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// An instance with its resolved addresses, so that no connection needs a look-up.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub(crate) url: String,
    pub(crate) addresses: Vec<SocketAddr>,
    /// Put before every path; empty for an instance at the root.
    path: String,
    host: HeaderValue,
}

/// Reads the base URL of an instance, and returns it without a slash at its end.
pub(crate) fn base_url(text: &str) -> Result<String, &'static str> {
    let is_host = |at: &Authority| !at.host().is_empty() && !at.as_str().contains('@');
    let is_base = text.parse().is_ok_and(|uri: Uri| {
        let is_plain = uri.scheme_str() == Some("http") && uri.query().is_none();
        is_plain && uri.authority().is_some_and(is_host)
    });
    let said = "write a base URL such as http://127.0.0.1:8080, without TLS, a user and a query";
    is_base.then(|| text.trim_end_matches('/').to_owned()).ok_or(said)
}

impl Endpoint {
    /// Looks up the host of a base URL.
    ///
    /// # Errors
    /// The host has no address.
    pub(crate) async fn resolve(url: &str) -> io::Result<Self> {
        let uri: Uri = url.parse().map_err(io::Error::other)?;
        let authority = uri.authority().ok_or(io::ErrorKind::InvalidInput)?;
        let host = HeaderValue::from_str(authority.as_str()).map_err(io::Error::other)?;
        let name = authority.host().trim_matches(['[', ']']);
        let port = authority.port_u16().unwrap_or(80);
        let addresses = tokio::net::lookup_host((name, port)).await?.collect();
        let path = uri.path().trim_end_matches('/').to_owned();
        Ok(Self { url: url.to_owned(), addresses, path, host })
    }

    /// A request to this instance, without a body. The caller builds the path from checked names and numbers.
    ///
    /// # Panics
    /// The path is invalid.
    pub(crate) fn request(&self, method: Method, path_and_query: &str) -> Request<Full<Bytes>> {
        let path = format!("{}{path_and_query}", self.path);
        let mut request = Request::new(Full::default());
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().expect("made of checked names and numbers");
        request.headers_mut().insert(header::HOST, self.host.clone());
        request.headers_mut().insert(header::ACCEPT, JSON);
        request
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: usual base URLs are accepted, and looked up; others are refused with the reason.
    #[tokio::test]
    async fn base_urls() {
        for (text, shown, address) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080", "127.0.0.1:8080"),
            ("http://127.0.0.1/sale/", "http://127.0.0.1/sale", "127.0.0.1:80"),
            ("http://[::1]:8090/", "http://[::1]:8090", "[::1]:8090"),
            ("http://[::1]", "http://[::1]", "[::1]:80"),
        ] {
            let url = base_url(text).expect(text);
            let endpoint = Endpoint::resolve(&url).await.expect("an address needs no look-up");
            assert_eq!(endpoint.url, shown);
            assert_eq!(endpoint.addresses, [address.parse().expect("an address")]);
        }
        for text in
            ["https://shop", "shop:8080", "http://me@shop", "http://shop?x=1", "http://sh op"]
        {
            base_url(text).expect_err(text);
        }
    }
}
