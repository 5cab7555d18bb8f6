//! Query parameters.
//!
//! An unknown or repeated parameter is refused: `?qty=2` must not silently buy one unit.

use std::str::FromStr;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Query};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Method, Uri};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::cross_origin::Allowed;
use super::problem::{Problem, ProblemType};
use crate::inventory::{Item, OrderId, Quantity, SaleId, User};
use crate::logging::is_invisible;

/// The name in the path, if there is one: of an order, a sale or a file.
pub(super) type Named = Result<Option<Path<String>>, PathRejection>;

/// The name in the path; empty if there is none or it is not UTF-8.
pub(super) fn named(name: Named) -> String {
    name.ok().flatten().map(|Path(name)| name).unwrap_or_default()
}

/// The longest reason in a problem: it can repeat text of the client.
pub(super) const MAX_REASON: usize = 200;

/// The parameters of a call.
///
/// # Errors
/// `bad-parameter`.
pub(super) fn parse<T: DeserializeOwned>(uri: &Uri) -> Result<T, Problem> {
    Query::try_from_uri(uri).map(|Query(params)| params).map_err(|refusal| {
        let reason: String = refusal.body_text().chars().take(MAX_REASON).collect();
        Problem::new(ProblemType::BAD_PARAMETER, reason)
    })
}

/// The item of a call that has no other parameter.
///
/// # Errors
/// `bad-parameter` or `bad-item`.
pub(super) fn only_item(uri: &Uri) -> Result<Item, Problem> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct ItemParams {
        item: Option<String>,
    }
    let ItemParams { item: name } = parse(uri)?;
    item(name.as_deref())
}

/// The item that the parameter `item` names, or the default item.
///
/// # Errors
/// `bad-item`.
pub(super) fn item(name: Option<&str>) -> Result<Item, Problem> {
    let item = name.map_or(Ok(Item::DEFAULT), str::parse);
    item.map_err(|error| Problem::new(ProblemType::BAD_ITEM, error.to_string()))
}

/// A whole number in digits alone: `str::parse` would accept a sign.
pub(super) fn number<N: FromStr>(text: &str) -> Option<N> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// The number in the parameter `quantity`, or one unit.
///
/// # Errors
/// `bad-quantity`.
pub(super) fn quantity(text: Option<&str>) -> Result<Quantity, Problem> {
    // text that is no number becomes 0, which is refused, too
    let units = text.map_or(Some(1), number).unwrap_or(0);
    Quantity::new(units).map_err(|error| Problem::new(ProblemType::BAD_QUANTITY, error.to_string()))
}

/// The buyer: from the header in which the gateway names buyers, if there is such a header; else from the parameter `user`, or
/// empty.
///
/// # Errors
/// `bad-user`; `user-required` if the header is missing; `bad-parameter` if the parameter
/// comes beside the header, or is not UTF-8.
pub(super) fn user(
    header: Option<&HeaderName>,
    headers: &HeaderMap,
    name: Option<&str>,
) -> Result<User, Problem> {
    let (name, wrong) = match (header, name) {
        (None, name) => (name.unwrap_or_default().into(), ProblemType::BAD_PARAMETER),
        (Some(_), Some(_)) => {
            let detail = "the gateway names the user: leave the parameter `user` out";
            return Err(Problem::new(ProblemType::BAD_PARAMETER, detail));
        }
        (Some(header), None) => {
            let mut values = headers.get_all(header).iter();
            let value = values.next().filter(|value| !value.is_empty() && values.next().is_none());
            let value = value.ok_or_else(|| {
                let detail =
                    format!("the request needs one header {header}, which the gateway sets");
                Problem::new(ProblemType::USER_REQUIRED, detail)
            })?;
            (String::from_utf8_lossy(value.as_bytes()), ProblemType::BAD_USER)
        }
    };
    // decoding puts this character in place of bytes that are not UTF-8
    if name.contains(char::REPLACEMENT_CHARACTER) {
        return Err(Problem::new(wrong, "the user is not UTF-8"));
    }
    let bad = |what: &'static str| Problem::new(ProblemType::BAD_USER, what);
    // only this place checks it: users in stores of earlier versions stay valid
    if name.chars().any(is_invisible) {
        return Err(bad("a user has no control, format or other invisible characters"));
    }
    User::new(&name).map_err(bad)
}

