//! Errors as the client sees them: problem details (RFC 9457).
//!
//! Every error has one `type`, a bare word that stays the same, and with it one status. 503 always
//! means that nothing was taken; whether something was taken is unknown with 504 alone.
//!
//! | type | status | meaning |
//! |---|---|---|
//! | `bad-item` | 400 | an item name is 1 to 64 characters of a-z, 0-9 and - |
//! | `bad-quantity` | 400 | a quantity is a whole number from 1 to 1000000 |
//! | `bad-order-id` | 400 | an order id (`Idempotency-Key`) is 1 to 128 visible ASCII characters |
//! | `bad-user` | 400 | a user is at most 128 bytes without control characters |
//! | `bad-parameter` | 400 | a query parameter is unknown, repeated or has no valid value |
//! | `bad-body` | 400 | the body is not what this call takes |
//! | `bad-request` | 400 | the request's head is not what HTTP/1.1 asks for |
//! | `token-required` | 401 | the call needs `Authorization: Bearer` and the admin token |
//! | `not-allowed` | 403 | the instance was started without a way to allow this call |
//! | `not-found` | 404 | there is nothing at this path |
//! | `unknown-item` | 404 | no sale of this item was started |
//! | `unknown-order` | 404 | no order of this id was accepted |
//! | `method-not-allowed` | 405 | the path does not have this method; `Allow` lists those it has |
//! | `request-timeout` | 408 | the body did not arrive in time |
//! | `sold-out` | 409 | fewer units are left than the order asks for |
//! | `body-too-large` | 413 | a body has at most 16 KiB |
//! | `uri-too-long` | 414 | path and query together have at most 8 KiB |
//! | `order-conflict` | 422 | the order id belongs to an order with another quantity or user |
//! | `queue-full` | 429 | as many orders wait as may; ask again after `Retry-After` |
//! | `headers-too-large` | 431 | all headers together have at most 16 KiB |
//! | `internal` | 500 | a fault of the service; its log has the cause |
//! | `damaged` | 500 | the item's data in the store is not what the service wrote |
//! | `wait-too-long` | 503 | the lock was not granted in time; ask again |
//! | `lock-unavailable` | 503 | the lock service does not answer; ask again |
//! | `lock-refused` | 503 | the lock service refuses this item's lock; an operator must look |
//! | `store-unavailable` | 503 | the store does not answer, or refuses; ask again |
//! | `store-misconfigured` | 503 | the store refuses this instance; an operator must look |
//! | `store-rolled-back` | 503 | the store lacks what it acknowledged; an operator must look |
//! | `stale-token` | 503 | the instance lost the lock without knowing; ask again |
//! | `foreign-fence` | 503 | the stock was guarded by another etcd cluster; an operator must look |
//! | `not-ready` | 503 | the readiness check took too long, or the lock is held by a key that never ends |
//! | `too-many-watchers` | 503 | as many watch at this instance as may, or look at queues; ask again after `Retry-After` |
//! | `stopping` | 503 | the instance is stopping; ask another one |
//! | `outcome-unknown` | 504 | the order may stand or not; ask again with the same order id |
//! | `start-unknown` | 504 | the sale may have been started afresh or not; look at the stock |

use std::borrow::Cow;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::reply;
use crate::inventory::{Item, OrderId};

/// Declares the types once: variant, word, status and title.
macro_rules! problem_types {
    ($($variant:ident $word:literal $status:ident $title:literal;)*) => {
        /// What kind of error an answer tells of. The module's table says what each means.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the module's table documents each")]
        pub enum ProblemType {
            $($variant,)*
            /// A type of an [`Extension`](super::Extension).
            Other(&'static OtherType),
        }

        impl ProblemType {
            /// Every type of the service.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The value of the member `type`.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                    Self::Other(other) => other.word,
                }
            }

            /// The answer's status.
            pub const fn status(self) -> StatusCode {
                match self {
                    $(Self::$variant => StatusCode::$status,)*
                    Self::Other(other) => other.status,
                }
            }

            /// A short summary, the same for every answer of the type.
            pub const fn title(self) -> &'static str {
                match self {
                    $(Self::$variant => $title,)*
                    Self::Other(other) => other.title,
                }
            }
        }
    };
}

