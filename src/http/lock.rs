//! `GET /lock`: who holds an item's lock, and who waits for it.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::response::Response;
use serde::Serialize;

use super::problem::Problem;
use super::state::AppState;
use super::{params, reply};
use crate::sale::QueuedClaim;

#[derive(Serialize)]
struct LockView<'a> {
    /// There is none without a distributed lock.
    name: Option<String>,
    /// The first of the queue.
    holder: Option<&'a ClaimView>,
    /// Every claim in order of revision, the holder's included.
    queue: &'a [ClaimView],
}

#[derive(Serialize)]
struct ClaimView {
    token: i64,
    /// In hexadecimal, as `etcdctl lease list` prints it.
    lease: String,
    instance: Option<String>,
    age_ms: Option<u64>,
}

impl From<QueuedClaim> for ClaimView {
    fn from(claim: QueuedClaim) -> Self {
        Self {
            token: claim.token.revision(),
            lease: format!("{:x}", claim.lease),
            instance: claim.instance,
            age_ms: claim.age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
        }
    }
}

/// The queue for an item's lock.
pub(super) async fn queue(
    State(app): State<Arc<AppState>>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let [item] = params::parse(query.as_deref(), ["item"])?;
    let item = params::item(item.as_deref())?;
    let queue: Vec<_> = app.sale.queue(&item).await?.into_iter().map(ClaimView::from).collect();
    Ok(reply::json(&LockView {
        name: app.sale.lock_name(&item),
        holder: queue.first(),
        queue: &queue,
    }))
}
