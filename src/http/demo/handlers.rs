//! The calls.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use axum::routing::{get, post, put};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::instances::{Instance, call};
use super::record::Fault;
use super::{Demo, MAX_REQUESTS, MAX_STOCK, ask_for, switch_fence};
use crate::fault;
use crate::http::problem::{Problem, ProblemType};
use crate::http::state::AppState;
use crate::http::{body, params, reply};

/// How long the answer may take to be on its way before this instance kills itself.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// The longest pause that can be asked for.
const LONGEST_PAUSE: Duration = Duration::from_mins(10);

/// What is asked for in a run.
pub(super) struct NewRun {
    pub(super) stock: u64,
    pub(super) requests: u64,
    pub(super) guard: Option<&'static str>,
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

type App = State<Arc<AppState>>;

/// The calls of the demo; without one, each is as if it were not there.
pub(in crate::http) fn routes() -> Router<Arc<AppState>> {
    Router::new()
        .route("/demo", get(show))
        .route("/demo/run", get(show_run).post(start_run).delete(stop_run))
        .route("/demo/guard", put(set_guard))
        .route("/demo/fence", put(set_fence))
        .route("/demo/pause", post(pause))
        .route("/demo/kill", post(kill))
        .route("/demo/fault", post(set_fault))
}

/// A request that may come in: the demo, whether it is for this instance alone, and its body.
struct Call {
    demo: Arc<Demo>,
    only_here: bool,
    body: axum::body::Bytes,
}

impl Call {
    async fn check(app: &AppState, request: Request) -> Result<Self, Problem> {
        let demo = app.demo.as_ref().ok_or_else(|| {
            Problem::new(ProblemType::NotFound, "this instance was started without --demo")
        })?;
        let (head, content) = request.into_parts();
        demo.check_site(&head)?;
        let [only] = params::parse(head.uri.query(), ["only"])?;
        let body = body::read(content).await?;
        Ok(Self { demo: Arc::clone(demo), only_here: only.as_deref() == Some("here"), body })
    }

    fn parse<T: DeserializeOwned>(&self, form: &str) -> Result<T, Problem> {
        body::object(&self.body).ok_or_else(|| {
            let detail = format!("the body is a JSON object such as {form}");
            Problem::new(ProblemType::BadBody, detail)
        })
    }

