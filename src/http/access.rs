//! Who may start a sale.

use axum::http::{HeaderMap, header};

use super::problem::{Problem, ProblemType};
use crate::secret::Secret;

/// Who may start a sale afresh, which forgets all orders of the one before.
#[derive(Clone, Debug)]
pub enum StartAccess {
    /// Nobody: nothing was configured.
    Nobody,
    /// Those who send this token as `Authorization: Bearer`.
    Token(Secret),
}

impl StartAccess {
    /// Whether the sender of a request with these headers may.
    ///
    /// # Errors
    /// `token-required` or `not-allowed`.
    pub(super) fn check(&self, headers: &HeaderMap) -> Result<(), Problem> {
        match self {
            Self::Token(token) if bearer(headers).is_some_and(|sent| token.matches(sent)) => Ok(()),
            Self::Token(_) => Err(Problem::new(
                ProblemType::TOKEN_REQUIRED,
                "send the admin token of this instance as `Authorization: Bearer <token>`",
            )),
            Self::Nobody => Err(Problem::new(
                ProblemType::NOT_ALLOWED,
                "this instance has no admin token: start it with --admin-token-file or \
                 FLASH_SALE_ADMIN_TOKEN",
            )),
        }
    }
}

/// The bearer token; the scheme's name may be written in any case (RFC 9110, section 11.1).
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
        access: &StartAccess,
        authorization: Option<&'static str>,
    ) -> Option<&'static ProblemType> {
        let mut headers = HeaderMap::new();
        if let Some(value) = authorization {
            headers.insert(header::AUTHORIZATION, HeaderValue::from_static(value));
        }
        access.check(&headers).err().map(|problem| problem.kind())
    }

    #[test]
    fn the_token_is_asked_for_and_compared() {
        let access = StartAccess::Token(Secret::new("s3cret"));
        for good in ["Bearer s3cret", "bearer s3cret", "BEARER  s3cret"] {
            assert_eq!(check(&access, Some(good)), None, "{good}");
        }
        for bad in ["", "Bearer", "Bearer ", "Bearer s3cre", "Basic s3cret", "s3cret"] {
            assert_eq!(check(&access, Some(bad)), Some(ProblemType::TOKEN_REQUIRED), "{bad}");
        }
        assert_eq!(check(&access, None), Some(ProblemType::TOKEN_REQUIRED));
    }

    #[test]
    fn without_a_token_nobody_may() {
        assert_eq!(check(&StartAccess::Nobody, Some("Bearer x")), Some(ProblemType::NOT_ALLOWED));
    }
}
