//! The errors of the interface: problem details (RFC 9457).
//!
//! Every error has one `type`, a bare word that never changes, and by it one status. 503 means that nothing was taken; with 504
//! it is unknown. docs/http-api.md and static/openapi.json list the types. The errors of the sale become problems at the end of
//! this file.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::{reply, requests};
use crate::error_chain::ErrorChain;
use crate::inventory::{InventoryError, Item};
use crate::sale::SaleError;
use crate::throttle::Throttle;

pub(super) const MEDIA_TYPE: &str = "application/problem+json";

/// One type of problem.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct ProblemType {
    /// The member `type`.
    #[serde(rename = "type")]
    pub word: &'static str,
    /// The member `title`, the same for every answer of the type.
    pub title: &'static str,
    /// The status of the answer.
    #[serde(serialize_with = "as_number")]
    pub status: StatusCode,
    /// The least number of seconds until a retry can help; `None` if no retry helps.
    #[serde(skip)]
    pub retry_after_seconds: Option<u32>,
}

/// The most seconds that are added at random, so that refused clients do not all return at once.
pub(super) const RETRY_JITTER_SECONDS: u32 = 2;

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn as_number<S: Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
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
    BAD_ORDER_ID "bad-order-id" BAD_REQUEST None, "An Idempotency-Key of an order or a change is 1 to 128 visible ASCII characters";
    BAD_SALE_ID "bad-sale-id" BAD_REQUEST None, "A sale's id is 1 to 64 letters, digits, dots, - and _";
    BAD_USER "bad-user" BAD_REQUEST None, "A user is at most 128 bytes without control, format or other invisible characters";
    USER_REQUIRED "user-required" BAD_REQUEST None, "The order needs a user";
    BAD_PARAMETER "bad-parameter" BAD_REQUEST None, "A query parameter is unknown, repeated or invalid";
    BAD_BODY "bad-body" BAD_REQUEST None, "The body is not what this call takes";
    BAD_REQUEST "bad-request" BAD_REQUEST None, "The head of the request violates HTTP/1.1";
    TOKEN_REQUIRED "token-required" UNAUTHORIZED None, "The call requires a token of the instance, as a bearer token";
    NOT_ALLOWED "not-allowed" FORBIDDEN None, "This instance has no token for the call, so it is off; or the token does not permit it";
    CROSS_SITE "cross-site" FORBIDDEN None, "The call comes from a page of another site";
    UNINTENDED "unintended" FORBIDDEN None, "A browser sent the call ahead of its user, or for a part of a page";
    NOT_FOUND "not-found" NOT_FOUND None, "There is nothing at this path";
    UNKNOWN_ITEM "unknown-item" NOT_FOUND None, "The item has no sale";
    UNKNOWN_ORDER "unknown-order" NOT_FOUND None, "No order with this id was accepted";
    UNKNOWN_SALE "unknown-sale" NOT_FOUND None, "No such sale was kept";
    METHOD_NOT_ALLOWED "method-not-allowed" METHOD_NOT_ALLOWED None, "The path does not have this method";
    REQUEST_TIMEOUT "request-timeout" REQUEST_TIMEOUT None, "The body did not arrive in time";
    SOLD_OUT "sold-out" CONFLICT None, "Fewer units are left than the order asks for, even with those that are held";
    ALL_HELD "all-held" CONFLICT Some(1), "Fewer units are left than the order asks for, but enough with those that are held; try again";
    LIMIT_REACHED "limit-reached" CONFLICT None, "The order exceeds a limit of the sale";
    NOT_STARTED "not-started" CONFLICT Some(1), "The sale has not started";
    PAUSED "paused" CONFLICT Some(5), "The sale accepts no new orders for now";
    ENDED "ended" CONFLICT None, "The sale has ended";
    ORDER_FINAL "order-final" CONFLICT None, "The order is final";
    NOT_CONFIRMED "not-confirmed" CONFLICT None, "The order is held: cancel it, and nothing is to be returned";
    SALE_REPLACED "sale-replaced" CONFLICT None, "The sale was replaced, or its ledger ends before the position";
    TERM_FINAL "term-final" CONFLICT None, "The sale began without this term or with a stock set by hand, or has started, so the term cannot change";
    TOO_FEW_UNITS "too-few-units" CONFLICT None, "Fewer units are left than the change is to withdraw";
    TOO_MANY_UNITS "too-many-units" CONFLICT None, "A sale has at most 1000000000000 units";
    NOT_REPLACED "not-replaced" CONFLICT None, "The sale runs, so it cannot be deleted";
    TOO_MANY_SALES "too-many-sales" CONFLICT None, "1000 replaced sales are kept; delete some";
    EXPIRED "expired" GONE None, "The hold of the order ended";
    CANCELLED "cancelled" GONE None, "The order was cancelled";
    RETURNED "returned" GONE None, "The order was returned";
    SALE_MISMATCH "sale-mismatch" PRECONDITION_FAILED None, "If-Match does not name the running sale in its version";
    BODY_TOO_LARGE "body-too-large" PAYLOAD_TOO_LARGE None, "A body has at most 16 KiB";
    URI_TOO_LONG "uri-too-long" URI_TOO_LONG None, "Path and query together have at most 8 KiB";
    ORDER_CONFLICT "order-conflict" UNPROCESSABLE_ENTITY None, "The order id belongs to an order with another quantity or user";
    SALE_CONFLICT "sale-conflict" UNPROCESSABLE_ENTITY None, "The sale runs already, with other terms";
    CHANGE_CONFLICT "change-conflict" UNPROCESSABLE_ENTITY None, "The Idempotency-Key belongs to another change of the sale";
    ALREADY_ENDED "already-ended" UNPROCESSABLE_ENTITY None, "The sale would have ended already by the clock of Redis, or would end before it starts";
    SALE_RUNNING "sale-running" PRECONDITION_REQUIRED None, "A sale with orders or an id runs; name it with If-Match";
    QUEUE_FULL "queue-full" TOO_MANY_REQUESTS Some(1), "Too many orders wait";
    RATE_LIMITED "rate-limited" TOO_MANY_REQUESTS Some(1), "The client sends more requests than --rate-limit allows";
    HEADERS_TOO_LARGE "headers-too-large" REQUEST_HEADER_FIELDS_TOO_LARGE None, "There are at most 100 headers, with at most 16 KiB together, or the head has more than 48 KiB";
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
    TOO_MANY_WATCHERS "too-many-watchers" SERVICE_UNAVAILABLE Some(1), "Too many clients watch this instance, or read queues or ledgers";
    TOO_MANY_CONNECTIONS "too-many-connections" SERVICE_UNAVAILABLE Some(1), "Too many connections to this instance are open; use another one";
    STOPPING "stopping" SERVICE_UNAVAILABLE Some(1), "The instance is stopping; use another one";
    OUTCOME_UNKNOWN "outcome-unknown" GATEWAY_TIMEOUT Some(1), "The order may have been accepted; retry with the same order id";
    START_UNKNOWN "start-unknown" GATEWAY_TIMEOUT None, "The sale may have been started; read the stock";
    CHANGE_UNKNOWN "change-unknown" GATEWAY_TIMEOUT Some(1), "The sale may have been changed; retry with the same Idempotency-Key";
}

