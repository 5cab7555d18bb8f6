//! `GET /healthz`, `/readyz` and `/version`: for load balancers and operators.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use tokio::time::timeout;

use super::problem::{Problem, ProblemType};
use super::reply;
use super::state::AppState;
use crate::defence::Defence;

/// How long the readiness check may take. Most probes wait for one to five seconds.
const READY_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Serialize)]
struct Status {
    status: &'static str,
}

#[derive(Serialize)]
struct Build {
    name: &'static str,
    version: &'static str,
    /// Known if `GIT_COMMIT` was set while the program was built.
    commit: Option<&'static str>,
    /// The defences that this instance runs without: none, in earnest.
    without: Vec<&'static str>,
}

/// The process lives. Nothing else is asked, since a restart mends nothing else.
pub(super) async fn healthz() -> Response {
    reply::json(&Status { status: "ok" })
}

/// Whether this instance can sell now.
pub(super) async fn readyz(State(app): State<Arc<AppState>>) -> Result<Response, Problem> {
    if app.is_stopping() {
        return Err(Problem::new(ProblemType::Stopping, "this instance is stopping"));
    }
    match timeout(READY_TIMEOUT, app.sale.ready()).await {
        Ok(ready) => ready?,
        Err(_elapsed) => {
            let seconds = READY_TIMEOUT.as_secs();
            let detail = format!("store and lock service did not answer within {seconds} seconds");
            return Err(Problem::new(ProblemType::NotReady, detail));
        }
    }
    Ok(reply::json(&Status { status: "ready" }))
}

/// What runs here.
pub(super) async fn version() -> Response {
    reply::json(&Build {
        name: env!("CARGO_PKG_NAME"),
        version: env!("CARGO_PKG_VERSION"),
        commit: option_env!("GIT_COMMIT"),
        without: Defence::all_off().map(Defence::name).collect(),
    })
}
