//! An instance of a demo: it passes the calls of its page on to the control, and carries out the control's commands.

pub(crate) mod same_site;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{self, Method, StatusCode, header};
use axum::middleware::from_fn;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get};
use flash_sale::http::problem::{Problem, ProblemType};
use flash_sale::http::{Extension, X_REQUEST_ID, body, current_id, reply};
use flash_sale::sale::Sale;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::sleep;

use crate::baselines::{Switch, naive};
use crate::control::problem::NO_CONTROL;
use crate::control::record::{Command, Fault, Status};
use crate::control::{HIT, client};
use crate::fault::{self, Action, Point, Tell};
use crate::safeguard::Safeguard;

/// How long the control may take to answer: it asks each instance at most twice.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How often the control's view is read.
const ASK_EVERY: Duration = Duration::from_millis(200);

/// How long an instance that is to be killed still lives: it may be the one that forwards the control's answer.
const ANSWER_TIME: Duration = Duration::from_millis(100);

/// How long the lock and the next holder may take to notice that a lease has ended.
const NOTICED_WITHIN: Duration = Duration::from_secs(2);

/// The relay of one instance.
pub(crate) struct Relay {
    sale: Sale,
    switch: Arc<Switch>,
    control: Option<Authority>,
    /// The last answer of the control.
    view: Mutex<Value>,
}

impl Extension for Relay {
    fn routes(self: Arc<Self>) -> Router {
        Router::new()
            .route("/demo", any(forward))
            .route("/demo/{*path}", any(forward))
            .route("/demo/here", get(status).post(execute))
            .layer(from_fn(same_site::layer))
            .with_state(self)
    }

    /// Any client may start a sale, except pages of other sites.
    fn check_start(&self, head: &Parts) -> Result<(), Problem> {
        same_site::check(&head.headers)
    }

    fn view(self: Arc<Self>) -> Value {
        self.view.lock().clone()
    }
}

impl Relay {
    pub(crate) fn new(sale: Sale, switch: Arc<Switch>, control: Option<Authority>) -> Self {
        Self { sale, switch, control, view: Mutex::default() }
    }

    /// Asks the control for its view again and again. Keeps the last view until there is an answer.
    pub(crate) async fn follow(self: Arc<Self>) {
        while self.control.is_some() {
            let answer = self.ask_control(Method::GET, "/demo", Bytes::new()).await;
            let view = answer.ok().and_then(|(_, view)| serde_json::from_slice(&view).ok());
            if let Some(view) = view {
                *self.view.lock() = view;
            }
            sleep(ASK_EVERY).await;
        }
    }

    async fn ask_control(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), Problem> {
        let control = self.control.as_ref().ok_or_else(|| {
            let detail = "this instance has no control: start one with `demo control`, and the instance with --control";
            Problem::new(NO_CONTROL, detail)
        })?;
        let request =
            http::Request::builder().method(method).uri(format!("http://{control}{path}"));
        let mut request = request.header(client::FROM, self.sale.instance());
        if let Some(id) = current_id() {
            request = request.header(X_REQUEST_ID, id);
        }
        let answer = client::send(request, body, ANSWER_TIMEOUT).await;
        answer.map_err(|_| Problem::new(NO_CONTROL, "the control of the demo does not answer"))
    }
}

type App = State<Arc<Relay>>;

/// Passes a page's call on to the control. A page can call only the instance from which it comes.
async fn forward(State(relay): App, request: Request) -> Result<Response, Problem> {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let body = body::read(request.into_body()).await?;
    let (status, body) = relay.ask_control(method, &path, body).await?;
    let kind = if status.is_success() { "application/json" } else { "application/problem+json" };
    Ok((status, [(header::CONTENT_TYPE, kind)], body).into_response())
}

async fn status(State(relay): App) -> Response {
    let Relay { sale, switch, .. } = &*relay;
    let guards = switch.modes();
    let status = Status {
        instance: sale.instance().to_owned(),
        guard: switch.mode(),
        locks: guards.iter().copied().filter(|guard| guard.is_shared()).collect(),
        guards,
        fence: switch.writer.has(Safeguard::Fence),
        stale_batches: sale.metrics().stale_batches.get(),
    };
    reply::json(&(status, switch.writer.tenures.of_default_item(), &*naive::LOOKS.lock()))
}

async fn execute(State(relay): App, request: Request) -> Result<Response, Problem> {
    let body = body::read(request.into_body()).await?;
    let bad_body = || Problem::new(ProblemType::BAD_BODY, "the body is no command of a control");
    match body::object(&body).map_err(|_| bad_body())? {
        Command::Guard(guard) => {
            if !relay.switch.choose(guard) {
                return Err(bad_body());
            }
        }
        Command::Fence(on) => relay.switch.writer.set(Safeguard::Fence, on),
        Command::Fault(fault) => fault::ask_for(fault.map(|fault| {
            let action = match fault {
                // longer than the lease lives and the next holder takes to notice its end
                Fault::Pause => {
                    let ttl = relay.sale.lease_ttl().unwrap_or_default();
                    Action::Stop(Some(ttl * 2 + NOTICED_WITHIN))
                }
                Fault::Kill => Action::Kill,
            };
            let relay = Arc::clone(&relay);
            // if the control does not hear this, it says that the fault was not reached
            let tell =
                async move { drop(relay.ask_control(Method::POST, HIT, Bytes::new()).await) };
            (Point::BeforeWrite, action, Box::pin(tell) as Tell)
        })),
        Command::Kill {} => {
            tracing::error!("killing this instance, as the control of the demo asks");
            tokio::spawn(async {
                sleep(ANSWER_TIME).await;
                fault::kill_now()
            });
        }
    }
    Ok(reply::json(&Value::Null))
}

#[cfg(test)]
mod tests {
    use crate::locks::LockMode;

    /// Goal: the page has words for every lock that the instances can share, in the order of the command line.
    #[test]
    fn the_page_knows_every_lock() {
        let guards = include_str!("../../../static/page/guards.js");
        let (_, locks) = guards.split_once("const LOCKS = {\n").expect("they are there");
        let (locks, _) = locks.split_once("\n};").expect("they end");
        let entries = locks.lines().filter_map(|line| line.strip_prefix("  ")?.split_once(": "));
        let names = entries.map(|(name, _)| name.trim_matches('"'));
        let names: Vec<_> = names.filter(|name| !name.starts_with(' ')).collect();
        assert_eq!(names, LockMode::shared().map(LockMode::name).collect::<Vec<_>>());
    }
}