impl ProblemType {
    /// The type of this word.
    pub(super) fn of(word: &str) -> &'static Self {
        let has_word = |kind: &&Self| kind.word == word;
        Self::ALL.iter().copied().find(has_word).unwrap_or(Self::INTERNAL)
    }

    /// Whether the connection must not be used again, since the rest of the body was not read.
    fn closes_connection(&self) -> bool {
        matches!(self.word, "body-too-large" | "request-timeout")
    }
}

/// One error, ready to be sent.
#[derive(Clone, Debug, Serialize)]
pub struct Problem {
    #[serde(flatten)]
    pub(super) kind: &'static ProblemType,
    /// The text for the client: it says what to do.
    pub(super) detail: Cow<'static, str>,
    /// Further members about the order, the item and so on.
    #[serde(flatten)]
    more: BTreeMap<&'static str, Value>,
    /// The number of seconds until a retry can help; `None` if no retry helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) retry_after_seconds: Option<u32>,
}

impl Problem {
    /// A problem of type `kind`. The client reads `detail`: it says what to do, and nothing about the inside of the service.
    pub fn new(kind: &'static ProblemType, detail: impl Into<Cow<'static, str>>) -> Self {
        let detail = detail.into();
        let problem = Self { kind, detail, more: BTreeMap::new(), retry_after_seconds: None };
        match kind.retry_after_seconds {
            Some(least) => problem.retry_after(least, RETRY_JITTER_SECONDS),
            None => problem,
        }
    }

    /// The same, with a retry after `least` seconds and up to `at_random` more.
    pub(super) fn retry_after(self, least: u32, at_random: u32) -> Self {
        let random = u32::from(uuid::Uuid::new_v4().as_bytes()[0]) % (at_random + 1);
        Self { retry_after_seconds: Some(least + random), ..self }
    }