problem_types! {
    BadItem "bad-item" BAD_REQUEST "Not an item name";
    BadQuantity "bad-quantity" BAD_REQUEST "Not a quantity";
    BadOrderId "bad-order-id" BAD_REQUEST "Not an order id";
    BadUser "bad-user" BAD_REQUEST "Not a user";
    BadParameter "bad-parameter" BAD_REQUEST "A query parameter is wrong";
    BadBody "bad-body" BAD_REQUEST "The body is wrong";
    BadRequest "bad-request" BAD_REQUEST "Not a request of HTTP/1.1";
    TokenRequired "token-required" UNAUTHORIZED "The admin token is missing or wrong";
    NotAllowed "not-allowed" FORBIDDEN "Not allowed at this instance";
    NotFound "not-found" NOT_FOUND "There is nothing at this path";
    UnknownItem "unknown-item" NOT_FOUND "No sale of this item";
    UnknownOrder "unknown-order" NOT_FOUND "No accepted order of this id";
    MethodNotAllowed "method-not-allowed" METHOD_NOT_ALLOWED "The path does not have this method";
    RequestTimeout "request-timeout" REQUEST_TIMEOUT "The body did not arrive in time";
    SoldOut "sold-out" CONFLICT "Sold out";
    BodyTooLarge "body-too-large" PAYLOAD_TOO_LARGE "The body is too large";
    UriTooLong "uri-too-long" URI_TOO_LONG "Path and query are too long";
    OrderConflict "order-conflict" UNPROCESSABLE_ENTITY "The order id belongs to another order";
    QueueFull "queue-full" TOO_MANY_REQUESTS "Too many orders wait";
    HeadersTooLarge "headers-too-large" REQUEST_HEADER_FIELDS_TOO_LARGE "The headers are too large";
    Internal "internal" INTERNAL_SERVER_ERROR "A fault of the service";
    Damaged "damaged" INTERNAL_SERVER_ERROR "The stored data is damaged";
    WaitTooLong "wait-too-long" SERVICE_UNAVAILABLE "The lock was not granted in time";
    LockUnavailable "lock-unavailable" SERVICE_UNAVAILABLE "The lock service does not answer";
    LockRefused "lock-refused" SERVICE_UNAVAILABLE "The lock service refuses this lock";
    StoreUnavailable "store-unavailable" SERVICE_UNAVAILABLE "The store does not answer";
    StoreMisconfigured "store-misconfigured" SERVICE_UNAVAILABLE "The store refuses this instance";
    StoreRolledBack "store-rolled-back" SERVICE_UNAVAILABLE "The store lacks what it acknowledged";
    StaleToken "stale-token" SERVICE_UNAVAILABLE "The lock was lost";
    ForeignFence "foreign-fence" SERVICE_UNAVAILABLE "The stock was guarded by another etcd cluster";
    NotReady "not-ready" SERVICE_UNAVAILABLE "Not ready";
    TooManyWatchers "too-many-watchers" SERVICE_UNAVAILABLE "Too many watch";
    Stopping "stopping" SERVICE_UNAVAILABLE "The instance is stopping";
    OutcomeUnknown "outcome-unknown" GATEWAY_TIMEOUT "The order may stand or not";
    StartUnknown "start-unknown" GATEWAY_TIMEOUT "The sale may have been started or not";
}

/// A type of problem that an [`Extension`](super::Extension) declares.
#[derive(Debug, PartialEq, Eq)]
pub struct OtherType {
    /// The value of the member `type`.
    pub word: &'static str,
    /// The answer's status.
    pub status: StatusCode,
    /// A short summary, the same for every answer of the type.
    pub title: &'static str,
    /// See [`ProblemType::retry_after_seconds`].
    pub retry_after_seconds: Option<u32>,
}

impl ProblemType {
    /// After how many seconds asking again can help, where it can.
    pub const fn retry_after_seconds(self) -> Option<u32> {
        match self {
            Self::QueueFull
            | Self::WaitTooLong
            | Self::LockUnavailable
            | Self::StoreUnavailable
            | Self::StaleToken
            | Self::NotReady
            | Self::TooManyWatchers
            | Self::Stopping
            | Self::OutcomeUnknown => Some(1),
            Self::Other(other) => other.retry_after_seconds,
            _ => None,
        }
    }

