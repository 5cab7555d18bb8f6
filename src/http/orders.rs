//! `GET /orders` and `GET /order`: the ledger.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Uri, Version, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use super::access::Role;
use super::params::Named;
use super::problem::{Problem, ProblemType};
use super::reduce::{answer, named_order, prefers};
use super::reply::AtOnce;
use super::state::AppState;
use super::{params, reply};
use crate::inventory::{
    Action, Entry, Inventory, Item, LedgerPage, LedgerPosition, Order, Outcome, SaleId,
};

/// The default length of a page.
const DEFAULT_LIMIT: u32 = 100;

/// The longest wait for the next entry, and the pause between two looks.
const LONGEST_WAIT: Duration = Duration::from_mins(1);
const LOOK_EVERY: Duration = Duration::from_millis(200);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PageParams {
    item: Option<String>,
    after: Option<String>,
    limit: Option<String>,
    sale: Option<String>,
    wait: Option<String>,
}

#[derive(Serialize)]
struct Page<'a> {
    /// The id of the sale, if it has one.
    sale: Option<&'a str>,
    orders: Vec<Line<'a>>,
    /// The `after` of the next page, if there is one.
    next: Option<&'a str>,
    /// The position behind this page, for a later `after`.
    cursor: &'a str,
}

#[derive(Serialize)]
struct Line<'a> {
    sale: &'a str,
    #[serde(flatten)]
    entry: &'a Entry,
    /// The position behind this line, if the page has no `cursor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

/// Reads a ledger page by page.
struct Reading {
    app: Arc<AppState>,
    item: Item,
    from: LedgerPosition,
    limit: u32,
}

impl Reading {
    /// The next page. If it would be empty, waits up to `wait` for an entry.
    async fn next(&mut self, wait: Duration) -> Result<LedgerPage, Problem> {
        let Self { app, item, from, limit } = self;
        let until = Instant::now() + wait;
        loop {
            let page = app.sale.reads().ledger(item, from.clone(), *limit).await?;
            // a sale that starts during the wait has another ledger
            from.of = Some(page.name.clone()).filter(|name| !name.is_empty());
            let is_over = Instant::now() >= until || app.stop.is_cancelled();
            if !page.entries.is_empty() || is_over {
                from.after += page.entries.len() as u64;
                return Ok(page);
            }
            let pause = LOOK_EVERY.min(until - Instant::now());
            app.stop.run_until_cancelled(sleep(pause)).await;
        }
    }

    /// Whether the ledger may go on after this page.
    fn goes_on(&self, page: &LedgerPage) -> bool {
        page.entries.len() as u64 >= u64::from(self.limit)
    }

    /// The `after` for the next entry.
    fn cursor(&self) -> String {
        let sale = self.from.of.as_ref().map(|name| format!("{name}:"));
        format!("{}{}", sale.unwrap_or_default(), self.from.after)
    }

    /// The ledger from this page on, one entry a line. Only one page is in memory at a time. If a read fails, the body breaks
    /// off.
    fn lines(self, first: LedgerPage) -> Body {
        let pages = stream::try_unfold((self, Some(first)), |(mut reading, page)| async {
            let Some(page) = page else { return Ok(None) };
            let mut text = Vec::new();
            for mut line in lines_of(&page) {
                line.cursor = Some(format!("{}:{}", page.name, line.entry.position()));
                serde_json::to_writer(&mut text, &line)?;
                text.push(b'\n');
            }
            let next = if reading.goes_on(&page) {
                let next = reading.next(Duration::ZERO).await;
                Some(next.map_err(|problem| io::Error::other(problem.detail))?)
            } else {
                None
            };
            Ok::<_, io::Error>(Some((Bytes::from(text), (reading, next))))
        });
        Body::from_stream(pages)
    }
}

fn lines_of(page: &LedgerPage) -> impl Iterator<Item = Line<'_>> {
    page.entries.iter().map(|entry| Line { sale: &page.sale, entry, cursor: None })
}

