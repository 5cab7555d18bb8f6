//! Query parameters.
//!
//! An unknown or repeated parameter is refused: `?qty=2` must not silently buy one unit.

use axum::extract::Query;
use axum::http::Uri;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::problem::{Problem, ProblemType};
use crate::inventory::{Item, Quantity, User};

/// The length of the longest reason: it can repeat what the client sent.
const MAX_REASON: usize = 200;

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

/// The item of parameter `item`: the default item if there is none.
///
/// # Errors
/// `bad-item`.
pub(super) fn item(name: Option<&str>) -> Result<Item, Problem> {
    let item = name.map_or(Ok(Item::DEFAULT), str::parse);
    item.map_err(|error| Problem::new(ProblemType::BAD_ITEM, error.to_string()))
}

/// The quantity of parameter `quantity`: one unit by default.
///
/// # Errors
/// `bad-quantity`.
pub(super) fn quantity(text: Option<&str>) -> Result<Quantity, Problem> {
    let Some(text) = text else { return Ok(Quantity::ONE) };
    // the parser would accept a sign; what is no number becomes 0, which is refused too
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let units = text.parse().ok().filter(|_| is_number).unwrap_or(0);
    Quantity::new(units).map_err(|error| Problem::new(ProblemType::BAD_QUANTITY, error.to_string()))
}

/// The user of parameter `user`: empty by default.
///
/// # Errors
/// `bad-user`, or `bad-parameter` if it is not UTF-8.
pub(super) fn user(name: Option<&str>) -> Result<User, Problem> {
    let name = name.unwrap_or_default();
    // decoding replaces bytes that are not UTF-8 by this character
    if name.contains(char::REPLACEMENT_CHARACTER) {
        return Err(Problem::new(ProblemType::BAD_PARAMETER, "the user is not UTF-8"));
    }
    User::new(name).map_err(|error| Problem::new(ProblemType::BAD_USER, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what the client sent is not repeated without a bound.
    #[test]
    fn a_reason_is_short() {
        let uri = format!("/stock?{}", "x".repeat(8000)).parse::<Uri>().expect("a URI");
        let long = only_item(&uri).expect_err("unknown");
        assert_eq!(long.detail.len(), MAX_REASON);
    }
}