    /// The same with another member, unless the value is null.
    pub(super) fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        let value = value.into();
        if !value.is_null() {
            self.more.insert(name, value);
        }
        self
    }

    /// The problem after a panic. The log has the panic's message.
    pub(super) fn panicked() -> Self {
        Self::new(ProblemType::INTERNAL, "a fault of the service: its log has the cause")
    }

    /// The text for the client.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// The type.
    pub fn kind(&self) -> &'static ProblemType {
        self.kind
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let problem = self.with("request_id", requests::current_id());
        let kind = problem.kind;
        let mut response = reply::json_as(MEDIA_TYPE, kind.status, &problem);
        let headers = response.headers_mut();
        if let Some(seconds) = problem.retry_after_seconds {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if kind == ProblemType::TOKEN_REQUIRED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if kind.closes_connection() {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// The client gets the type and the error's own text. The log also gets the error's sources.
impl From<SaleError> for Problem {
    fn from(error: SaleError) -> Self {
        let kind = ProblemType::of(error.word());
        log(kind, &error);
        let problem =
            Self::new(kind, error.to_string()).with("item", error.item().map(Item::to_string));
        match &error {
            SaleError::OutcomeUnknown { order, .. } => problem.with("order", order.as_str()),
            SaleError::Store { source, .. } => match &**source {
                InventoryError::SaleRefused { running, .. } => {
                    problem.with("sale", running.as_deref())
                }
                InventoryError::TooFewUnits { left } => problem.with("remaining", *left),
                _ => problem,
            },
            _ => problem,
        }
    }
}

/// Logs at most one line a second for each type: in an outage every request has the same error.
fn log(kind: &'static ProblemType, error: &SaleError) {
    static LATEST: Mutex<BTreeMap<&str, Throttle>> = Mutex::new(BTreeMap::new());
    let must_operator_act = match kind.word {
        "lock-refused" | "not-ready" | "damaged" | "foreign-fence" | "store-misconfigured" => true,
        // the inventory logs a roll-back once
        "stopping" | "store-rolled-back" => return,
        _ if kind.status.is_client_error() && kind != ProblemType::QUEUE_FULL => return,
        _ => false,
    };
    let mut latest = LATEST.lock();
    let throttle = latest.entry(kind.word).or_insert(Throttle::new(Duration::from_secs(1)));
    let Some(suppressed) = throttle.pass() else { return };
    let (error, request_id) = (ErrorChain(error), requests::current_id());
    if must_operator_act {
        tracing::error!(suppressed, request_id, "{error}");
    } else {
        tracing::warn!(suppressed, request_id, "{error}");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use fenced_lock::{ClusterId, Token};

    use super::*;
    use crate::inventory::OrderId;
    use crate::sale::BoxError;
    use crate::sale::metrics::OUTCOMES;

    #[test]
    fn refused_clients_come_back_at_different_times() {
        let problems = (0..100).map(|_| Problem::new(ProblemType::QUEUE_FULL, ""));
        let seconds: BTreeSet<_> =
            problems.filter_map(|refused| refused.retry_after_seconds).collect();
        assert_eq!(seconds, BTreeSet::from([1, 2, 3]));
    }

    /// Goal: every error of the sale has a type, each error of an order has a metric, and the client reads nothing of a source.
    #[test]
    fn every_sale_error_has_its_problem() {
        use InventoryError as I;
        use SaleError as E;
        let cause = || -> BoxError { "redis://:pw@10.0.0.1 refused".into() };
        let (order, item) = (OrderId::new("a-1").expect("visible ASCII"), || Item::DEFAULT);
        let refused = |code: &str| {
            let source = redis::make_extension_error(code.into(), Some("pw".into()));
            I::Refused { source }
        };
        let [token, fence] = [1, 2].map(|cluster| Token::new(ClusterId(cluster), 1));
        let of_store = [
            I::too_late(),
            refused("OOM"),
            refused("NOPERM"),
            I::UnknownItem,
            I::ItemRequired,
            I::RolledBack { what: "pw".into() },
            I::Damaged { what: "pw".into() },
            I::StaleToken { token, fence },
            I::ForeignFence { fence, token },
        ];
        let of_orders = [
            E::QueueFull { item: item(), limit: 3 },
            E::WaitTooLong { waited: Duration::from_secs(10) },
            E::LockUnavailable { source: cause() },
            E::LockRefused { source: cause() },
            E::OutcomeUnknown { order, source: cause() },
            E::Stopping,
        ];
        let of_orders = of_orders.into_iter();
        let of_orders: Vec<_> =
            of_orders.chain(of_store.map(|error| E::of_read(error, &item()))).collect();
        for error in &of_orders {
            assert!(OUTCOMES.contains(&error.word()), "{error}");
        }
        let others = [
            E::LockBlocked { item: item(), key: "a/b".into() },
            E::CallUnknown { item: item(), word: "start-unknown", source: cause() },
            E::TooManyReads,
        ];
        for error in of_orders.into_iter().chain(others) {
            let word = error.word();
            let problem = Problem::from(error);
            assert_eq!(problem.kind().word, word);
            assert!(!format!("{problem:?}").contains("pw"), "{problem:?}");
        }
        for why in I::REFUSALS {
            let running = Some("tea-1".to_owned());
            let error = E::of_read(I::SaleRefused { why, running }, &item());
            let problem = Problem::from(error);
            assert_eq!((problem.kind().word, &problem.more["sale"]), (why, &"tea-1".into()));
        }
    }
}
