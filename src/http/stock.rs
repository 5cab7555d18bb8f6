//! `GET`, `PUT` and `PATCH /stock`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Uri, header};
use axum::response::Response;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::problem::{Problem, ProblemType};
use super::reduce::marked;
use super::state::AppState;
use super::{body, params, reply};
use crate::inventory::{
    ChangeCall, Changed, Inventory, Item, NewSale, OtherEntry, Replaces, SaleChange, SaleId,
    Started, Stock, Terms, Timestamp,
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
    // not `Terms`: an error in a flattened struct names no field
    per_order: Option<u32>,
    per_user: Option<u32>,
    hold_seconds: Option<u32>,
    starts_at: Option<Timestamp>,
    ends_at: Option<Timestamp>,
}

/// The fields of a [`SaleBody`], and the values that each may have.
const FIELDS: [(&str, &str); 7] = [
    ("stock", "a whole number from 0 to 1000000000000"),
    ("sale", "an id in quotes, of 1 to 64 letters, digits, dots, - and _"),
    ("per_order", "a whole number from 1 to 1000000"),
    ("per_user", "a whole number from 1 to 1000000"),
    ("hold_seconds", "a whole number from 1 to 86400"),
    ("starts_at", "a time in quotes, such as \"2026-11-27T08:00:00Z\""),
    ("ends_at", "a time in quotes, such as \"2026-11-28T00:00:00Z\""),
];

pub(super) async fn read(State(app): State<Arc<AppState>>, uri: Uri) -> Result<Response, Problem> {
    let item = params::only_item(&uri)?;
    let stock = app.sale.reads().stock(&item).await?;
    Ok(reply::json(&StockView::of(&item, &stock)))
}

fn bad(detail: String) -> Problem {
    Problem::new(ProblemType::BAD_BODY, detail)
}

/// The head, the item and the body of a call that only operators may make. The body has these fields.
async fn operators_call<T: DeserializeOwned>(
    app: &AppState,
    request: Request,
    fields: &[(&str, &str)],
) -> Result<(Parts, Item, T), Problem> {
    let (head, content) = request.into_parts();
    app.require_admin(&head)?;
    let item = params::only_item(&head.uri)?;
    let content = body::read(content).await?;
    let body = body::object(&content).map_err(|reason| bad(body::explained(fields, &reason)))?;
    Ok((head, item, body))
}

pub(super) async fn start(
    State(app): State<Arc<AppState>>,
    request: Request,
) -> Result<Response, Problem> {
    let (head, item, body) = operators_call(&app, request, &FIELDS).await?;
    let SaleBody { stock, sale, per_order, per_user, hold_seconds, starts_at, ends_at } = body;
    if stock > Inventory::MAX_UNITS {
        return Err(bad(body::explained(&FIELDS, &format!("stock: {stock}"))));
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
    // earlier versions accepted later times: the start of such a sale may be repeated, but no new one is accepted
    let too_late = terms.check_times().err();
    let replaces = too_late.map_or(replaces, |_| Replaces::AnyOf(vec![id.clone().into()]));
    let new = NewSale { units: stock, id, is_named, terms, replaces };
    let started = app.sale.start(&item, new).await;
    let Started { stock, is_repeated } = started.map_err(|error| match too_late {
        Some(too_late) if error.word() == "sale-mismatch" => bad(too_late.to_owned()),
        _ => error.into(),
    })?;
    Ok(marked(reply::json(&StockView::of(&item, &stock)), is_repeated))
}

/// The fields of a [`SaleChange`], and the values that each may have.
const CHANGE_FIELDS: [(&str, &str); 8] = [
    ("add", "a whole number from -1000000000000 to 1000000000000, and not 0"),
    ("paused", "true or false"),
    ("per_order", "a whole number from 1 to 1000000"),
    ("per_user", "a whole number from 1 to 1000000"),
    ("hold_seconds", "a whole number from 1 to 86400"),
    ("starts_at", "a time in quotes, such as \"2026-11-27T08:00:00Z\", or \"now\""),
    ("ends_at", "a time in quotes, such as \"2026-11-28T00:00:00Z\", or \"now\""),
    ("note", "a text of at most 200 characters"),
];

/// The state after a change, and its entry in the ledger.
#[derive(Serialize)]
struct ChangedView<'a> {
    #[serde(flatten)]
    stock: StockView<'a>,
    entry: &'a OtherEntry,
}

pub(super) async fn change(
    State(app): State<Arc<AppState>>,
    request: Request,
) -> Result<Response, Problem> {
    let (head, item, change) = operators_call(&app, request, &CHANGE_FIELDS).await?;
    SaleChange::check(&change).map_err(|rule| bad(rule.to_owned()))?;
    let key = params::idempotency_key(&head.headers, ProblemType::BAD_ORDER_ID)?;
    let key = key.ok_or_else(|| {
        let detail =
            "a change needs an Idempotency-Key: repeated with it, the call changes nothing twice";
        Problem::new(ProblemType::BAD_ORDER_ID, detail)
    })?;
    let key = params::order_id(&key)?;
    let name_it = "name the sale with If-Match: \"SALE\" is any version, \"SALE:7\" exactly that";
    let sales = match replaced(&head.headers)? {
        Some(Replaces::AnyOf(sales)) => sales,
        Some(_) => {
            let detail = format!("{name_it}; `*` is refused here");
            return Err(Problem::new(ProblemType::BAD_SALE_ID, detail));
        }
        None => return Err(Problem::new(ProblemType::SALE_RUNNING, name_it)),
    };
    let call = ChangeCall { key, change, sales };
    let Changed { entry, stock, is_repeated } = app.sale.change(&item, &call).await?;
    let view = ChangedView { stock: StockView::of(&item, &stock), entry: &entry };
    Ok(marked(reply::json(&view), is_repeated))
}

/// The sales that the header `If-Match` allows to replace, if there is such a header.
fn replaced(headers: &HeaderMap) -> Result<Option<Replaces>, Problem> {
    let mut ids = Vec::new();
    for value in headers.get_all(header::IF_MATCH) {
        for id in value.to_str().unwrap_or("?").split(',').map(str::trim) {
            if id == "*" {
                return Ok(Some(Replaces::Any));
            }
            let sale = id.trim_matches('"').parse();
            ids.push(sale.map_err(|error| Problem::new(ProblemType::BAD_SALE_ID, error))?);
        }
    }
    Ok(Some(ids).filter(|ids| !ids.is_empty()).map(Replaces::AnyOf))
}
