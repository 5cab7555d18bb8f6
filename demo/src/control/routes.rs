//! The calls.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Query, Request, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post, put};
use flash_sale::http::Extension as _;
use flash_sale::http::problem::{Problem, ProblemType};
use flash_sale::http::{body, reply};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::instances::{Instance, call, pass_on};
use super::problem::NO_RUN;
use super::record::Fault;
use super::{Controls, MAX_REQUESTS, MAX_STOCK, ask_for, mode, panels};
use crate::baselines::LockMode;
use crate::fault;

/// How long this instance waits before it kills itself, so that the answer gets out.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// The longest pause of a fault.
const LONGEST_PAUSE: Duration = Duration::from_mins(10);

/// A requested run.
pub(super) struct NewRun {
    pub(super) stock: u64,
    pub(super) requests: u64,
    pub(super) guard: Option<LockMode>,
    pub(super) fence: Option<bool>,
    pub(super) fault: Option<Fault>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RunBody {
    stock: u64,
    requests: u64,
    guard: Option<String>,
    fence: Option<bool>,
    fault: Option<Fault>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GuardBody {
    guard: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FenceBody {
    on: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InstanceBody {
    instance: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FaultBody {
    fault: Option<Fault>,
    #[serde(default)]
    ms: u64,
}

/// The query of every call.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CallQuery {
    only: Option<String>,
}

type App = State<Arc<Controls>>;

pub(super) fn routes(controls: Arc<Controls>) -> Router {
    Router::new()
        .route("/demo", get(show))
        .route("/demo/run", get(show_run).post(start_run).delete(stop_run))
        .route("/demo/guard", put(set_guard))
        .route("/demo/fence", put(set_fence))
        .route("/demo/pause", post(pause))
        .route("/demo/kill", post(kill))
        .route("/demo/fault", post(set_fault))
        .route("/demo/lanes", get(lanes))
        .route("/demo/beside/run", post(relay).delete(relay))
        .route("/demo/beside/lanes", get(relay))
        .merge(panels::routes())
        .with_state(controls)
}

/// A request from an allowed site.
struct Call {
    controls: Arc<Controls>,
    only_here: bool,
    body: axum::body::Bytes,
}

impl Call {
    async fn check(controls: Arc<Controls>, request: Request) -> Result<Self, Problem> {
        let (head, content) = request.into_parts();
        controls.check_site(&head)?;
        let query: Query<CallQuery> = Query::try_from_uri(&head.uri)
            .map_err(|error| Problem::new(ProblemType::BAD_PARAMETER, error.body_text()))?;
        let body = body::read(content).await?;
        Ok(Self { controls, only_here: query.only.as_deref() == Some("here"), body })
    }

    fn parse<T: DeserializeOwned>(&self, form: &str) -> Result<T, Problem> {
        body::object(&self.body).ok_or_else(|| {
            let detail = format!("the body is a JSON object such as {form}");
            Problem::new(ProblemType::BAD_BODY, detail)
        })
    }

    /// The answer of `GET /demo`.
    fn shown(&self) -> Response {
        let status = self.controls.status();
        if self.only_here {
            return reply::json(&status);
        }
        let mut view = self.controls.view();
        view["instance"] = json!(status.instance);
        view["stale_batches"] = json!(status.stale_batches);
        view["lost_sessions"] = json!(status.lost_sessions);
        reply::json(&view)
    }
}

async fn show(State(controls): App, request: Request) -> Result<Response, Problem> {
    let call = Call::check(controls, request).await?;
    if !call.only_here {
        call.controls.instances.ask().await;
    }
    Ok(call.shown())
}

async fn show_run(State(controls): App, request: Request) -> Result<Response, Problem> {
    let call = Call::check(controls, request).await?;
    let run = call.controls.current_run().ok_or_else(no_run)?;
    Ok(reply::json(&run))
}

fn no_run() -> Problem {
    let detail = "no run was started at this instance: POST /demo/run starts one";
    Problem::new(NO_RUN, detail)
}

async fn start_run(State(controls): App, request: Request) -> Result<Response, Problem> {
    let call = Call::check(controls, request).await?;
    let form = format!(
        "{{\"stock\":300,\"requests\":500,\"guard\":\"etcd\",\"fence\":true,\"fault\":null}}, with a \
         stock of at most {MAX_STOCK}, 1 to {MAX_REQUESTS} requests, and a fault that is null, \
         \"pause\" or \"kill\""
    );
    let wanted: RunBody = call.parse(&form)?;
    let bad =
        || Problem::new(ProblemType::BAD_BODY, format!("the body is a JSON object such as {form}"));
    let RunBody { stock, requests, guard, fence, fault } = wanted;
    if stock > MAX_STOCK || !(1..=MAX_REQUESTS).contains(&requests) {
        return Err(bad());
    }
    let guard = guard.map(|name| mode_of(&call.controls, &name)).transpose()?;
    let run = call.controls.begin(NewRun { stock, requests, guard, fence, fault }).await?;
    Ok(reply::json_as("application/json", StatusCode::ACCEPTED, &run))
}

async fn stop_run(State(controls): App, request: Request) -> Result<Response, Problem> {
    let call = Call::check(controls, request).await?;
    let stop = call.controls.stop_of_run();
    stop.ok_or_else(no_run)?.cancel();
    Ok(reply::json_as("application/json", StatusCode::ACCEPTED, &call.controls.current_run()))
}

async fn set_guard(State(controls): App, request: Request) -> Result<Response, Problem> {
    let call = Call::check(controls, request).await?;
    let GuardBody { guard } = call.parse("{\"guard\":\"no-lock\"}")?;
    let mode = mode_of(&call.controls, &guard)?;
    if call.only_here {
        call.controls.switch.choose(mode);
    } else {
        call.controls.set_guard(mode).await?;
    }
    Ok(call.shown())
}

async fn set_fence(State(controls): App, request: Request) -> Result<Response, Problem> {
    let call = Call::check(controls, request).await?;
    let FenceBody { on } = call.parse("{\"on\":false}")?;
    if call.only_here {
        call.controls.switch.set_fence(on);
    } else {
        call.controls.set_fence(on).await?;
    }
    Ok(call.shown())
}

async fn pause(State(controls): App, request: Request) -> Result<Response, Problem> {
    let call = Call::check(controls, request).await?;
    let victim = victim(&call).await?;
    let ms = call.controls.pause_ms();
    hit(&call, &victim, Fault::Pause, ms).await?;
    let answer = json!({"instance": victim.name, "pause_ms": ms});
    Ok(reply::json_as("application/json", StatusCode::ACCEPTED, &answer))
}

/// Arms a fault at the next write of an instance.
async fn hit(asked: &Call, victim: &Instance, fault: Fault, ms: u64) -> Result<(), Problem> {
    if victim.is_here {
        ask_for(Some(fault), Duration::from_millis(ms));
        return Ok(());
    }
    let body = json!({"fault": fault, "ms": ms});
    call(victim, Method::POST, "/demo/fault?only=here", Some(body)).await?;
    let text = format!("{} will stop at its next write under the lock.", victim.name);
    asked.controls.instances.note("fault", text);
    Ok(())
}

async fn kill(State(controls): App, request: Request) -> Result<Response, Problem> {
    let asked = Call::check(controls, request).await?;
    let victim = if asked.only_here { own(&asked.controls)? } else { victim(&asked).await? };
    if victim.is_here {
        tracing::error!("killing this instance on request of the demo");
        tokio::spawn(async {
            tokio::time::sleep(LAST_WORDS).await;
            fault::kill_now()
        });
    } else {
        call(&victim, Method::POST, "/demo/kill?only=here", Some(json!({}))).await?;
    }
    let answer = json!({"instance": victim.name});
    Ok(reply::json_as("application/json", StatusCode::ACCEPTED, &answer))
}

/// Called by other instances: arms a fault at this one's next write, or disarms it.
async fn set_fault(State(controls): App, request: Request) -> Result<Response, Problem> {
    let call = Call::check(controls, request).await?;
    let FaultBody { fault, ms } = call.parse("{\"fault\":\"pause\",\"ms\":8000}")?;
    let pause = Duration::from_millis(ms).min(LONGEST_PAUSE);
    ask_for(fault, pause);
    Ok(call.shown())
}

async fn lanes(State(controls): App, request: Request) -> Result<Response, Problem> {
    let call = Call::check(controls, request).await?;
    if call.only_here {
        return Ok(reply::json(&call.controls.lane()));
    }
    Ok(reply::json(&call.controls.side().await))
}

/// Passes a call on to the demo beside this one, and its answer back: a page may call only the instance that it
/// comes from.
async fn relay(State(controls): App, request: Request) -> Result<Response, Problem> {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let Call { controls, body, .. } = Call::check(controls, request).await?;
    let beside = controls.beside.as_ref().ok_or_else(|| {
        let detail =
            "this demo has one lock: `demo --lock etcd --beside redis` starts one with two";
        Problem::new(ProblemType::NOT_FOUND, detail)
    })?;
    let (status, body) = pass_on(beside, method, &path.replace("/beside/", "/"), body).await?;
    let kind = if status.is_success() { "application/json" } else { "application/problem+json" };
    Ok((status, [(header::CONTENT_TYPE, kind)], body).into_response())
}

async fn victim(call: &Call) -> Result<Instance, Problem> {
    let InstanceBody { instance } = call.parse("{\"instance\":\"8090\"}")?;
    match instance {
        Some(name) => {
            call.controls.instances.ask().await;
            call.controls.instances.named(&name)
        }
        None => call.controls.victim().await,
    }
}

fn own(controls: &Controls) -> Result<Instance, Problem> {
    controls.instances.named(controls.instances.own())
}

/// A guard that can be chosen in this demo.
fn mode_of(controls: &Controls, name: &str) -> Result<LockMode, Problem> {
    let modes = controls.switch.modes();
    mode(name).filter(|mode| modes.contains(mode)).ok_or_else(|| {
        let names: Vec<_> = modes.into_iter().map(LockMode::name).collect();
        Problem::new(ProblemType::BAD_BODY, format!("a guard of this demo is {}", names.join(", ")))
    })
}
