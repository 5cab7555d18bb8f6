//! `GET /orders` and `GET /orders/{id}`: the ledger.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::Response;
use serde::{Deserialize, Serialize};

use super::problem::{Problem, ProblemType};
use super::state::AppState;
use super::{params, reply};
use crate::inventory::{Accepted, Inventory, OrderId};

/// The default length of a page.
const DEFAULT_LIMIT: u32 = 100;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PageParams {
    item: Option<String>,
    after: Option<u64>,
    limit: Option<u32>,
}

#[derive(Serialize)]
struct Page {
    orders: Vec<Accepted>,
    /// The `after` of the next page, if there is one.
    next: Option<u64>,
}

/// One page of the ledger.
pub(super) async fn list(State(app): State<Arc<AppState>>, uri: Uri) -> Result<Response, Problem> {
    let PageParams { item, after, limit } = params::parse(&uri)?;
    let item = params::item(item.as_deref())?;
    let (after, limit) = (after.unwrap_or(0), limit.unwrap_or(DEFAULT_LIMIT));
    if !(1..=Inventory::MAX_PAGE).contains(&limit) {
        let detail = format!("`limit` is a whole number from 1 to {}", Inventory::MAX_PAGE);
        return Err(Problem::new(ProblemType::BAD_PARAMETER, detail));
    }

    let orders = app.sale.ledger(&item, after, limit).await?;
    // a full page may be the last one: then the next one is empty
    let count = u64::try_from(orders.len()).unwrap_or(u64::MAX);
    let next = (count >= u64::from(limit)).then(|| after.saturating_add(count));
    Ok(reply::json(&Page { orders, next }))
}

/// The answer to one order again.
pub(super) async fn one(
    State(app): State<Arc<AppState>>,
    id: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Response, Problem> {
    let item = params::only_item(&uri)?;
    let id = OrderId::new(&id.map(|Path(id)| id).unwrap_or_default())
        .map_err(|error| Problem::new(ProblemType::BAD_ORDER_ID, error))?;
    let Some(accepted) = app.sale.order(&item, &id).await? else {
        let detail = "no order of this id was accepted: it took nothing so far";
        let problem = Problem::new(ProblemType::UNKNOWN_ORDER, detail);
        return Err(Problem { order: Some(id), item: Some(item), ..problem });
    };
    Ok(reply::json(&accepted))
}
