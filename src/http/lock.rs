//! `GET /lock`: the holder and the queue of an item's lock.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use fenced_lock::{QueueEntry, Token};
use serde::Serialize;

use super::problem::{Problem, ProblemType};
use super::state::AppState;
use super::{params, reply};
use crate::safeguard::SEE_THROUGH;

/// The most reads of queues at once: each is a request to etcd, which the lock needs as well.
pub(super) const MAX_READS: usize = 16;

#[derive(Serialize)]
struct LockView<'a> {
    /// None without a distributed lock.
    name: Option<String>,
    /// The first of the queue.
    holder: Option<&'a ClaimView>,
    /// Every claim in the order of revisions, the holder first.
    queue: &'a [ClaimView],
}

#[derive(Serialize)]
struct ClaimView {
    /// None while it is not known.
    token: Option<i64>,
    key: String,
    /// In hexadecimal, as `etcdctl lease list` prints it. A key without a lease never ends by itself.
    lease: Option<String>,
    instance: Option<String>,
    age_ms: Option<u64>,
}

impl From<QueueEntry> for ClaimView {
    fn from(claim: QueueEntry) -> Self {
        Self {
            token: claim.token.map(Token::revision),
            key: claim.key,
            lease: (claim.lease != 0).then(|| format!("{:x}", claim.lease)),
            instance: claim.label,
            age_ms: claim.age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
        }
    }
}

/// The queue for an item's lock.
pub(super) async fn queue(State(app): State<Arc<AppState>>, uri: Uri) -> Result<Response, Problem> {
    let item = params::only_item(&uri)?;
    if !SEE_THROUGH.is_on() {
        return Ok(view(app.sale.lock_name(&item), app.sale.queue(&item).await?));
    }
    let place = Arc::clone(&app.queue_reads).try_acquire_owned().map_err(|_| {
        let detail = format!("{MAX_READS} reads of queues are in progress, which is the limit");
        Problem::new(ProblemType::TOO_MANY_WATCHERS, detail)
    })?;
    let (sale, name) = (app.sale.clone(), app.sale.lock_name(&item));
    // runs to its end also if the client disconnects: cancelled requests wear out the connection
    let read = tokio::spawn(async move {
        let queue = sale.queue(&item).await;
        drop(place);
        queue
    });
    let queue = read.await.map_err(|_| Problem::panicked())?;
    Ok(view(name, queue?))
}

fn view(name: Option<String>, queue: Vec<QueueEntry>) -> Response {
    let queue: Vec<_> = queue.into_iter().map(ClaimView::from).collect();
    reply::json(&LockView { name, holder: queue.first(), queue: &queue })
}
