//! `GET` or `POST /stock/reduce`, `POST /order/confirm`, `/order/cancel` and `/order/return`: orders and their later events.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use fenced_lock::Token;
use serde::{Deserialize, Serialize};

use super::access::Role;
use super::params::Named;
use super::problem::{Problem, ProblemType};
use super::state::AppState;
use super::{body, params, reply};
use crate::inventory::{
    Accepted, Action, Event, InventoryError, Item, Order, OrderId, Outcome, Quantity, Timestamp,
};
use crate::sale::SaleError;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OrderParams {
    item: Option<String>,
    quantity: Option<String>,
    user: Option<String>,
}

/// The longest time after which a client is told to ask again whether the sale has started or a hold has ended.
const MOST_RETRY_SECONDS: u32 = 60;

/// At most this many seconds, and at most the time of a hold, are added at random to the time until a hold ends.
const MOST_HOLD_JITTER_SECONDS: u32 = 30;

#[derive(Serialize)]
struct Answer<'a> {
    outcome: Event,
    order: &'a OrderId,
    item: &'a Item,
    quantity: Quantity,
    remaining: u64,
    instance: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<&'a str>,
    token: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hold_until: Option<Timestamp>,
    /// When the order was confirmed, cancelled or returned.
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<Timestamp>,
}

