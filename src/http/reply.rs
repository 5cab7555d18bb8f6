//! Answers in JSON and in plain text, and their compression.

use axum::Router;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;

/// A number with separators: 1234567 as `1,234,567`.
pub fn grouped(number: impl Into<i128>) -> String {
    let number: i128 = number.into();
    let digits = number.unsigned_abs().to_string();
    let mut text = if number < 0 { "-".to_owned() } else { String::new() };
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `body` as JSON with status 200.
///
/// # Panics
/// See [`json_as`].
pub fn json(body: &impl Serialize) -> Response {
    json_as("application/json", StatusCode::OK, body)
}

/// `body` as JSON of the given media type.
///
/// # Panics
/// `body` cannot be JSON: a map whose keys are not strings.
pub fn json_as(media_type: &'static str, status: StatusCode, body: &impl Serialize) -> Response {
    let body = serde_json::to_vec(body)
        .expect("every body is a struct of texts and numbers, and those always serialize");
    answer(media_type, status, body)
}

pub(super) fn text(status: StatusCode, body: String) -> Response {
    answer("text/plain; charset=utf-8", status, body.into_bytes())
}

fn answer(media_type: &'static str, status: StatusCode, body: Vec<u8>) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(media_type)),
        // no cache may answer: `GET /stock/reduce` sells, and every other answer is soon out of date
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (status, headers, body).into_response()
}

/// Marks answers that are not compressed, because they come piece by piece or as soon as there is news.
#[derive(Clone, Copy)]
pub(super) struct AtOnce;

/// The fewest bytes that are worth compressing.
#[cfg(feature = "compression")]
const LEAST_COMPRESSED: u16 = 512;

/// Compresses the answers of these routes for clients that accept this, if the program was built with the feature.
pub(super) fn compressed<S: Clone + Send + Sync + 'static>(routes: Router<S>) -> Router<S> {
    #[cfg(feature = "compression")]
    let routes = {
        use axum::http::{Extensions, HeaderMap, Version};
        use tower_http::compression::CompressionLayer;
        use tower_http::compression::predicate::{Predicate as _, SizeAbove};
        let may_wait = |_: StatusCode, _: Version, _: &HeaderMap, about: &Extensions| {
            about.get::<AtOnce>().is_none()
        };
        let pays = SizeAbove::new(LEAST_COMPRESSED).and(may_wait);
        routes.layer(CompressionLayer::new().compress_when(pays))
    };
    routes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        let texts = [0_i64, 7, 999, 1000, 12_345, 1_000_000, -1, -123_456].map(grouped);
        assert_eq!(texts, ["0", "7", "999", "1,000", "12,345", "1,000,000", "-1", "-123,456"]);
    }
}
