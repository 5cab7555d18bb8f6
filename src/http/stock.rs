//! `GET` and `PUT /stock`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Uri, header};
use axum::response::Response;
use serde::{Deserialize, Serialize};

use super::problem::{Problem, ProblemType};
use super::reduce::marked;
use super::state::AppState;
use super::{body, params, reply};
use crate::inventory::{
    Inventory, Item, NewSale, Replaces, SaleId, Started, Stock, Terms, Timestamp,
};

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
struct SaleBody {
    stock: u64,
    sale: Option<String>,
    // not `Terms` itself: an error in a flattened part names no field
    per_order: Option<u32>,
    per_user: Option<u32>,
    hold_seconds: Option<u32>,
    starts_at: Option<Timestamp>,
    ends_at: Option<Timestamp>,
}

/// The state of an item.
pub(super) async fn read(State(app): State<Arc<AppState>>, uri: Uri) -> Result<Response, Problem> {
    let item = params::only_item(&uri)?;
    let stock = app.sale.stock(&item).await?;
    Ok(reply::json(&StockView::of(&item, &stock)))
}

/// Starts a sale.
pub(super) async fn start(
    State(app): State<Arc<AppState>>,
    request: Request,
) -> Result<Response, Problem> {
    let (head, content) = request.into_parts();
    check_admin(&app, &head)?;
    let item = params::only_item(&head.uri)?;
    let content = body::read(content).await?;
    let bad = |detail: String| Problem::new(ProblemType::BAD_BODY, detail);
    let form = |reason: &str| {
        let most = Inventory::MAX_UNITS;
        bad(format!(
            "{reason}; the body is a JSON object such as {{\"stock\":300}}, with a whole number from 0 to {most}; besides, \
             it may have sale, per_order, per_user, hold_seconds, starts_at and ends_at (2026-11-27T08:00:00Z)"
        ))
    };
    let body: SaleBody = body::object(&content).map_err(|reason| form(&reason))?;
    let SaleBody { stock, sale, per_order, per_user, hold_seconds, starts_at, ends_at } = body;
    if stock > Inventory::MAX_UNITS {
        return Err(form("stock: too many units"));
    }
    let in_header = params::idempotency_key(&head.headers, ProblemType::BAD_SALE_ID)?;
    if in_header.is_some() && sale.is_some() && in_header != sale {
        return Err(bad("the Idempotency-Key and `sale` name two sales".to_owned()));
    }
    let id = in_header.or(sale).map(|id| params::sale_id(&id)).transpose()?;
    if id.as_ref().is_some_and(|id| matches!(id.as_str(), "." | "..")) {
        return Err(bad(
            "the id of a new sale is not `.` or `..`: clients take them out of the path".to_owned(),
        ));
    }
    let is_demo = app.options.extension.is_some();
    let replaces = match replaced(&head.headers)? {
        None if id.is_none() && is_demo => Replaces::Unconditionally,
        None => Replaces::WithoutOrders,
        Some(Replaces::Any) if id.is_none() && !is_demo => {
            let detail = "`If-Match: *` needs an id of the new sale: repeated without one, the call would replace that sale";
            return Err(bad(detail.to_owned()));
        }
        Some(replaces) => replaces,
    };
    let per_order = per_order.or((!is_demo).then_some(1));
    // the largest limit means no limit
    let per_order = per_order.filter(|most| *most != Terms::MAX_LIMIT);
    let terms = Terms { per_order, per_user, hold_seconds, starts_at, ends_at };
    terms.check().map_err(|error| bad(error.to_owned()))?;
    let is_named = id.is_some();
    let id = id.unwrap_or_else(SaleId::random);
    // earlier versions accepted later times: a start of such a sale may still be repeated, but a new one is refused
    let too_late = terms.check_times().err();
    let replaces = too_late.map_or(replaces, |_| Replaces::AnyOf(vec![id.clone()]));
    let new = NewSale { units: stock, id, is_named, terms, replaces };
    let started = app.sale.start(&item, new).await;
    let Started { stock, is_repeated } = started.map_err(|error| match too_late {
        Some(too_late) if error.word() == "sale-mismatch" => bad(too_late.to_owned()),
        _ => error.into(),
    })?;
    Ok(marked(reply::json(&StockView::of(&item, &stock)), is_repeated))
}

/// The sales that the header `If-Match` allows to replace, if there is such a header.
fn replaced(headers: &HeaderMap) -> Result<Option<Replaces>, Problem> {
    let mut ids = Vec::new();
    for value in headers.get_all(header::IF_MATCH) {
        for id in value.to_str().unwrap_or("?").split(',').map(str::trim) {
            if id == "*" {
                return Ok(Some(Replaces::Any));
            }
            ids.push(params::sale_id(id.trim_matches('"'))?);
        }
    }
    Ok(Some(ids).filter(|ids| !ids.is_empty()).map(Replaces::AnyOf))
}

/// Checks a request to start or delete a sale: it must have the admin token of this instance, and must not come from a page of
/// another site. Without an admin token, every such request is refused.
///
/// # Errors
/// `token-required`, `not-allowed`, `cross-site` or `unintended`; `internal` if the token cannot be read.
pub(super) fn check_admin(app: &AppState, head: &Parts) -> Result<(), Problem> {
    if let Some(extension) = &app.options.extension {
        extension.check_start(head)?;
        return params::check_intent(head);
    }
    let Some(token) = &app.options.admin_token else {
        let detail = "this instance has no admin token: restart it with --admin-token-file or FLASH_SALE_ADMIN_TOKEN";
        return Err(Problem::new(ProblemType::NOT_ALLOWED, detail));
    };
    let required = || {
        let detail = "send the admin token of this instance as `Authorization: Bearer <token>`";
        Problem::new(ProblemType::TOKEN_REQUIRED, detail)
    };
    let sent = bearer(&head.headers).ok_or_else(required)?;
    let token = token.read().map_err(|error| {
        tracing::error!(%error, "cannot read the admin token");
        Problem::new(ProblemType::INTERNAL, "the admin token cannot be read: the log has the cause")
    })?;
    if !token.matches(sent) {
        return Err(required());
    }
    params::check_intent(head)
}

/// The bearer token. The case of the scheme's name does not matter (RFC 9110, section 11.1).
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked("bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}
