//! Content negotiation between JSON and plain text (RFC 9110, section 12.5.1).

use axum::http::{HeaderMap, header};

/// Whether the client prefers `text/plain` to JSON. A tie is JSON: `*/*`, no header, and the header of a
/// browser.
pub(super) fn prefers_text(headers: &HeaderMap) -> bool {
    let mut text = Preference::default();
    let mut json = Preference::default();
    for range in headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
    {
        text.consider(range, "text", "plain");
        json.consider(range, "application", "json");
    }
    text.quality > json.quality
}

/// The preference for one media type: the most specific matching range decides.
#[derive(Default)]
struct Preference {
    /// 0: no match yet, 1: `*/*`, 2: `type/*`, 3: `type/subtype`.
    specificity: u8,
    /// The weight `q`, in thousandths.
    quality: u16,
}

impl Preference {
    fn consider(&mut self, range: &str, r#type: &str, subtype: &str) {
        let mut parts = range.split(';').map(str::trim);
        let Some((main, sub)) = parts.next().and_then(|name| name.split_once('/')) else { return };
        let specificity = match (main, sub) {
            ("*", "*") => 1,
            (main, "*") if main.eq_ignore_ascii_case(r#type) => 2,
            (main, sub)
                if main.eq_ignore_ascii_case(r#type) && sub.eq_ignore_ascii_case(subtype) =>
            {
                3
            }
            _ => return,
        };
        if specificity >= self.specificity {
            let weight = parts.find_map(|part| {
                part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")).map(quality)
            });
            *self = Self { specificity, quality: weight.unwrap_or(1000) };
        }
    }
}

/// The weight in thousandths; 0 if it is invalid.
fn quality(text: &str) -> u16 {
    match text.parse::<f32>() {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1000")]
        Ok(weight) if (0.0..=1.0).contains(&weight) => (weight * 1000.0).round() as u16,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn text_for(values: &[&'static str]) -> bool {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::ACCEPT, HeaderValue::from_static(value));
        }
        prefers_text(&headers)
    }

    #[test]
    fn text_is_sent_only_where_it_is_preferred() {
        for accept in [
            "text/plain",
            "Text/Plain",
            "text/*",
            "text/plain, */*;q=0.1",
            "application/json;q=0.5, text/plain;q=0.6",
            "text/plain;charset=utf-8",
            "application/json;q=0, */*",
        ] {
            assert!(text_for(&[accept]), "{accept}");
        }
        for accept in [
            "",
            "*/*",
            "application/json",
            "application/json, text/plain",
            "text/plain;q=0.9, application/json",
            "text/plain;q=0, */*",
            "text/plain;q=x",
            "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
            "image/png",
            "nonsense",
        ] {
            assert!(!text_for(&[accept]), "{accept}");
        }
    }

    #[test]
    fn several_headers_count_as_one_and_none_means_json() {
        assert!(!text_for(&[]));
        assert!(text_for(&["application/json;q=0.1", "text/plain"]));
    }
}
