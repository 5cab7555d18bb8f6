//! `GET /sales` and `DELETE /sales/{id}`: the sales of an item, with their ledgers.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use serde_json::json;

use super::params::Named;
use super::problem::Problem;
use super::state::AppState;
use super::stock::StockView;
use super::{params, reply};
use crate::inventory::{InventoryError, Sales};
use crate::sale::SaleError;

/// The running sale, and the sales that were replaced.
pub(super) async fn list(State(app): State<Arc<AppState>>, uri: Uri) -> Result<Response, Problem> {
    let item = params::only_item(&uri)?;
    let Sales { running, kept } = app.sale.reads().sales(&item).await?;
    if running.is_none() && kept.is_empty() {
        return Err(SaleError::of_read(InventoryError::UnknownItem, &item).into());
    }
    let running = running.as_ref().map(|stock| StockView::of(&item, stock));
    Ok(reply::json(&json!({ "item": item, "running": running, "kept": kept })))
}

/// Deletes a sale that was replaced.
pub(super) async fn delete(
    State(app): State<Arc<AppState>>,
    id: Named,
    request: Request,
) -> Result<Response, Problem> {
    let (head, _) = request.into_parts();
    app.require_admin(&head)?;
    let item = params::only_item(&head.uri)?;
    let id = params::sale_id(&params::named(id))?;
    app.sale.forget(&item, &id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