    /// The demo as `GET /demo` shows it.
    fn shown(&self) -> Response {
        let status = self.demo.status();
        if self.only_here {
            return reply::json(&status);
        }
        let mut view = self.demo.view();
        view["instance"] = json!(status.instance);
        view["stale_batches"] = json!(status.stale_batches);
        view["lost_sessions"] = json!(status.lost_sessions);
        reply::json(&view)
    }
}

async fn show(State(app): App, request: Request) -> Result<Response, Problem> {
    let call = Call::check(&app, request).await?;
    if !call.only_here {
        call.demo.instances.ask().await;
    }
    Ok(call.shown())
}

async fn show_run(State(app): App, request: Request) -> Result<Response, Problem> {
    let call = Call::check(&app, request).await?;
    let run = call.demo.current_run().ok_or_else(no_run)?;
    Ok(reply::json(&run))
}

fn no_run() -> Problem {
    let detail = "no run was started at this instance: POST /demo/run starts one";
    Problem::new(ProblemType::NoRun, detail)
}

async fn start_run(State(app): App, request: Request) -> Result<Response, Problem> {
    let call = Call::check(&app, request).await?;
    let form = format!(
        "{{\"stock\":300,\"requests\":500,\"guard\":\"etcd\",\"fence\":true,\"fault\":null}}, with a \
         stock of at most {MAX_STOCK}, 1 to {MAX_REQUESTS} requests, and a fault that is null, \
         \"pause\" or \"kill\""
    );
    let wanted: RunBody = call.parse(&form)?;
    let bad =
        || Problem::new(ProblemType::BadBody, format!("the body is a JSON object such as {form}"));
    let RunBody { stock, requests, guard, fence, fault } = wanted;
    if stock > MAX_STOCK || !(1..=MAX_REQUESTS).contains(&requests) {
        return Err(bad());
    }
    let guard = guard.map(|name| mode_of(&call.demo, &name)).transpose()?;
    let run = call.demo.begin(NewRun { stock, requests, guard, fence, fault }).await?;
    Ok(reply::json_as("application/json", StatusCode::ACCEPTED, &run))
}

async fn stop_run(State(app): App, request: Request) -> Result<Response, Problem> {
    let call = Call::check(&app, request).await?;
    let stop = call.demo.stop_of_run();
    stop.ok_or_else(no_run)?.cancel();
    Ok(reply::json_as("application/json", StatusCode::ACCEPTED, &call.demo.current_run()))
}

async fn set_guard(State(app): App, request: Request) -> Result<Response, Problem> {
    let call = Call::check(&app, request).await?;
    let GuardBody { guard } = call.parse("{\"guard\":\"none\"}")?;
    let mode = mode_of(&call.demo, &guard)?;
    if call.only_here {
        call.demo.sale.choose_guard(mode);
    } else {
        call.demo.set_guard(mode).await?;
    }
    Ok(call.shown())
}

async fn set_fence(State(app): App, request: Request) -> Result<Response, Problem> {
    let call = Call::check(&app, request).await?;
    let FenceBody { on } = call.parse("{\"on\":false}")?;
    if call.only_here {
        switch_fence(on);
    } else {
        call.demo.set_fence(on).await?;
    }
    Ok(call.shown())
}

async fn pause(State(app): App, request: Request) -> Result<Response, Problem> {
    let call = Call::check(&app, request).await?;
    let victim = victim(&call).await?;
    let ms = call.demo.pause_ms();
    hit(&call, &victim, Fault::Pause, ms).await?;
    let answer = json!({"instance": victim.name, "pause_ms": ms});
    Ok(reply::json_as("application/json", StatusCode::ACCEPTED, &answer))
}

/// Asks an instance for a fault at its next write, this one too.
async fn hit(asked: &Call, victim: &Instance, fault: Fault, ms: u64) -> Result<(), Problem> {
    if victim.is_here {
        ask_for(Some(fault), Duration::from_millis(ms));
        return Ok(());
    }
    let body = json!({"fault": fault, "ms": ms});
    call(victim, Method::POST, "/demo/fault?only=here", Some(body)).await?;
    let text =
        format!("{} is to stop the next time that it holds the lock and writes.", victim.name);
    asked.demo.instances.note("fault", text);
    Ok(())
}

async fn kill(State(app): App, request: Request) -> Result<Response, Problem> {
    let asked = Call::check(&app, request).await?;
    let victim = if asked.only_here { own(&asked.demo)? } else { victim(&asked).await? };
    if victim.is_here {
        tracing::error!("killing this instance, as the demo was told");
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

/// For the other instances: a fault at the next write of this one, or none any more.
async fn set_fault(State(app): App, request: Request) -> Result<Response, Problem> {
    let call = Call::check(&app, request).await?;
    let FaultBody { fault, ms } = call.parse("{\"fault\":\"pause\",\"ms\":8000}")?;
    let pause = Duration::from_millis(ms).min(LONGEST_PAUSE);
    ask_for(fault, pause);
    Ok(call.shown())
}

async fn victim(call: &Call) -> Result<Instance, Problem> {
    let InstanceBody { instance } = call.parse("{\"instance\":\"8090\"}")?;
    match instance {
        Some(name) => {
            call.demo.instances.ask().await;
            call.demo.instances.named(&name)
        }
        None => call.demo.victim().await,
    }
}

fn own(demo: &Demo) -> Result<Instance, Problem> {
    demo.instances.named(demo.instances.own())
}

/// A guard that this demo can have.
fn mode_of(demo: &Demo, name: &str) -> Result<&'static str, Problem> {
    let names = demo.sale.guard_choices();
    names.iter().find(|choice| **choice == name).copied().ok_or_else(|| {
        Problem::new(ProblemType::BadBody, format!("a guard of this demo is {}", names.join(", ")))
    })
}
