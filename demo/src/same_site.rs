//! Refuses requests from other sites: any page in a browser can send requests to this machine.

use axum::extract::Request;
use axum::http::{HeaderMap, Uri, header};
use axum::middleware::Next;
use axum::response::Response;
use flash_sale::http::problem::{Problem, ProblemType};

/// Checks where a request to the demo comes from.
///
/// - The `Origin`, which browsers add to all requests that can change something, must be the address that the request was sent
///   to.
/// - That address must be an IP or a name without a dot, such as `localhost` or a container's: any other name may belong to
///   another site and resolve to this machine.
///
/// # Errors
/// `cross-site`.
pub(crate) fn check(headers: &HeaderMap) -> Result<(), Problem> {
    let cross_site = || {
        let detail = "the demo accepts requests from its own page, and from programs that call it by IP address or by \
                      a name without a dot, such as localhost";
        Problem::new(ProblemType::CROSS_SITE, detail)
    };
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.filter(|host| is_local(host)).ok_or_else(cross_site)?;
    let origin = headers.get(header::ORIGIN);
    if origin.is_some_and(|origin| origin.to_str().ok() != Some(&format!("http://{host}"))) {
        return Err(cross_site());
    }
    Ok(())
}

/// The same check, for all requests of some routes.
///
/// # Errors
/// As [`check`].
pub(crate) async fn layer(request: Request, next: Next) -> Result<Response, Problem> {
    check(request.headers())?;
    Ok(next.run(request).await)
}

fn is_local(host: &str) -> bool {
    let Ok(uri) = host.parse::<Uri>() else { return false };
    let Some(name) = uri.host() else { return false };
    let address = name.trim_start_matches('[').trim_end_matches(']');
    !name.contains(['.', ':']) || address.parse::<std::net::IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the demo's own page and programs are let in, and pages of other sites are not.
    #[test]
    fn other_sites_are_refused() {
        for (host, origin, is_let_in) in [
            ("127.0.0.1:8080", "http://127.0.0.1:8080", true),
            ("localhost:8080", "", true),
            ("app-8080:8080", "", true),
            ("[::1]:8080", "http://[::1]:8080", true),
            ("127.0.0.1:8080", "http://example.com", false),
            ("127.0.0.1:8080", "null", false),
            ("127.0.0.1:8080", "http://127.0.0.1:8090", false),
            ("127.0.0.1:8080", "https://127.0.0.1:8080", false),
            ("example.com:8080", "", false),
            ("localhost.example", "", false),
            ("", "", false),
        ] {
            let mut headers = HeaderMap::new();
            let all = [(header::HOST, host), (header::ORIGIN, origin)];
            for (name, value) in all.into_iter().filter(|(_, value)| !value.is_empty()) {
                headers.insert(name, value.parse().expect("a header value"));
            }
            assert_eq!(check(&headers).is_ok(), is_let_in, "{headers:?}");
        }
    }
}
