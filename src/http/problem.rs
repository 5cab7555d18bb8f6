//! Errors as the client sees them: problem details (RFC 9457).
//!
//! Every error has one `type`, a bare word that never changes, and with it one status. 503 means that nothing
//! was taken; with 504 it is unknown. docs/http-api.md has the same table of types as this module.

use std::borrow::Cow;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::reply;
use crate::inventory::{Item, OrderId};

/// One type of problem.
#[derive(Debug, PartialEq, Eq)]
pub struct ProblemType {
    /// The member `type`.
    pub word: &'static str,
    /// The status of the answer.
    pub status: StatusCode,
    /// The member `title`, the same for every answer of the type.
    pub title: &'static str,
    /// After how many seconds a retry can help, where it can.
    pub retry_after_seconds: Option<u32>,
}

/// Declares the types once: name, `type`, status, seconds until a retry, title.
macro_rules! problem_types {
    ($($name:ident $word:literal $status:ident $retry:expr, $title:literal;)*) => {
        impl ProblemType {
            $(
                #[doc = $title]
                pub const $name: &'static Self = &Self {
                    word: $word,
                    status: StatusCode::$status,
                    title: $title,
                    retry_after_seconds: $retry,
                };
            )*

            /// Every type of the service.
            pub const ALL: &'static [&'static Self] = &[$(Self::$name,)*];
        }
    };
}

problem_types! {
    BAD_ITEM "bad-item" BAD_REQUEST None, "An item name is 1 to 64 characters of a-z, 0-9 and -";
    ITEM_REQUIRED "item-required" BAD_REQUEST None, "The store is a Redis Cluster, which has named items only";
    BAD_QUANTITY "bad-quantity" BAD_REQUEST None, "A quantity is a whole number from 1 to 1000000";
    BAD_ORDER_ID "bad-order-id" BAD_REQUEST None, "An order id (Idempotency-Key) is 1 to 128 visible ASCII characters";
    BAD_USER "bad-user" BAD_REQUEST None, "A user is at most 128 bytes without control characters";
    BAD_PARAMETER "bad-parameter" BAD_REQUEST None, "A query parameter is unknown, repeated or invalid";
    BAD_BODY "bad-body" BAD_REQUEST None, "The body is not what this call takes";
    BAD_REQUEST "bad-request" BAD_REQUEST None, "The head of the request violates HTTP/1.1";
    TOKEN_REQUIRED "token-required" UNAUTHORIZED None, "The call requires the admin token as a bearer token";
    NOT_ALLOWED "not-allowed" FORBIDDEN None, "This instance has no admin token, so the call is off";
    NOT_FOUND "not-found" NOT_FOUND None, "There is nothing at this path";
    UNKNOWN_ITEM "unknown-item" NOT_FOUND None, "The item has no sale";
    UNKNOWN_ORDER "unknown-order" NOT_FOUND None, "No order with this id was accepted";
    METHOD_NOT_ALLOWED "method-not-allowed" METHOD_NOT_ALLOWED None, "The path does not have this method; the header Allow lists those it has";
    REQUEST_TIMEOUT "request-timeout" REQUEST_TIMEOUT None, "The body did not arrive in time";
    SOLD_OUT "sold-out" CONFLICT None, "Fewer units are left than the order asks for";
    BODY_TOO_LARGE "body-too-large" PAYLOAD_TOO_LARGE None, "A body has at most 16 KiB";
    URI_TOO_LONG "uri-too-long" URI_TOO_LONG None, "Path and query together have at most 8 KiB";
    ORDER_CONFLICT "order-conflict" UNPROCESSABLE_ENTITY None, "The order id belongs to an order with another quantity or user";
    QUEUE_FULL "queue-full" TOO_MANY_REQUESTS Some(1), "Too many orders wait";
    HEADERS_TOO_LARGE "headers-too-large" REQUEST_HEADER_FIELDS_TOO_LARGE None, "All headers together have at most 16 KiB";
    INTERNAL "internal" INTERNAL_SERVER_ERROR None, "A fault of the service; its log has the cause";
    DAMAGED "damaged" INTERNAL_SERVER_ERROR None, "The stored data of the item is not what the service wrote";
    WAIT_TOO_LONG "wait-too-long" SERVICE_UNAVAILABLE Some(1), "The lock was not granted in time";
    LOCK_UNAVAILABLE "lock-unavailable" SERVICE_UNAVAILABLE Some(1), "The lock service does not answer";
    LOCK_REFUSED "lock-refused" SERVICE_UNAVAILABLE None, "The lock service refuses the item's lock; an operator must act";
    STORE_UNAVAILABLE "store-unavailable" SERVICE_UNAVAILABLE Some(1), "The store does not answer, or refuses to write";
    STORE_MISCONFIGURED "store-misconfigured" SERVICE_UNAVAILABLE None, "The store refuses this instance; an operator must act";
    STORE_ROLLED_BACK "store-rolled-back" SERVICE_UNAVAILABLE None, "The store lost acknowledged data; an operator must act";
    STALE_TOKEN "stale-token" SERVICE_UNAVAILABLE Some(1), "The instance lost the lock to a later holder";
    FOREIGN_FENCE "foreign-fence" SERVICE_UNAVAILABLE None, "Another etcd cluster guarded the stock; an operator must act";
    NOT_READY "not-ready" SERVICE_UNAVAILABLE Some(1), "The readiness check took too long, or a key without a lease holds the lock";
    TOO_MANY_WATCHERS "too-many-watchers" SERVICE_UNAVAILABLE Some(1), "Too many clients watch this instance or read queues";
    STOPPING "stopping" SERVICE_UNAVAILABLE Some(1), "The instance is stopping; use another one";
    OUTCOME_UNKNOWN "outcome-unknown" GATEWAY_TIMEOUT Some(1), "The order may have been accepted; retry with the same order id";
    START_UNKNOWN "start-unknown" GATEWAY_TIMEOUT None, "The sale may have been started; read the stock";
}

