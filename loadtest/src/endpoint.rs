//! The address of an instance.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{self, HeaderValue};
use hyper::http::uri::Authority;
use hyper::{Method, Request, Uri};

/// The media type of bodies and answers.
pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The base URL of an instance, without a slash at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BaseUrl {
    pub(crate) authority: Authority,
    /// Put before every path; empty for an instance at the root.
    path: String,
}

/// An instance with its resolved addresses: connections must not cause look-ups.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub(crate) url: BaseUrl,
    pub(crate) addresses: Vec<SocketAddr>,
    host: HeaderValue,
}

impl FromStr for BaseUrl {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let uri = text.parse::<Uri>().ok();
        let uri = uri.filter(|uri| uri.scheme_str() == Some("http") && uri.query().is_none());
        let is_host = |authority: &&Authority| {
            !authority.host().is_empty() && !authority.as_str().contains('@')
        };
        let authority = uri.as_ref().and_then(Uri::authority).filter(is_host).cloned();
        let (uri, authority) = uri.zip(authority).ok_or(
            "write a base URL such as http://127.0.0.1:8080, without TLS, a user and a query",
        )?;
        Ok(Self { authority, path: uri.path().trim_end_matches('/').to_owned() })
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.path)
    }
}

impl Endpoint {
    /// Looks up the host.
    ///
    /// # Errors
    /// The host has no address.
    pub(crate) async fn resolve(url: BaseUrl) -> io::Result<Self> {
        let host = HeaderValue::from_str(url.authority.as_str()).map_err(io::Error::other)?;
        let name = url.authority.host().trim_matches(['[', ']']);
        let port = url.authority.port_u16().unwrap_or(80);
        let addresses = tokio::net::lookup_host((name, port)).await?.collect();
        Ok(Self { url, addresses, host })
    }

    /// A request to this instance, without a body. The path is made of checked names and numbers.
    ///
    /// # Panics
    /// The path is invalid.
    pub(crate) fn request(&self, method: Method, path_and_query: &str) -> Request<Full<Bytes>> {
        let path = format!("{}{path_and_query}", self.url.path);
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
            let url: BaseUrl = text.parse().expect(text);
            assert_eq!(url.to_string(), shown);
            let endpoint = Endpoint::resolve(url).await.expect("an address needs no look-up");
            assert_eq!(endpoint.addresses, [address.parse().expect("an address")]);
        }
        for text in
            ["https://shop", "shop:8080", "http://me@shop", "http://shop?x=1", "http://sh op"]
        {
            text.parse::<BaseUrl>().expect_err(text);
        }
    }
}
