//! `GET` and `PUT /stock`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::Uri;
use axum::response::Response;
use serde::{Deserialize, Serialize};

use super::problem::{Problem, ProblemType};
use super::state::AppState;
use super::{access, body, params, reply};
use crate::inventory::{Inventory, Item, Stock};

/// The state of an item, here and in the events.
#[derive(Serialize)]
pub(super) struct StockView<'a> {
    item: &'a Item,
    #[serde(flatten)]
    stock: &'a Stock,
    balanced: bool,
}

impl<'a> StockView<'a> {
    pub(super) fn of(item: &'a Item, stock: &'a Stock) -> Self {
        Self { item, stock, balanced: stock.is_balanced() }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewSale {
    stock: u64,
}

/// The state of an item.
pub(super) async fn read(State(app): State<Arc<AppState>>, uri: Uri) -> Result<Response, Problem> {
    let item = params::only_item(&uri)?;
    let stock = app.sale.stock(&item).await?;
    Ok(reply::json(&StockView::of(&item, &stock)))
}

/// Starts a sale afresh.
pub(super) async fn start(
    State(app): State<Arc<AppState>>,
    request: Request,
) -> Result<Response, Problem> {
    let (head, content) = request.into_parts();
    match &app.extension {
        Some(extension) => extension.check_start(&head)?,
        None => access::check_start(app.admin_token.as_ref(), &head.headers)?,
    }
    let item = params::only_item(&head.uri)?;
    let content = body::read(content).await?;
    let sale = body::object(&content)
        .filter(|sale: &NewSale| sale.stock <= Inventory::MAX_UNITS)
        .ok_or_else(|| {
            let most = Inventory::MAX_UNITS;
            let detail = format!(
                "the body is a JSON object such as {{\"stock\":300}}, with a whole number from 0 to {most}"
            );
            Problem::new(ProblemType::BAD_BODY, detail)
        })?;
    let stock = app.sale.start(&item, sale.stock).await?;
    Ok(reply::json(&StockView::of(&item, &stock)))
}