    /// Whether the connection must not be used again: the rest of the request was not read, or the
    /// instance is on its way out.
    const fn closes_connection(self) -> bool {
        matches!(
            self,
            Self::BadRequest
                | Self::BodyTooLarge
                | Self::HeadersTooLarge
                | Self::RequestTimeout
                | Self::Stopping
        )
    }
}

/// One error, ready to be sent.
#[derive(Clone, Debug)]
pub struct Problem {
    kind: ProblemType,
    detail: Cow<'static, str>,
    order: Option<OrderId>,
    item: Option<Item>,
    remaining: Option<u64>,
    parameter: Option<Box<str>>,
}

impl Problem {
    /// A problem of type `kind`. The client reads `detail`: it says what to do, and nothing about
    /// the inside of the service.
    pub fn new(kind: ProblemType, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            order: None,
            item: None,
            remaining: None,
            parameter: None,
        }
    }

    /// A panic: the log has its message.
    pub(super) fn panicked() -> Self {
        Self::new(ProblemType::Internal, "a fault of the service: its log has the cause")
    }

    /// What the client reads.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// The type.
    pub fn kind(&self) -> ProblemType {
        self.kind
    }

    /// Names the order.
    #[must_use]
    pub fn with_order(mut self, order: OrderId) -> Self {
        self.order = Some(order);
        self
    }

    /// Names the item.
    #[must_use]
    pub fn with_item(mut self, item: Item) -> Self {
        self.item = Some(item);
        self
    }

    /// Says how many units are left.
    #[must_use]
    pub fn with_remaining(mut self, remaining: u64) -> Self {
        self.remaining = Some(remaining);
        self
    }

    /// Names the query parameter that is wrong.
    #[must_use]
    pub fn with_parameter(mut self, parameter: impl Into<Box<str>>) -> Self {
        self.parameter = Some(parameter.into());
        self
    }
}

/// The members of the JSON object.
#[derive(Serialize)]
struct Body<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    order: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    item: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameter: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_seconds: Option<u32>,
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.kind.status();
        let retry_after_seconds = self.kind.retry_after_seconds();
        let body = Body {
            r#type: self.kind.word(),
            title: self.kind.title(),
            status: status.as_u16(),
            detail: &self.detail,
            order: self.order.as_ref().map(OrderId::as_str),
            item: self.item.as_ref().map(reply::item_name),
            remaining: self.remaining,
            parameter: self.parameter.as_deref(),
            retry_after_seconds,
        };
        let mut response = reply::json_as("application/problem+json", status, &body);
        let headers = response.headers_mut();
        if let Some(seconds) = retry_after_seconds {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if self.kind == ProblemType::TokenRequired {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.kind.closes_connection() {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table above, which the README copies, has a row for every type, in the same order.
    #[test]
    fn the_table_lists_every_type() {
        let rows: Vec<&str> = include_str!("problem.rs")
            .lines()
            .filter(|line| line.starts_with("//! | `"))
            .map(|line| line.trim_start_matches("//! "))
            .collect();
        assert_eq!(rows.len(), ProblemType::ALL.len());
        for (kind, row) in ProblemType::ALL.iter().zip(rows) {
            let start = format!("| `{}` | {} | ", kind.word(), kind.status().as_u16());
            assert!(row.starts_with(&start), "expected {start:?}, found {row:?}");
        }
    }

    /// Two types with one word could not be told apart.
    #[test]
    fn words_are_unique() {
        for (at, kind) in ProblemType::ALL.iter().enumerate() {
            assert!(ProblemType::ALL[..at].iter().all(|other| other.word() != kind.word()));
        }
    }

    #[tokio::test]
    async fn a_problem_carries_its_members_and_headers() {
        let order = OrderId::new("a-1").expect("visible ASCII");
        let response = Problem::new(ProblemType::OutcomeUnknown, "ask again")
            .with_order(order)
            .into_response();
        assert_eq!(response.status(), StatusCode::GATEWAY_TIMEOUT);
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
        assert_eq!(response.headers()[header::CACHE_CONTROL], "no-store");
        let body = axum::body::to_bytes(response.into_body(), 4096).await.expect("in memory");
        let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(
            body,
            serde_json::json!({
                "type": "outcome-unknown",
                "title": "The order may stand or not",
                "status": 504,
                "detail": "ask again",
                "order": "a-1",
                "retry_after_seconds": 1,
            })
        );
    }
}