/// One page of the ledger, or the rest of the ledger as lines.
pub(super) async fn list(
    State(app): State<Arc<AppState>>,
    version: Version,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Problem> {
    app.require(Role::Shop, &headers)?;
    let PageParams { item, after, limit, sale, wait } = params::parse(&uri)?;
    let item = params::item(item.as_deref())?;
    let from = position(sale.as_deref(), after.as_deref())?;
    let wait = wait.as_deref().map_or(Ok(Duration::ZERO), wait_time)?;
    // in HTTP/1.0, lines that break off look whole
    let is_stream = version > Version::HTTP_10 && prefers(&headers, "application/x-ndjson");
    let default = if is_stream { Inventory::MAX_PAGE } else { DEFAULT_LIMIT };
    let limit = limit.map_or(Some(default), |limit| params::number(&limit));
    let limit =
        limit.filter(|limit| (1..=Inventory::MAX_PAGE).contains(limit)).ok_or_else(|| {
            let detail = format!("`limit` is a whole number from 1 to {}", Inventory::MAX_PAGE);
            Problem::new(ProblemType::BAD_PARAMETER, detail)
        })?;
    let _place = if wait.is_zero() { None } else { Some(app.events.take_place()?) };
    let mut reading = Reading { app, item, from, limit };
    let page = reading.next(wait).await?;
    if is_stream {
        let headers =
            [(header::CONTENT_TYPE, "application/x-ndjson"), (header::CACHE_CONTROL, "no-store")];
        return Ok((Extension(AtOnce), headers, reading.lines(page)).into_response());
    }
    // if this full page is the last one, the next page is empty
    let cursor = reading.cursor();
    let next = reading.goes_on(&page).then_some(&*cursor);
    let sale = Some(&*page.sale).filter(|sale| !sale.is_empty());
    let page =
        reply::json(&Page { sale, orders: lines_of(&page).collect(), next, cursor: &cursor });
    Ok(if wait.is_zero() { page } else { (Extension(AtOnce), page).into_response() })
}

/// The position that the parameters `sale` and `after` name. `after` is `POSITION` or `SALE:POSITION`.
fn position(sale: Option<&str>, after: Option<&str>) -> Result<LedgerPosition, Problem> {
    let after = after.unwrap_or("0");
    let (of, after) = after.rsplit_once(':').map_or((None, after), |(of, after)| (Some(of), after));
    let sale = sale.map(params::sale_id).transpose()?;
    if let Some(of) = of {
        params::sale_id(of.split('~').next().unwrap_or_default())?;
    }
    // a number alone would skip entries at the beginning of a later sale
    let is_named = of.is_some() || sale.is_some();
    let after = params::number(after).filter(|after| is_named || *after == 0);
    let after = after.ok_or_else(|| {
        let detail = "send the `cursor` of a page as `after`, which is SALE:POSITION; a number above 0 needs `sale`";
        Problem::new(ProblemType::BAD_PARAMETER, detail)
    })?;
    let of = of.or(sale.as_ref().map(SaleId::as_str).filter(|_| after > 0)).map(str::to_owned);
    Ok(LedgerPosition { sale, of, after })
}

fn wait_time(text: &str) -> Result<Duration, Problem> {
    let wait = humantime::parse_duration(text).ok().filter(|wait| *wait <= LONGEST_WAIT);
    let detail = "`wait` is a time of at most 60s, such as 30s";
    wait.ok_or_else(|| Problem::new(ProblemType::BAD_PARAMETER, detail))
}

/// The record of one order, with its latest event.
pub(super) async fn one(
    State(app): State<Arc<AppState>>,
    id: Named,
    request: Request,
) -> Result<Response, Problem> {
    let (head, _) = request.into_parts();
    let Order { id, item, user, .. } = named_order(&app, id, &head, Action::Reserve)?;
    match app.sale.reads().order(&item, &id, &user).await? {
        (sale, Some(entry)) => {
            let entry = Entry::Order(entry);
            Ok(reply::json(&Line { sale: &sale, entry: &entry, cursor: None }))
        }
        (_, None) => answer(&id, &item, Outcome::Unknown),
    }
}