/// Takes the units of the order.
///
/// The route takes every method, so that axum does not treat `HEAD` as `GET`: a prober that sends `HEAD` must not buy.
pub(super) async fn reduce(
    State(app): State<Arc<AppState>>,
    request: Request,
) -> Result<Response, Problem> {
    if !matches!(*request.method(), Method::GET | Method::POST) {
        return Ok(([(header::ALLOW, "GET,POST")], super::no_such_method()).into_response());
    }
    let (head, content) = request.into_parts();
    params::check_intent(&head)?;
    let OrderParams { item, quantity, user } = params::parse(&head.uri)?;
    let id = params::idempotency_key(&head.headers, ProblemType::BAD_ORDER_ID)?;
    let order = Order {
        id: id.map_or_else(|| Ok(OrderId::random()), |id| params::order_id(&id))?,
        item: params::item(item.as_deref())?,
        quantity: params::quantity(quantity.as_deref())?,
        user: app.buyer(&head.headers, user.as_deref())?,
        action: Action::Reserve,
    };
    body::refuse(content).await?;

    let wants_text = prefers(&head.headers, "text/plain");
    let (id, item) = (order.id.clone(), order.item.clone());
    let outcome = app.sale.reduce(order).await?;
    let is_repeated = matches!(outcome, Outcome::Repeated(_));
    match outcome {
        Outcome::Reserved(accepted) | Outcome::Repeated(accepted) if wants_text => {
            let Accepted { instance, remaining, .. } = accepted;
            let line = format!("{instance} reduce stock success, {remaining} left\n");
            Ok(marked(reply::text(StatusCode::OK, line), is_repeated))
        }
        Outcome::SoldOut { .. } if wants_text => {
            let line = format!("{} reduce stock end!\n", app.sale.instance());
            Ok(reply::text(ProblemType::SOLD_OUT.status, line))
        }
        outcome => answer(&id, &item, outcome).or_else(|problem| {
            if !wants_text || problem.kind() != ProblemType::ALL_HELD {
                return Err(problem);
            }
            let line = format!("{} reduce stock held, try again\n", app.sale.instance());
            let mut reply = reply::text(ProblemType::ALL_HELD.status, line);
            let seconds = problem.retry_after_seconds.map(HeaderValue::from);
            reply.headers_mut().extend(seconds.map(|seconds| (header::RETRY_AFTER, seconds)));
            Ok(reply)
        }),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BuyerParams {
    item: Option<String>,
    user: Option<String>,
    order: Option<String>,
}

/// The order that the path or the query names, for `action`. An id may not survive in a path: proxies and clients change `/`, `.`
/// and `..` there.
pub(super) fn named_order(
    app: &AppState,
    id: Named,
    head: &Parts,
    action: Action,
) -> Result<Order, Problem> {
    let BuyerParams { item, user, order } = params::parse(&head.uri)?;
    let id = match (id, order) {
        (Ok(None), Some(id)) => id,
        (Ok(Some(_)), Some(_)) => {
            let detail = "the path names the order: leave the parameter `order` out";
            return Err(Problem::new(ProblemType::BAD_PARAMETER, detail));
        }
        (id, _) => params::named(id),
    };
    Ok(Order {
        id: params::order_id(&id)?,
        item: params::item(item.as_deref())?,
        quantity: Quantity::ONE,
        user: app.buyer(&head.headers, user.as_deref())?,
        action,
    })
}

/// Confirms, cancels or returns the order.
pub(super) async fn change(
    State(app): State<Arc<AppState>>,
    id: Named,
    request: Request,
    action: Action,
) -> Result<Response, Problem> {
    let (head, content) = request.into_parts();
    params::check_intent(&head)?;
    if matches!(action, Action::Confirm | Action::Return) {
        app.require(Role::Shop, &head.headers)?;
    }
    let order = named_order(&app, id, &head, action)?;
    body::refuse(content).await?;
    let (id, item) = (order.id.clone(), order.item.clone());
    let outcome = match app.sale.reduce(order).await? {
        // the order has no hold, so it counts as confirmed from the start
        Outcome::Repeated(order) | Outcome::Reserved(order) => {
            let change = Accepted { event: Event::Confirmed, ..order };
            Outcome::Changed { change, is_repeated: false }
        }
        other => other,
    };
    answer(&id, &item, outcome)
}

/// The answer to an order, to a confirmation, to a cancellation or to a return.
pub(super) fn answer(id: &OrderId, item: &Item, outcome: Outcome) -> Result<Response, Problem> {
    let is_repeated =
        matches!(outcome, Outcome::Repeated(_) | Outcome::Changed { is_repeated: true, .. });
    let word = outcome.word();
    let problem = |detail: Cow<'static, str>| {
        let problem = Problem::new(ProblemType::of(word), detail);
        problem.with("order", id.as_str()).with("item", item.to_string())
    };
    Err(match outcome {
        Outcome::Reserved(entry)
        | Outcome::Repeated(entry)
        | Outcome::Changed { change: entry, .. } => {
            let answer = reply::json(&Answer {
                outcome: entry.event,
                order: &entry.order,
                item,
                quantity: entry.quantity,
                remaining: entry.remaining,
                instance: &entry.instance,
                holder: entry.holder.as_deref(),
                token: entry.token.map(Token::revision),
                hold_until: entry.hold_until,
                time: (entry.event != Event::Reserved).then_some(entry.time),
            });
            return Ok(marked(answer, is_repeated));
        }
        Outcome::Over { event, time } => {
            let what = match event {
                Event::Cancelled => "the order was cancelled",
                Event::Returned => "the order was returned",
                _ => "the hold of the order ended",
            };
            let detail = format!("{what} at {time}: order again under a new Idempotency-Key");
            problem(detail.into()).with("time", time.to_string())
        }
        Outcome::Final => {
            problem("the order is confirmed, or was final from the start: its units stay sold".into())
        }
        Outcome::NotConfirmed => {
            problem("the order is held: cancel it, and its units are on sale again".into())
        }
        Outcome::Unknown => problem(
            "no order of this id and user was accepted in the running sale: it took nothing there so far (in a query, a `+` \
             stands for a space: write %2B)"
                .into(),
        ),
        Outcome::SoldOut { remaining } => problem(left(remaining)).with("remaining", remaining),
        Outcome::AllHeld { remaining, ends_in, hold_seconds } => {
            let detail = format!("{}, and others are held: try again", left(remaining));
            let at_random = hold_seconds.min(MOST_HOLD_JITTER_SECONDS);
            let problem = problem(detail.into()).with("remaining", remaining);
            problem.retry_after(seconds_until(ends_in), at_random)
        }
        Outcome::HoldsDue => problem("holds are being ended".into()),
        Outcome::LimitReached { is_per_user, limit, has } => {
            let whose = if is_per_user { "each user" } else { "one order" };
            let had = if has > 0 { format!(", and you have {has}") } else { String::new() };
            let detail =
                format!("the sale allows {whose} at most {limit} units{had}: nothing was taken");
            problem(detail.into()).with("limit", limit).with("has", has)
        }
        Outcome::UserRequired => {
            problem("the sale limits the units of each user: name the user".into())
        }
        Outcome::NotStarted { at, within } => {
            let problem = problem(format!("the sale starts at {at}").into());
            problem.with("time", at.to_string()).retry_after(seconds_until(within), 0)
        }
        Outcome::Paused => problem("the sale is paused: try again later".into()),
        Outcome::SaleEnded { at } => {
            problem(format!("the sale ended at {at}").into()).with("time", at.to_string())
        }
        Outcome::Conflict => problem(
            "this order id belongs to an order with another quantity or user: nothing was taken, use a new \
             Idempotency-Key for a new order"
                .into(),
        ),
        Outcome::SaleReplaced => SaleError::sale_replaced(item).into(),
        Outcome::Damaged { what } => {
            SaleError::of_read(InventoryError::Damaged { what }, item).into()
        }
    })
}

fn left(units: u64) -> Cow<'static, str> {
    match units {
        0 => "nothing is left".into(),
        1 => "only 1 unit is left".into(),
        _ => format!("only {units} units are left").into(),
    }
}

