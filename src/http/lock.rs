//! `GET /lock`: the holder and the queue of an item's lock.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use fenced_lock::{QueueEntry, Token};
use serde_json::{Value, json};

use super::problem::Problem;
use super::state::AppState;
use super::{params, reply};
use crate::sale::SaleError;

/// The queue for an item's lock, from the watch; if there is none, from etcd by one request at a time.
pub(super) async fn queue(State(app): State<Arc<AppState>>, uri: Uri) -> Result<Response, Problem> {
    let item = params::only_item(&uri)?;
    let (sale, name) = (app.sale.clone(), app.sale.guard().lock_name(&item));
    let queue = if let Some(queue) = sale.watched_queue(&item) {
        queue
    } else {
        // the read runs to its end even if the client disconnects: cancelled requests wear out the connection
        let read = app.queue_reads.run(async move { sale.queue(&item).await }).await;
        read.ok_or(SaleError::TooManyReads)??
    };
    Ok(view(name.as_deref(), queue))
}

fn view(name: Option<&str>, queue: Vec<QueueEntry>) -> Response {
    let claim = |claim: QueueEntry| {
        let mut shown = json!({
            "token": claim.token.map(Token::revision),
            "key": claim.key,
            // in hexadecimal, as `etcdctl lease list` prints it; a key without a lease never ends by itself
            "lease": (claim.lease != 0).then(|| format!("{:x}", claim.lease)),
            "instance": claim.label,
            "age_ms": claim.age.map(|age| age.as_millis()),
        });
        // peers send their orders there while this claim holds the lock
        if let Some(address) = claim.note {
            shown["address"] = address.into();
            shown["stands_by"] = claim.is_standby.into();
        }
        shown
    };
    let queue: Vec<Value> = queue.into_iter().map(claim).collect();
    reply::json(&json!({ "name": name, "holder": queue.first(), "queue": queue }))
}
