//! `GET /` and `/static/..`: the page, embedded in the program.

use axum::body::Body;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rust_embed::Embed;

use super::problem::{Problem, ProblemType};

/// What the page may do: load what this instance serves, and ask it. No script or style stands in the
/// page itself, and no other page can frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src \
     'self'; font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'";

/// The files of `static/`, in every build: also a debug build serves what it was built with.
#[derive(Embed)]
#[folder = "static"]
struct Files;

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

fn answer(name: &str, request: &HeaderMap) -> Result<Response, Problem> {
    let file = Files::get(name)
        .ok_or_else(|| Problem::new(ProblemType::NOT_FOUND, "the page has no file of this name"))?;
    let hash = file.metadata.sha256_hash();
    let tag = u128::from_be_bytes(*hash.first_chunk().expect("a hash has 32 bytes"));
    let tag = format!("\"{tag:032x}\"");
    let is_known = request.get_all(header::IF_NONE_MATCH).iter().any(|tags| {
        tags.to_str().is_ok_and(|tags| tags.split(',').any(|known| known.trim() == tag))
    });
    let (status, body) = if is_known {
        (StatusCode::NOT_MODIFIED, Body::empty())
    } else {
        (StatusCode::OK, Body::from(file.data))
    };
    let headers = [
        (header::CONTENT_TYPE, media_type(name)),
        // the browser asks each time, so the page is never older than the program
        (header::CACHE_CONTROL, "no-cache"),
        (header::ETAG, &tag),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    Ok((status, headers, body).into_response())
}

fn media_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map_or("", |(_, extension)| extension) {
        "html" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "svg" => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_has_a_type() {
        for name in Files::iter() {
            assert_ne!(media_type(&name), "application/octet-stream", "{name}");
        }
    }
}
