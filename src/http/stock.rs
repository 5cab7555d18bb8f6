//! `GET` and `PUT /stock`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::Uri;
use axum::response::Response;
use fenced_lock::Token;
use serde::{Deserialize, Serialize};

use super::problem::{Problem, ProblemType};
use super::state::AppState;
use super::{access, body, params, reply};
use crate::inventory::{Inventory, Item, Stock};

#[derive(Serialize)]
struct ItemView<'a> {
    item: &'a Item,
    #[serde(flatten)]
    stock: StockView,
    sale: Option<u64>,
}

/// The state of an item, here and in the events.
#[derive(PartialEq, Serialize)]
pub(super) struct StockView {
    stock: i64,
    lucky: i64,
    initial: i64,
    fence: Option<FenceView>,
    orders: u64,
    balanced: bool,
}

#[derive(PartialEq, Serialize)]
struct FenceView {
    cluster: String,
    token: i64,
}

impl From<&Stock> for StockView {
    fn from(stock: &Stock) -> Self {
        let fence = |fence: Token| FenceView {
            cluster: fence.cluster().to_string(),
            token: fence.revision(),
        };
        Self {
            stock: stock.stock,
            lucky: stock.lucky,
            initial: stock.initial,
            fence: stock.fence.map(fence),
            orders: stock.orders,
            balanced: stock.is_balanced(),
        }
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
    Ok(view(&item, &stock))
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
    Ok(view(&item, &stock))
}

fn view(item: &Item, stock: &Stock) -> Response {
    reply::json(&ItemView { item, stock: stock.into(), sale: stock.sale })
}
