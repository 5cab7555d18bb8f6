//! Refuses requests of other sites: any page in a browser can send requests to this machine.

use axum::extract::Request;
use axum::http::{HeaderMap, Method, Uri, header};
use axum::middleware::Next;
use axum::response::Response;
use flash_sale::http::problem::{Problem, ProblemType};

use crate::control::problem::JSON_REQUIRED;

/// Checks a request to the demo.
///
/// - A `POST` must have a JSON body: a page of another site must ask before it sends one, as for `PUT` and
///   `DELETE`, and gets no permission.
/// - An `Origin` must be the address of the request.
/// - That address is an IP or a name without a dot, such as `localhost` or that of a container: any other name may
///   belong to another site and resolve to this machine.
///
/// # Errors
/// `json-required`, `cross-site`.
pub(crate) fn check(method: &Method, headers: &HeaderMap) -> Result<(), Problem> {
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
    if *method != Method::POST {
        return Ok(());
    }
    let media_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = media_type.and_then(|value| value.split(';').next()).unwrap_or_default();
    if !media_type.trim().eq_ignore_ascii_case("application/json") {
        let detail = "send the header Content-Type: application/json";
        return Err(Problem::new(JSON_REQUIRED, detail));
    }
    Ok(())
}

/// The same for all requests of some routes.
///
/// # Errors
/// As [`check`].
pub(crate) async fn layer(request: Request, next: Next) -> Result<Response, Problem> {
    check(request.method(), request.headers())?;
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
        let json = "application/json; charset=utf-8";
        let cross_site = Some(ProblemType::CROSS_SITE);
        for (host, origin, media_type, refused) in [
            ("127.0.0.1:8080", "http://127.0.0.1:8080", json, None),
            ("[::1]:8080", "http://[::1]:8080", json, None),
            ("localhost", "http://localhost", json, None),
            ("shop-1:8080", "", json, None),
            ("localhost:8080", "", "", Some(JSON_REQUIRED)),
            ("localhost:8080", "", "text/plain", Some(JSON_REQUIRED)),
            ("localhost:8080", "", "application/x-www-form-urlencoded", Some(JSON_REQUIRED)),
            ("127.0.0.1:8080", "http://example.com", json, cross_site),
            ("127.0.0.1:8080", "null", json, cross_site),
            ("127.0.0.1:8080", "http://127.0.0.1:8090", json, cross_site),
            ("127.0.0.1:8080", "https://127.0.0.1:8080", json, cross_site),
            ("example.com:8080", "", json, cross_site),
            ("shop-1.example:8080", "", json, cross_site),
            ("localhost.example", "", json, cross_site),
            ("", "", json, cross_site),
        ] {
            let mut headers = HeaderMap::new();
            let all = [
                (header::HOST, host),
                (header::ORIGIN, origin),
                (header::CONTENT_TYPE, media_type),
            ];
            for (name, value) in all.into_iter().filter(|(_, value)| !value.is_empty()) {
                headers.insert(name, value.parse().expect("a header value"));
            }
            for method in [Method::POST, Method::GET, Method::PUT, Method::DELETE] {
                // only a POST needs a JSON body
                let refused =
                    refused.filter(|kind| method == Method::POST || *kind != JSON_REQUIRED);
                let kind = check(&method, &headers).err().map(|problem| problem.kind());
                assert_eq!(kind, refused, "{method} {headers:?}");
            }
        }
    }
}
