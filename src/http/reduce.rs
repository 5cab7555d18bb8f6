//! `GET` or `POST /stock/reduce`: the sale itself.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use fenced_lock::Token;
use serde::Serialize;

use super::problem::{Problem, ProblemType};
use super::state::AppState;
use super::{body, idempotency, negotiate, params, reply};
use crate::inventory::{Accepted, InventoryError, Item, Order, OrderId, Outcome};
use crate::sale::SaleError;

#[derive(Serialize)]
struct Reserved<'a> {
    outcome: &'static str,
    order: &'a str,
    item: &'a str,
    quantity: u32,
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
    let [item, quantity, user] = params::parse(head.uri.query(), ["item", "quantity", "user"])?;
    let order = Order {
        id: idempotency::order_id(&head.headers)?,
        item: params::item(item.as_deref())?,
        quantity: params::quantity(quantity.as_deref())?,
        user: params::user(user.as_deref())?,
    };
    body::refuse(content).await?;

    let text = negotiate::prefers_text(&head.headers);
    let (id, item) = (order.id.clone(), order.item.clone());
    match app.sale.reduce(order).await? {
        Outcome::Reserved(accepted) if text => {
            let Accepted { instance, remaining, .. } = accepted;
            let line = format!("{instance} reduce stock success, {remaining} left\n");
            Ok(reply::text(StatusCode::OK, line))
        }
        Outcome::Reserved(accepted) => Ok(reserved(&item, &accepted)),
        Outcome::SoldOut { .. } if text => {
            let line = format!("{} reduce stock end!\n", app.sale.instance());
            Ok(reply::text(ProblemType::SOLD_OUT.status, line))
        }
        Outcome::SoldOut { remaining } => Ok(sold_out(id, item, remaining).into_response()),
        Outcome::Conflict => Err(Problem::new(
            ProblemType::ORDER_CONFLICT,
            "this order id belongs to an order with another quantity or user: nothing was taken, \
             use a new Idempotency-Key for a new order",
        )
        .with_order(id)),
        Outcome::Damaged { what } => {
            Err(SaleError::of_read(InventoryError::Damaged { what }, &item).into())
        }
    }
}

fn reserved(item: &Item, accepted: &Accepted) -> Response {
    reply::json(&Reserved {
        outcome: "reserved",
        order: accepted.order.as_str(),
        item: reply::item_name(item),
        quantity: accepted.quantity.get(),
        remaining: accepted.remaining,
        instance: &accepted.instance,
        token: accepted.token.map(Token::revision),
    })
}

fn sold_out(order: OrderId, item: Item, remaining: u64) -> Problem {
    let detail = match remaining {
        0 => "nothing is left".into(),
        1 => "only 1 unit is left".into(),
        _ => format!("only {remaining} units are left"),
    };
    Problem::new(ProblemType::SOLD_OUT, detail)
        .with_order(order)
        .with_item(item)
        .with_remaining(remaining)
}
