//! `GET` or `POST /stock/reduce`: the sale itself.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use fenced_lock::Token;
use serde::{Deserialize, Serialize};

use super::problem::{Problem, ProblemType};
use super::state::AppState;
use super::{body, params, reply};
use crate::inventory::{Accepted, InventoryError, Item, Order, OrderId, Outcome, Quantity};
use crate::sale::SaleError;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OrderParams {
    item: Option<String>,
    quantity: Option<String>,
    user: Option<String>,
}

#[derive(Serialize)]
struct Reserved<'a> {
    outcome: &'static str,
    order: &'a OrderId,
    item: &'a Item,
    quantity: Quantity,
    remaining: u64,
    instance: &'a str,
    token: Option<i64>,
}

/// Takes the units of the order.
///
/// The route takes every method, so that axum does not treat `HEAD` as `GET`: a prober that sends `HEAD` must
/// not buy.
pub(super) async fn reduce(
    State(app): State<Arc<AppState>>,
    request: Request,
) -> Result<Response, Problem> {
    if !matches!(*request.method(), Method::GET | Method::POST) {
        let mut refusal = super::no_such_method().into_response();
        refusal.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET,POST"));
        return Ok(refusal);
    }
    let (head, content) = request.into_parts();
    let OrderParams { item, quantity, user } = params::parse(&head.uri)?;
    let order = Order {
        id: order_id(&head.headers)?,
        item: params::item(item.as_deref())?,
        quantity: params::quantity(quantity.as_deref())?,
        user: params::user(user.as_deref())?,
    };
    body::refuse(content).await?;

    let wants_text = wants_text(&head.headers);
    let (id, item) = (order.id.clone(), order.item.clone());
    match app.sale.reduce(order).await? {
        Outcome::Reserved(accepted) if wants_text => {
            let Accepted { instance, remaining, .. } = accepted;
            let line = format!("{instance} reduce stock success, {remaining} left\n");
            Ok(reply::text(StatusCode::OK, line))
        }
        Outcome::Reserved(accepted) => Ok(reply::json(&Reserved {
            outcome: "reserved",
            order: &accepted.order,
            item: &item,
            quantity: accepted.quantity,
            remaining: accepted.remaining,
            instance: &accepted.instance,
            token: accepted.token.map(Token::revision),
        })),
        Outcome::SoldOut { .. } if wants_text => {
            let line = format!("{} reduce stock end!\n", app.sale.instance());
            Ok(reply::text(ProblemType::SOLD_OUT.status, line))
        }
        Outcome::SoldOut { remaining } => Err(sold_out(id, item, remaining)),
        Outcome::Conflict => {
            let detail = "this order id belongs to an order with another quantity or user: nothing was taken, \
                 use a new Idempotency-Key for a new order";
            let problem = Problem::new(ProblemType::ORDER_CONFLICT, detail);
            Err(Problem { order: Some(id), ..problem })
        }
        Outcome::Damaged { what } => {
            Err(SaleError::of_read(InventoryError::Damaged { what }, &item).into())
        }
    }
}

/// The order id in the header `Idempotency-Key`, or a random one.
///
/// The IETF draft of the header requires a quoted string, `"8e03978e"`; most clients send the bare text. Both
/// name the same order.
fn order_id(headers: &HeaderMap) -> Result<OrderId, Problem> {
    let bad = |detail: String| Problem::new(ProblemType::BAD_ORDER_ID, detail);
    let mut values = headers.get_all("idempotency-key").iter();
    let Some(value) = values.next() else { return Ok(OrderId::random()) };
    if values.next().is_some() {
        return Err(bad("there is more than one Idempotency-Key".into()));
    }
    // what is no ASCII text cannot be an id either
    let text = value.to_str().unwrap_or_default();
    let id = if text.starts_with('"') {
        serde_json::from_str(text)
            .map_err(|_| bad("the Idempotency-Key begins with a quote but is no string".into()))?
    } else {
        text.to_owned()
    };
    OrderId::new(&id).map_err(|error| bad(error.to_string()))
}

/// Whether `text/plain` is the first media type that the client accepts. Many clients accept it after JSON.
fn wants_text(headers: &HeaderMap) -> bool {
    let first = headers.get(header::ACCEPT).and_then(|value| value.as_bytes().split_at_checked(10));
    first.is_some_and(|(name, _)| name.eq_ignore_ascii_case(b"text/plain"))
}

fn sold_out(order: OrderId, item: Item, remaining: u64) -> Problem {
    let detail = match remaining {
        0 => "nothing is left".into(),
        1 => "only 1 unit is left".into(),
        _ => format!("only {remaining} units are left"),
    };
    let (order, item, remaining) = (Some(order), Some(item), Some(remaining));
    Problem { order, item, remaining, ..Problem::new(ProblemType::SOLD_OUT, detail) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, values: &[&str]) -> HeaderMap {
        let value = |text: &&str| HeaderValue::from_str(text).expect("a header value");
        values.iter().map(|text| (header::HeaderName::from_static(name), value(text))).collect()
    }

    fn id(values: &[&str]) -> Result<String, &'static ProblemType> {
        let id = order_id(&headers("idempotency-key", values));
        id.map(|id| id.as_str().to_owned()).map_err(|problem| problem.kind())
    }

    #[test]
    fn a_bare_and_a_quoted_key_name_the_same_order() {
        assert_eq!(id(&["8e03-97"]).as_deref(), Ok("8e03-97"));
        assert_eq!(id(&["\"8e03-97\""]).as_deref(), Ok("8e03-97"));
        assert_eq!(id(&[r#""a\"b\\c""#]).as_deref(), Ok(r#"a"b\c"#));
        assert_eq!(id(&[&"x".repeat(128)]).map(|id| id.len()), Ok(128));
    }

    #[test]
    fn what_names_no_order_is_refused() {
        let long = "x".repeat(129);
        let quoted =
            ["\"", "\"\"", "\"a", "\"a\\\"", "\"a\"b\"", "\"a\\n\"", "\"a\";v=1", "\"a b\""];
        for value in ["", "a b", "ü", &long].into_iter().chain(quoted) {
            assert_eq!(id(&[value]), Err(ProblemType::BAD_ORDER_ID), "{value:?}");
        }
        assert_eq!(id(&["a", "a"]), Err(ProblemType::BAD_ORDER_ID));
    }

    #[test]
    fn text_is_sent_to_who_names_it_first() {
        for (accept, is_text) in [
            ("text/plain", true),
            ("Text/Plain;charset=utf-8, */*", true),
            ("application/json, text/plain, */*", false),
            ("*/*", false),
            ("text/html,application/xhtml+xml,*/*;q=0.8", false),
            ("", false),
        ] {
            assert_eq!(wants_text(&headers("accept", &[accept])), is_text, "{accept}");
        }
        assert!(!wants_text(&HeaderMap::new()));
    }
}
