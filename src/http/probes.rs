//! `GET /healthz`, `/readyz` and `/version`: for load balancers and operators.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::{Instant, sleep_until, timeout};

use super::problem::{Problem, ProblemType};
use super::reply;
use super::state::AppState;
use crate::sale::Sale;

/// The time limit of the readiness check. Most probes wait for one to five seconds.
const READY_TIMEOUT: Duration = Duration::from_secs(2);

/// The shortest time between the starts of two checks.
const READY_GAP: Duration = Duration::from_millis(250);

/// Answers that the process lives. It checks nothing more, since a restart would repair nothing more.
pub(super) async fn healthz() -> Response {
    reply::json(&json!({ "status": "ok" }))
}

pub(super) async fn readyz(State(app): State<Arc<AppState>>) -> Result<Response, Problem> {
    if app.traffic.is_draining.load(Ordering::Relaxed) {
        return Err(Problem::new(ProblemType::STOPPING, "this instance is stopping"));
    }
    app.readiness.next(&app.sale).await?;
    Ok(reply::json(&json!({ "status": "ready" })))
}

/// The latest check and its start. Requests that come before its start share it, since each check asks Redis and etcd, and any
/// client may send requests. The answer to a request is never older than the request.
#[derive(Default)]
pub(super) struct Readiness(Mutex<Option<(Instant, Check)>>);

type Check = Shared<BoxFuture<'static, Result<(), Problem>>>;

impl Readiness {
    fn next(&self, sale: &Sale) -> Check {
        let mut latest = self.0.lock();
        let mut begins_at = Instant::now();
        if let Some((latest_at, check)) = &*latest {
            if *latest_at > begins_at {
                return check.clone();
            }
            begins_at = begins_at.max(*latest_at + READY_GAP);
        }
        let sale = sale.clone();
        // a task of its own, which goes on for other requests if the first client disconnects
        let check = tokio::spawn(async move {
            sleep_until(begins_at).await;
            match timeout(READY_TIMEOUT, sale.ready()).await {
                Ok(ready) => Ok(ready?),
                Err(_elapsed) => {
                    let seconds = READY_TIMEOUT.as_secs();
                    let detail =
                        format!("store and lock service did not answer within {seconds} seconds");
                    Err(Problem::new(ProblemType::NOT_READY, detail))
                }
            }
        });
        let check = check.map(|ended| ended.unwrap_or_else(|_| Err(Problem::panicked())));
        let check = check.boxed().shared();
        latest.insert((begins_at, check)).1.clone()
    }
}

pub(super) async fn version(State(app): State<Arc<AppState>>) -> Response {
    reply::json(&json!({
        "name": env!("CARGO_PKG_NAME"),
        "version": env!("CARGO_PKG_VERSION"),
        // set at build time
        "commit": option_env!("GIT_COMMIT"),
        // the safeguards that are off; always empty in the service
        "without": app.sale.guard().status().without,
    }))
}
