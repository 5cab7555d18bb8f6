//! Permission to start a sale.

use axum::http::{HeaderMap, header};

use super::problem::{Problem, ProblemType};
use crate::secret::Secret;

/// Checks the headers of a request to start a sale, which deletes all orders of the one before. `token` is the
/// admin token of this instance; without one, every start is refused.
///
/// # Errors
/// `token-required` or `not-allowed`.
pub(super) fn check_start(token: Option<&Secret>, headers: &HeaderMap) -> Result<(), Problem> {
    match token {
        Some(token) if bearer(headers).is_some_and(|sent| token.matches(sent)) => Ok(()),
        Some(_) => Err(Problem::new(
            ProblemType::TOKEN_REQUIRED,
            "send the admin token of this instance as `Authorization: Bearer <token>`",
        )),
        None => Err(Problem::new(
            ProblemType::NOT_ALLOWED,
            "this instance has no admin token: restart it with --admin-token-file or \
             FLASH_SALE_ADMIN_TOKEN",
        )),
    }
}

/// The bearer token. The case of the scheme's name does not matter (RFC 9110, section 11.1).
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked("bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn check(
        token: Option<&Secret>,
        authorization: Option<&'static str>,
    ) -> Option<&'static ProblemType> {
        let mut headers = HeaderMap::new();
        if let Some(value) = authorization {
            headers.insert(header::AUTHORIZATION, HeaderValue::from_static(value));
        }
        check_start(token, &headers).err().map(|problem| problem.kind())
    }

    #[test]
    fn the_token_is_asked_for_and_compared() {
        let token = Some(&Secret::new("s3cret"));
        for good in ["Bearer s3cret", "bearer s3cret", "BEARER  s3cret"] {
            assert_eq!(check(token, Some(good)), None, "{good}");
        }
        for bad in ["", "Bearer", "Bearer ", "Bearer s3cre", "Basic s3cret", "s3cret"] {
            assert_eq!(check(token, Some(bad)), Some(ProblemType::TOKEN_REQUIRED), "{bad}");
        }
        assert_eq!(check(token, None), Some(ProblemType::TOKEN_REQUIRED));
    }
}
