//! The header `Idempotency-Key`: the id of the order, chosen by the buyer.

use axum::http::{HeaderMap, HeaderValue};

use super::problem::{Problem, ProblemType};
use crate::inventory::OrderId;

/// The header's name.
pub(super) const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// The order id of the request, or a random one.
///
/// The IETF draft of the header requires a structured-field string, `"8e03978e"`; most clients send the bare
/// text. Both name the same order.
///
/// # Errors
/// `bad-order-id` if the header is given twice or names no [`OrderId`].
pub(super) fn order_id(headers: &HeaderMap) -> Result<OrderId, Problem> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(OrderId::random()),
        (Some(value), None) => parse(value),
        (Some(_), Some(_)) => {
            Err(Problem::new(ProblemType::BAD_ORDER_ID, "there is more than one Idempotency-Key"))
        }
    }
}

fn parse(value: &HeaderValue) -> Result<OrderId, Problem> {
    let bad = |detail: &str| Problem::new(ProblemType::BAD_ORDER_ID, detail.to_owned());
    let valid = |id: &str| OrderId::new(id).map_err(|error| bad(&error.to_string()));
    let text =
        value.to_str().map_err(|_| bad("an order id is 1 to 128 visible ASCII characters"))?;
    match text.strip_prefix('"') {
        None => valid(text),
        Some(rest) => {
            let id = unquote(rest)
                .ok_or_else(|| bad("the Idempotency-Key begins with a quote but is no string"))?;
            valid(&id)
        }
    }
}

/// The text of a structured-field string (RFC 8941, section 3.3.3) behind its first quote.
fn unquote(rest: &str) -> Option<String> {
    let inner = rest.strip_suffix('"')?;
    let mut text = String::with_capacity(inner.len());
    let mut characters = inner.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => return None,
            '\\' => text.push(characters.next().filter(|c| matches!(c, '"' | '\\'))?),
            other => text.push(other),
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(values: &[&str]) -> Result<String, &'static ProblemType> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(IDEMPOTENCY_KEY, HeaderValue::from_str(value).expect("a header value"));
        }
        order_id(&headers).map(|id| id.as_str().to_owned()).map_err(|problem| problem.kind())
    }

    #[test]
    fn a_bare_and_a_quoted_key_name_the_same_order() {
        assert_eq!(id(&["8e03-97"]).as_deref(), Ok("8e03-97"));
        assert_eq!(id(&["\"8e03-97\""]).as_deref(), Ok("8e03-97"));
        assert_eq!(id(&[r#""a\"b\\c""#]).as_deref(), Ok(r#"a"b\c"#));
        assert_eq!(id(&[&"x".repeat(128)]).map(|id| id.len()), Ok(128));
    }

    #[test]
    fn no_key_makes_a_new_id_each_time() {
        let (one, other) = (id(&[]), id(&[]));
        assert!(one.is_ok());
        assert_ne!(one, other);
    }

    #[test]
    fn what_names_no_order_is_refused() {
        let long = "x".repeat(129);
        for value in [
            "",
            "\"",
            "\"\"",
            "\"a",
            "\"a\\\"",
            "\"a\"b\"",
            "\"a\\n\"",
            "\"a\";v=1",
            "a b",
            "\"a b\"",
            "ü",
            &long,
        ] {
            assert_eq!(id(&[value]), Err(ProblemType::BAD_ORDER_ID), "{value:?}");
        }
        assert_eq!(id(&["a", "a"]), Err(ProblemType::BAD_ORDER_ID));
    }
}