/// The whole seconds until this time is over, at most [`MOST_RETRY_SECONDS`].
fn seconds_until(end: Duration) -> u32 {
    u32::try_from(end.as_secs())
        .map_or(MOST_RETRY_SECONDS, |whole| MOST_RETRY_SECONDS.min(whole.saturating_add(1)))
}

/// Adds the header of a repeated answer, if `is_repeated`.
pub(super) fn marked(mut answer: Response, is_repeated: bool) -> Response {
    if is_repeated {
        let name = HeaderName::from_static("idempotency-replayed");
        answer.headers_mut().insert(name, HeaderValue::from_static("true"));
    }
    answer
}

/// Whether this media type is the first that the client accepts. Many clients name further types after JSON.
pub(super) fn prefers(headers: &HeaderMap, media_type: &str) -> bool {
    let accepted = headers.get(header::ACCEPT);
    let first = accepted.and_then(|value| value.as_bytes().split_at_checked(media_type.len()));
    first.is_some_and(|(name, _)| name.eq_ignore_ascii_case(media_type.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sale::metrics::OUTCOMES;

    fn id(values: &[&str]) -> Result<String, &'static ProblemType> {
        let name = HeaderName::from_static("idempotency-key");
        let value = |text: &&str| HeaderValue::from_str(text).expect("a header value");
        let headers = values.iter().map(|text| (name.clone(), value(text))).collect();
        let key = params::idempotency_key(&headers, ProblemType::BAD_ORDER_ID);
        let id = key.and_then(|key| params::order_id(&key.expect("a header")));
        id.map(|id| id.as_str().to_owned()).map_err(|problem| problem.kind())
    }

    /// Goal: each refusal has the problem of its word, and is counted under it.
    #[test]
    fn every_refusal_has_its_problem() {
        let (id, at) = (OrderId::random(), Timestamp::default());
        let within = Duration::from_secs(1);
        let over = [Event::Cancelled, Event::Expired, Event::Returned];
        let over = over.map(|event| Outcome::Over { event, time: at });
        let all_held = Outcome::AllHeld { remaining: 1, ends_in: within, hold_seconds: 1 };
        for outcome in over.into_iter().chain([
            Outcome::Final,
            Outcome::NotConfirmed,
            Outcome::Unknown,
            Outcome::SoldOut { remaining: 1 },
            all_held,
            Outcome::HoldsDue,
            Outcome::LimitReached { is_per_user: true, limit: 1, has: 1 },
            Outcome::UserRequired,
            Outcome::NotStarted { at, within },
            Outcome::Paused,
            Outcome::SaleEnded { at },
            Outcome::Conflict,
            Outcome::SaleReplaced,
            Outcome::Damaged { what: String::new() },
        ]) {
            let word = outcome.word();
            let problem = answer(&id, &Item::DEFAULT, outcome).expect_err("a refusal");
            assert_eq!(problem.kind().word, word);
            assert!(OUTCOMES.contains(&word), "{word}");
        }
    }

    /// Goal: a bare and a quoted key name the same order, and any other text is refused.
    #[test]
    fn a_key_names_an_order() {
        let [longest, too_long] = [128, 129].map(|length| "x".repeat(length));
        for (key, named) in [
            ("8e03-97", "8e03-97"),
            ("\"8e03-97\"", "8e03-97"),
            (r#""a\"b\\c""#, r#"a"b\c"#),
            (&longest, &longest),
        ] {
            assert_eq!(id(&[key]).as_deref(), Ok(named));
        }
        let quoted =
            ["\"", "\"\"", "\"a", "\"a\\\"", "\"a\"b\"", "\"a\\n\"", "\"a\";v=1", "\"a b\""];
        for key in ["", "a b", "ü", &too_long].into_iter().chain(quoted) {
            assert_eq!(id(&[key]), Err(ProblemType::BAD_ORDER_ID), "{key:?}");
        }
        assert_eq!(id(&["a", "a"]), Err(ProblemType::BAD_ORDER_ID));
    }
}