/// The text of the header `Idempotency-Key`, if there is one.
///
/// The IETF draft of the header requires a quoted string, `"8e03978e"`. Most clients send the bare text. The two forms name
/// the same order.
///
/// # Errors
/// A problem of type `kind` if there are two keys or a quoted string is malformed.
pub(super) fn idempotency_key(
    headers: &HeaderMap,
    kind: &'static ProblemType,
) -> Result<Option<String>, Problem> {
    let mut values = headers.get_all("idempotency-key").iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Problem::new(kind, "there is more than one Idempotency-Key"));
    }
    // text that is not ASCII becomes empty, which is no id
    let text = value.to_str().unwrap_or_default();
    if text.starts_with('"') {
        let detail = "the Idempotency-Key begins with a quote but is no string";
        return serde_json::from_str(text).map_err(|_| Problem::new(kind, detail));
    }
    Ok(Some(text.to_owned()))
}

/// The id of an order.
///
/// # Errors
/// `bad-order-id`.
pub(super) fn order_id(id: &str) -> Result<OrderId, Problem> {
    OrderId::new(id).map_err(|error| Problem::new(ProblemType::BAD_ORDER_ID, error))
}

/// The id of a sale.
///
/// # Errors
/// `bad-sale-id`.
pub(super) fn sale_id(id: &str) -> Result<SaleId, Problem> {
    id.parse().map_err(|error| Problem::new(ProblemType::BAD_SALE_ID, error))
}

/// The headers that a browser adds when it requests a page before its user does: to load it early, or to show it small.
const AHEAD: [HeaderName; 4] = [
    HeaderName::from_static("sec-purpose"),
    HeaderName::from_static("purpose"),
    HeaderName::from_static("x-purpose"),
    HeaderName::from_static("x-moz"),
];

/// Refuses a request from a page of another site, unless its origin is allowed, and a request that no user asked for: a browser
/// sent it ahead of time, or for a part of a page, such as an image.
///
/// # Errors
/// `cross-site` or `unintended`.
pub(super) fn check_intent(
    Parts { method, headers, extensions, .. }: &Parts,
) -> Result<(), Problem> {
    let mut uses = headers.get_all("sec-fetch-dest").iter();
    let is_part = *method == Method::GET
        && uses.any(|used| !matches!(used.as_bytes(), b"document" | b"empty"));
    if is_part || AHEAD.iter().any(|name| headers.contains_key(name)) {
        let detail = "no user asked for this request: nothing was done; send it as POST, by a script or a form";
        return Err(Problem::new(ProblemType::UNINTENDED, detail));
    }
    let mut sites = headers.get_all("sec-fetch-site").iter();
    let is_allowed = extensions.get::<Allowed>().is_some();
    if !is_allowed && sites.any(|site| site.as_bytes().eq_ignore_ascii_case(b"cross-site")) {
        let detail = "the request comes from a page of another site: nothing was done";
        return Err(Problem::new(ProblemType::CROSS_SITE, detail));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    /// Goal: one value of the header does not hide another one.
    #[test]
    fn one_value_is_enough_to_be_of_another_site() {
        for values in [["cross-site", "same-origin"], ["same-origin", "Cross-Site"]] {
            let name = HeaderName::from_static("sec-fetch-site");
            let headers = values.map(|value| (name.clone(), HeaderValue::from_static(value)));
            let (mut head, ()) = axum::http::Request::new(()).into_parts();
            head.headers = HeaderMap::from_iter(headers);
            assert!(check_intent(&head).is_err(), "{values:?}");
        }
    }

    /// Goal: the rule about invisible characters does not damage orders that the store has already.
    #[test]
    fn users_are_checked_at_the_door() {
        for text in ["a\u{fe0f}", "\u{3164}", "a\u{200b}b", "\u{e0100}"] {
            let refused = user(None, &HeaderMap::new(), Some(text)).expect_err(text);
            assert_eq!(refused.kind(), ProblemType::BAD_USER);
            assert!(User::new(text).is_ok(), "{text:?}");
        }
        for text in ["Ann B.", "Jürgen", "e\u{301}", "李", "\u{1f600}"] {
            assert_eq!(user(None, &HeaderMap::new(), Some(text)).expect(text).as_str(), text);
        }
    }

    /// Goal: a problem repeats only a short part of what the client sent.
    #[test]
    fn a_reason_is_short() {
        let uri = format!("/stock?{}", "x".repeat(8000)).parse::<Uri>().expect("a URI");
        let long = only_item(&uri).expect_err("unknown");
        assert_eq!(long.detail.len(), MAX_REASON);
    }
}
