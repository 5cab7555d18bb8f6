//! `GET /` and `/static/..`: the page, embedded in the program.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use axum::body::{Body, Bytes};
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;

use super::problem::{Problem, ProblemType};

/// What the page may do: load what this instance serves, and ask it. No script or style stands in the
/// page itself, and no other page can frame it.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src \
     'self'; font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'",
);

/// Embeds the files of `static/` with these names.
macro_rules! files {
    ($($name:literal)*) => {
        /// Name below `static/`, and content.
        const FILES: &[(&str, &[u8])] = &[
            $(($name, include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/static/", $name))),)*
        ];
    };
}

// every file that the page loads, one a line
files! {
    "icon.svg"
    "index.html"
    "page/api.js"
    "page/canvas.js"
    "page/connection.js"
    "page/dom.js"
    "page/format.js"
    "page/guards.js"
    "page/instances.js"
    "page/main.js"
    "page/plot.js"
    "page/renderer.js"
    "page/roster.js"
    "page/state.js"
    "panels/latency.js"
    "panels/link.js"
    "panels/lock.js"
    "panels/notes.js"
    "panels/orders.js"
    "panels/presets.js"
    "panels/rate-chart.js"
    "panels/stock-chart.js"
    "panels/sum.js"
    "panels/tenures.js"
    "panels/timeline.js"
    "panels/troubles.js"
    "panels/try.js"
    "panels/verdict.js"
    "style/base.css"
    "style/panels.css"
    "style/tokens.css"
    "style/try.css"
}

/// The page.
pub(super) async fn index(headers: HeaderMap) -> Result<Response, Problem> {
    answer("index.html", &headers)
}

/// A file that the page loads.
pub(super) async fn file(
    name: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let name = name.map(|Path(name)| name).unwrap_or_default();
    answer(&name, &headers)
}

fn answer(name: &str, asked: &HeaderMap) -> Result<Response, Problem> {
    let file = FILES.iter().find(|(known, _)| *known == name);
    let (_, content) = file
        .ok_or_else(|| Problem::new(ProblemType::NotFound, "the page has no file of this name"))?;
    let tag = tag_of(content);
    let is_known = asked.get_all(header::IF_NONE_MATCH).iter().any(|tags| {
        tags.to_str().is_ok_and(|tags| tags.split(',').any(|known| known.trim() == tag))
    });
    let mut response = if is_known {
        Response::new(Body::empty())
    } else {
        Response::new(Body::from(Bytes::from_static(content)))
    };
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, HeaderValue::from_static(media_type(name))),
        // a browser asks each time, and is told that nothing has changed: the page is never older than
        // the program that it shows
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            HeaderValue::from_static("same-origin"),
        ),
    ] {
        headers.insert(name, value);
    }
    let tag = HeaderValue::from_str(&tag).expect("hexadecimal digits in quotes are a header value");
    headers.insert(header::ETAG, tag);
    Ok(response)
}

/// The same for the same content in every instance of one build.
fn tag_of(content: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}

fn media_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map_or("", |(_, ending)| ending) {
        "html" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "json" => "application/json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "ico" => "image/x-icon",
        "webmanifest" => "application/manifest+json",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_has_a_type() {
        for (name, _) in FILES {
            assert_ne!(media_type(name), "application/octet-stream", "{name}");
        }
    }

    /// Goal: a browser that has a file already is not sent it again.
    #[test]
    fn a_known_file_is_not_sent_again() {
        let first = answer("index.html", &HeaderMap::new()).expect("it is there");
        assert_eq!(first.status(), StatusCode::OK);
        let mut asked = HeaderMap::new();
        asked.insert(header::IF_NONE_MATCH, first.headers()[header::ETAG].clone());
        let again = answer("index.html", &asked).expect("it is there");
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
        assert!(answer("../Cargo.toml", &HeaderMap::new()).is_err());
    }
}
