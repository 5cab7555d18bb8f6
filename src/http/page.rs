//! `GET /` and `/static/..`: the page, embedded in the program.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use axum::body::Body;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::params::Named;
use super::problem::{Problem, ProblemType};

/// The page may load what this instance serves, and call this instance. It has no script or style of its own inside
/// the HTML, and no other page can frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src \
     'self'; font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'";

/// The name and the content of each of these files of `static/`.
macro_rules! files {
    ($($name:literal)*) => { &[$(($name, include_bytes!(concat!("../../static/", $name)))),*] };
}

const FILES: &[(&str, &[u8])] = files! {
    "index.html" "icon.svg" "openapi.json"
    "style/base.css" "style/panels.css" "style/stage.css"
    "page/api.js" "page/connection.js" "page/dom.js" "page/format.js" "page/guards.js" "page/instances.js" "page/main.js"
    "panels/link.js" "panels/lock.js" "panels/own.js" "panels/sale.js"
    "stage/draw.js" "stage/share.js" "stage/stage.js" "stage/state.js" "stage/story.js"
};

/// A file that the path names.
pub(super) async fn named(name: Named, headers: HeaderMap) -> Result<Response, Problem> {
    let name = name.map(|Path(name)| name).unwrap_or_default();
    file(&name, &headers)
}

/// One of [`FILES`].
pub(super) fn file(name: &str, request: &HeaderMap) -> Result<Response, Problem> {
    let (_, content) = FILES
        .iter()
        .find(|(known, _)| *known == name)
        .ok_or_else(|| Problem::new(ProblemType::NOT_FOUND, "the page has no file of this name"))?;
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    let tag = format!("\"{:016x}\"", hasher.finish());
    let is_known = request.get_all(header::IF_NONE_MATCH).iter().any(|tags| {
        tags.to_str().is_ok_and(|tags| tags.split(',').any(|known| known.trim() == tag))
    });
    let (status, body) = if is_known {
        (StatusCode::NOT_MODIFIED, Body::empty())
    } else {
        (StatusCode::OK, Body::from(*content))
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
        "json" => "application/json",
        "svg" => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Goal: each file of the folder is served, with its type.
    #[test]
    fn the_list_is_that_of_the_folder() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("static");
        let mut folders = vec![root.clone()];
        let mut count = 0;
        while let Some(folder) = folders.pop() {
            for entry in folder.read_dir().expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let name = path.strip_prefix(&root).ok().and_then(Path::to_str).expect("a name");
                assert!(FILES.iter().any(|(known, _)| *known == name), "{name} is not served");
                assert_ne!(media_type(name), "application/octet-stream", "{name}");
                count += 1;
            }
        }
        assert_eq!(count, FILES.len());
    }
}
