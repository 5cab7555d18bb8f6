//! `GET /` and `/static/..`: the page, embedded in the program.

use axum::Router;
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::params::{self, Named};
use super::problem::{Problem, ProblemType};
use super::reply;

/// The page may load files from this instance, and call this instance. Its HTML contains no scripts or styles, and no other page
/// can frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src \
     'self'; font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'";

/// The names and contents of some files of `static/`. The first one is the page itself.
pub type Files = &'static [(&'static str, &'static [u8])];

macro_rules! files {
    ($($name:literal)*) => { &[$(($name, include_bytes!(concat!("../../static/", $name)))),*] };
}

/// The page of a sale, for operators.
pub const SALE: Files = files! {
    "sale/sale.html" "sale/sale.js" "sale/sale.css" "icon.svg" "openapi.json"
    "style/base.css" "page/dom.js" "page/format.js"
};

/// The page of a demo.
pub const STAGE: Files = files! {
    "index.html" "icon.svg" "openapi.json"
    "style/base.css" "style/panels.css" "style/stage.css"
    "page/api.js" "page/connection.js" "page/dom.js" "page/format.js" "page/guards.js" "page/instances.js" "page/main.js"
    "panels/link.js" "panels/lock.js" "panels/own.js" "panels/sale.js"
    "stage/draw.js" "stage/live.js" "stage/recorded.json" "stage/share.js" "stage/stage.js" "stage/state.js" "stage/story.js"
};

/// The routes of this page, which calls the other routes of its address.
pub fn page_routes<S: Clone + Send + Sync + 'static>(files: Files) -> Router<S> {
    let page = Router::new()
        .route("/", get(async move || file(files, files[0].0)))
        .route("/openapi.json", get(async move || file(files, "openapi.json")))
        .route("/static/{*name}", get(async move |name: Named| file(files, &params::named(name))));
    reply::compressed(page)
}

fn file(files: Files, name: &str) -> Result<Response, Problem> {
    let (_, content) = files
        .iter()
        .find(|(known, _)| *known == name)
        .ok_or_else(|| Problem::new(ProblemType::NOT_FOUND, "the page has no file of this name"))?;
    let headers = [
        (header::CONTENT_TYPE, media_type(name)),
        // the page must not be older than the program
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    Ok((headers, *content).into_response())
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
