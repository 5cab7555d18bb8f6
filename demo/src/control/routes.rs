//! The page and its calls. `curl --json` can send them, too.
//!
//! | call | effect |
//! |---|---|
//! | `POST /demo/run` `{"stock":300,"requests":500,"guard":"no-lock"}` | starts a sale, sends the orders to all instances at once, and judges the result; guard and fence stay for later orders |
//! | ... `"guard":"etcd","fence":false,"fault":"pause"` | pauses the holder beyond its lease (or for `"sleep_seconds"`), between read and write; with `"fence":true` its batch is refused |
//! | ... `"fault":"kill"` | kills the holder |
//! | `GET`, `DELETE /demo/run` | the run with its verdict; stops it |
//! | `PUT /demo/guard` `{"guard":"local"}`, `PUT /demo/fence` `{"on":false}` | guard and fence of later orders, at all instances |
//! | `POST /demo/pause`, `POST /demo/kill` `{"instance":"8090"}` | pauses the instance at its next write under the lock; kills it |
//! | `GET /demo` | the choices, and the instances that are up |
//! | `GET /demo/run/replay` | the last judged run, [event by event](super::replay), or `null` |
//! | `GET /events`, `/stock` and others | passed on to the first instance that is [up](super::forward) |
//!
//! Their problem types, besides those of the service, are in [`problem`](super::problem).

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::middleware::from_fn;
use axum::response::Response;
use axum::routing::{any, get, post, put};
use clap::ValueEnum as _;
use flash_sale::http::page::{STAGE, page_routes};
use flash_sale::http::problem::{Problem, ProblemType};
use flash_sale::http::{body, reply};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::problem::{NO_RUN, UNKNOWN_INSTANCE};
use super::record::{Command, Fault, NewRun};
use super::{Control, HIT, Instance, MAX_REQUESTS, MAX_SLEEP, MAX_STOCK, forward};
use crate::instance::Guard;
use crate::same_site;

pub(super) fn routes(control: Arc<Control>) -> Router {
    let mut routes = Router::new();
    for path in ["/stock", "/stock/reduce", "/lock", "/orders", "/metrics"] {
        routes = routes.route(path, any(forward::call));
    }
    routes
        .route("/events", get(forward::events))
        .route("/demo", get(show))
        .route("/demo/run", get(show_run).post(start_run).delete(stop_run))
        .route("/demo/run/replay", get(replay))
        .route("/demo/guard", put(set_guard))
        .route("/demo/fence", put(set_fence))
        .route("/demo/pause", post(pause))
        .route("/demo/kill", post(kill))
        .layer(from_fn(same_site::layer))
        .merge(page_routes(STAGE))
        .route(HIT, post(hit))
        .route("/healthz", get(async || "ok\n"))
        .with_state(control)
}

/// A call of a page.
struct Call {
    control: Arc<Control>,
    body: Bytes,
}

impl FromRequest<Arc<Control>> for Call {
    type Rejection = Problem;

    async fn from_request(request: Request, control: &Arc<Control>) -> Result<Self, Problem> {
        Ok(Self { control: Arc::clone(control), body: body::read(request.into_body()).await? })
    }
}

impl Control {
    /// The choices, the instances and the run; `null` until an instance has answered.
    pub(super) fn view(&self) -> Value {
        let Some(status) = self.status() else { return Value::Null };
        let instances = self.instances().into_iter();
        let instances = instances.map(|one| json!({"instance": one.name, "up": one.is_up}));
        let mut view = json!(status);
        view["guards"] = json!(Guard::value_variants());
        view["max_requests"] = json!(MAX_REQUESTS);
        view["max_stock"] = json!(MAX_STOCK);
        view["instances"] = instances.collect();
        view["run"] = json!(self.current_run());
        view["notes"] = json!(self.known.lock().notes);
        view
    }
}

impl Call {
    fn parse<T: DeserializeOwned>(&self, form: &str) -> Result<T, Problem> {
        body::object(&self.body).map_err(|reason| bad_body(&format!("{form} ({reason})")))
    }