impl ProblemType {
    /// Whether the connection must not be used again: the rest of the request was not read, or the instance
    /// is stopping.
    fn closes_connection(&self) -> bool {
        [
            Self::BAD_REQUEST,
            Self::BODY_TOO_LARGE,
            Self::HEADERS_TOO_LARGE,
            Self::REQUEST_TIMEOUT,
            Self::STOPPING,
        ]
        .contains(&self)
    }
}

/// One error, ready to be sent.
#[derive(Clone, Debug)]
pub struct Problem {
    kind: &'static ProblemType,
    detail: Cow<'static, str>,
    order: Option<OrderId>,
    item: Option<Item>,
    remaining: Option<u64>,
    parameter: Option<Box<str>>,
}

impl Problem {
    /// A problem of type `kind`. The client reads `detail`: it says what to do, and nothing about
    /// the inside of the service.
    pub fn new(kind: &'static ProblemType, detail: impl Into<Cow<'static, str>>) -> Self {
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
        Self::new(ProblemType::INTERNAL, "a fault of the service: its log has the cause")
    }

    /// What the client reads.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// The type.
    pub fn kind(&self) -> &'static ProblemType {
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
        let status = self.kind.status;
        let retry_after_seconds = self.kind.retry_after_seconds;
        let body = Body {
            r#type: self.kind.word,
            title: self.kind.title,
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
        if self.kind == ProblemType::TOKEN_REQUIRED {
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

    /// Goal: no two types share a word.
    #[test]
    fn words_are_unique() {
        for (at, kind) in ProblemType::ALL.iter().enumerate() {
            assert!(ProblemType::ALL[..at].iter().all(|other| other.word != kind.word));
        }
    }

    #[tokio::test]
    async fn a_problem_carries_its_members_and_headers() {
        let order = OrderId::new("a-1").expect("visible ASCII");
        let response = Problem::new(ProblemType::OUTCOME_UNKNOWN, "ask again")
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
                "title": "The order may have been accepted; retry with the same order id",
                "status": 504,
                "detail": "ask again",
                "order": "a-1",
                "retry_after_seconds": 1,
            })
        );
    }
}
