//! Answers in JSON and in plain text.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use serde::Serialize;

use crate::inventory::Item;

/// The name of an item in answers: `default` for the default item.
pub(super) fn item_name(item: &Item) -> &str {
    item.name().unwrap_or("default")
}

/// `body` as JSON with status 200.
pub(super) fn json(body: &impl Serialize) -> Response {
    json_as("application/json", StatusCode::OK, body)
}

/// `body` as JSON of the given media type.
pub(super) fn json_as(
    media_type: &'static str,
    status: StatusCode,
    body: &impl Serialize,
) -> Response {
    let body = serde_json::to_vec(body)
        .expect("every body is a struct of texts and numbers, and those always serialize");
    answer(media_type, status, body)
}

/// `body` as plain text.
pub(super) fn text(status: StatusCode, body: String) -> Response {
    answer("text/plain; charset=utf-8", status, body.into_bytes())
}

fn answer(media_type: &'static str, status: StatusCode, body: Vec<u8>) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    // `GET /stock/reduce` sells, and every other answer is out of date when it arrives: no cache may
    // answer in our place
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