    /// The value of the body's only field.
    fn field<T: DeserializeOwned>(&self, name: &str, form: &str) -> Result<T, Problem> {
        let mut fields: HashMap<String, T> = self.parse(form)?;
        let field = fields.remove(name).filter(|_| fields.is_empty());
        field.ok_or_else(|| bad_body(form))
    }

    fn instance(&self) -> Result<String, Problem> {
        self.field("instance", "{\"instance\":\"8090\"}")
    }

    async fn victim(&self) -> Result<Instance, Problem> {
        let instance = self.instance()?;
        self.control.read_all().await;
        let found = self.control.instances().into_iter().find(|one| one.name == instance);
        let detail = "the demo has no instance of this name";
        found.ok_or_else(|| Problem::new(UNKNOWN_INSTANCE, detail))
    }
}

fn bad_body(form: &str) -> Problem {
    Problem::new(ProblemType::BAD_BODY, format!("the body is a JSON object such as {form}"))
}

async fn show(call: Call) -> Response {
    reply::json(&call.control.view())
}

async fn show_run(call: Call) -> Result<Response, Problem> {
    Ok(reply::json(&call.control.current_run().ok_or_else(no_run)?))
}

/// The events of the last run with a verdict; `null` until there is one.
async fn replay(call: Call) -> Response {
    reply::json(&call.control.known.lock().replay)
}

fn no_run() -> Problem {
    Problem::new(NO_RUN, "no run was started: POST /demo/run starts one")
}

async fn start_run(call: Call) -> Result<Response, Problem> {
    let form = format!(
        "{{\"stock\":300,\"requests\":500,\"guard\":\"etcd\",\"fence\":true,\"fault\":null}}, with a \
         stock of at most {MAX_STOCK}, 1 to {MAX_REQUESTS} requests, a fault that is null, \
         \"pause\" or \"kill\", and at most {MAX_SLEEP} sleep_seconds"
    );
    let wanted: NewRun = call.parse(&form)?;
    let is_too_large = wanted.stock > MAX_STOCK || wanted.sleep_seconds > Some(MAX_SLEEP);
    if is_too_large || !(1..=MAX_REQUESTS).contains(&wanted.requests) {
        return Err(bad_body(&form));
    }
    call.control.begin(wanted).await?;
    Ok(accepted(&json!(call.control.current_run())))
}

async fn hit(call: Call) -> Result<Response, Problem> {
    call.control.note_hit(&call.instance()?);
    Ok(reply::json(&Value::Null))
}

async fn stop_run(call: Call) -> Result<Response, Problem> {
    Ok(accepted(&json!(call.control.stop_run().ok_or_else(no_run)?)))
}

async fn set_guard(call: Call) -> Result<Response, Problem> {
    let guard = call.field("guard", "{\"guard\":\"no-lock\"}")?;
    switch(call, Command::Guard(guard)).await
}

async fn set_fence(call: Call) -> Result<Response, Problem> {
    let is_on = call.field("on", "{\"on\":false}")?;
    switch(call, Command::Fence(is_on)).await
}

/// Makes all running instances carry out the command, and answers with their new state.
async fn switch(call: Call, command: Command) -> Result<Response, Problem> {
    call.control.read_all().await;
    call.control.command_all(command).await?;
    call.control.read_all().await;
    Ok(show(call).await)
}

async fn pause(call: Call) -> Result<Response, Problem> {
    let victim = call.victim().await?;
    victim.command(&Command::Fault(Some((Fault::Pause, None)))).await?;
    let text = format!("{} will stop at its next write under the lock.", victim.name);
    call.control.known.lock().note(&text);
    Ok(accepted(&json!({"instance": victim.name})))
}

async fn kill(call: Call) -> Result<Response, Problem> {
    let victim = call.victim().await?;
    victim.command(&Command::Kill {}).await?;
    Ok(accepted(&json!({"instance": victim.name})))
}

fn accepted(answer: &Value) -> Response {
    reply::json_as("application/json", StatusCode::ACCEPTED, answer)
}
