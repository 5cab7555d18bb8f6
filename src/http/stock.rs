//! `GET` and `PUT /stock`.

use std::io;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Uri, header};
use axum::response::Response;
use serde::{Deserialize, Serialize};

use super::problem::{Problem, ProblemType};
use super::state::AppState;
use super::{body, params, reply};
use crate::inventory::{Inventory, Item, Stock};
use crate::secret::SecretSource;

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
        None => check_start(app.admin_token.as_ref(), &head.headers)?,
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

/// Checks the headers of a request to start a sale, which deletes all orders of the one before. `token` is the
/// admin token of this instance; without one, every start is refused.
///
/// # Errors
/// `token-required` or `not-allowed`; `internal` if the token cannot be read.
fn check_start(token: Option<&SecretSource>, headers: &HeaderMap) -> Result<(), Problem> {
    let sent = bearer(headers);
    let unreadable = |error: io::Error| {
        tracing::error!(%error, "cannot read the admin token");
        Problem::new(ProblemType::INTERNAL, "the admin token cannot be read: the log has the cause")
    };
    // only for who sends one
    let token = token.map(|token| sent.map(|_| token.read()).transpose()).transpose();
    match token.map_err(unreadable)? {
        Some(Some(token)) if sent.is_some_and(|sent| token.matches(sent)) => Ok(()),
        Some(_) => Err(Problem::new(
            ProblemType::TOKEN_REQUIRED,
            "send the admin token of this instance as `Authorization: Bearer <token>`",
        )),
        None => Err(Problem::new(
            ProblemType::NOT_ALLOWED,
            "this instance has no admin token: restart it with --admin-token-file or \
             FLASH_SALE_ADMIN_TOKEN",
        )),
    }
}

/// The bearer token. The case of the scheme's name does not matter (RFC 9110, section 11.1).
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked("bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}
