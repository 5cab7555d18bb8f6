//! The control of a demo: the one process that serves the page, runs sales, and asks the instances for their status. An instance
//! knows the address of the control, and no other instance.

mod forward;
mod problem;
pub(crate) mod record;
mod replay;
mod routes;
mod run;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::uri::Authority;
use axum::http::{Method, StatusCode};
use clap::Args;
use flash_sale::http::problem::Problem;
use futures_util::future::join_all;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use testkit::cluster::Cluster;
use testkit::probe;
use testkit::signals::Signals;
use tokio::net::TcpListener;
use tokio::time::sleep;

use self::problem::INSTANCE_UNREACHABLE;
use self::record::{Command, Status};
pub use self::record::{Fault, NewRun, Run, State, Verdict};
use self::run::Begun;
use crate::instance::rig::{Tenure, now_ms};

/// The largest run.
const MAX_REQUESTS: u64 = 500_000;
const MAX_STOCK: u64 = 1_000_000_000;
/// The longest pause in seconds: far less than the buyers wait.
const MAX_SLEEP: u64 = 10;

/// How often the control reads the status of the instances.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// How long an instance may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(900);

/// How long an instance may take to carry out a command: long enough for a busy machine.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the start of a sale may take: it waits for the lock.
const START_TIMEOUT: Duration = Duration::from_mins(1);

/// The path at which a run's victim reports that it has reached its fault.
pub(crate) const HIT: &str = "/hit";

const MOST_NOTES: usize = 20;

/// The flags of `control`.
#[derive(Args, Clone, Debug)]
pub struct ControlOptions {
    /// Address to listen on
    #[arg(long, env = "FLASH_SALE_LISTEN", default_value = "127.0.0.1:8070")]
    pub listen: SocketAddr,

    /// Addresses of the instances, separated by commas, each with its own port
    #[arg(long, env = "FLASH_SALE_INSTANCES", value_name = "URL", value_delimiter = ',', required = true, value_parser = address)]
    pub instances: Vec<Authority>,
}

/// Runs the control of instances that others have started, until a signal ends it.
///
/// # Errors
/// It cannot listen on its address.
pub async fn serve(options: ControlOptions) -> io::Result<()> {
    let mut signals = Signals::listen()?;
    let listener = TcpListener::bind(options.listen).await?;
    tracing::info!("the control listens on http://{}", listener.local_addr()?);
    let control = Control::new(options.instances.iter().map(ToString::to_string));
    tokio::select! {
        served = control.serve(listener) => served,
        _ = signals.next() => Ok(()),
    }
}

/// Parses an address of the form `http://HOST:PORT`.
pub fn address(text: &str) -> Result<Authority, &'static str> {
    let authority = text.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
    let authority = authority.and_then(|authority| authority.parse::<Authority>().ok());
    let has_port = |authority: &Authority| authority.port().is_some();
    authority.filter(has_port).ok_or("an address looks like http://127.0.0.1:8080")
}

/// The instances of a sale, and its last run.
pub struct Control {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    instances: Vec<Instance>,
    run: Option<Begun>,
    /// The last judged run, event by event.
    replay: Value,
    /// What happened, for the page: a text, and when, in Unix milliseconds.
    notes: Vec<Value>,
}

#[derive(Clone, Default)]
struct Instance {
    /// The instance's name, or its port until it has answered.
    name: String,
    authority: String,
    is_up: bool,
    /// Its last answer.
    status: Option<Status>,
    tenures: Vec<Tenure>,
    /// The instance's reads without a shared lock: when, and how many units were left.
    looks: Vec<(f64, u64)>,
}

impl Instance {
    /// Calls the instance and returns its answer.
    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<T, Problem> {
        let limit = match (&method, path) {
            (_, "/stock") => START_TIMEOUT,
            (&Method::POST, _) => COMMAND_TIMEOUT,
            _ => ANSWER_TIMEOUT,
        };
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let failed = |sentence: String| Problem::new(INSTANCE_UNREACHABLE, sentence);
        let missed = |_| failed(format!("Instance {} did not carry out the request.", self.name));
        let answer = probe::ask(&self.authority, method, path, body, limit).await;
        let (status, body) = answer.map_err(missed)?;
        if status == StatusCode::OK {
            return serde_json::from_str(&body).map_err(|error| failed(error.to_string()));
        }
        let problem: Value = serde_json::from_str(&body).unwrap_or_default();
        let without_reason = || format!("Instance {} answered {status}.", self.name);
        Err(failed(problem["detail"].as_str().map_or_else(without_reason, str::to_owned)))
    }

    async fn command(&self, command: &Command) -> Result<(), Problem> {
        self.ask(Method::POST, "/demo/here", Some(json!(command))).await
    }
}

impl Control {
    /// The control of a cluster's instances.
    pub fn of(cluster: &Cluster) -> Arc<Self> {
        Self::new(cluster.instances.iter().map(|one| format!("127.0.0.1:{}", one.port)))
    }

    fn new(authorities: impl Iterator<Item = String>) -> Arc<Self> {
        let instance = |authority: String| {
            let name = authority.rsplit(':').next().unwrap_or_default().to_owned();
            Instance { name, authority, is_up: true, ..Instance::default() }
        };
        let instances = authorities.map(instance).collect();
        Arc::new(Self { known: Mutex::new(Known { instances, ..Known::default() }) })
    }

    /// Serves the page and its calls, and asks the instances for their status.
    ///
    /// # Errors
    /// The listener fails.
    pub async fn serve(self: Arc<Self>, listener: TcpListener) -> io::Result<()> {
        let asking = async {
            loop {
                self.read_all().await;
                sleep(ASK_EVERY).await;
            }
        };
        let routes = flash_sale::http::with_defaults(routes::routes(Arc::clone(&self)));
        tokio::select! {
            served = axum::serve(listener, routes) => served,
            never = asking => never,
        }
    }

    fn instances(&self) -> Vec<Instance> {
        self.known.lock().instances.clone()
    }

    fn up(&self) -> Vec<Instance> {
        self.instances().into_iter().filter(|instance| instance.is_up).collect()
    }

    /// All instances; first the instances that are up.
    fn up_first(&self) -> Vec<Instance> {
        let mut all = self.instances();
        all.sort_by_key(|instance| !instance.is_up);
        all
    }

    /// The last status of an instance, preferably of one that is up.
    fn status(&self) -> Option<Status> {
        self.up_first().into_iter().find_map(|instance| instance.status)
    }

    /// The number of batches that the fence refused, at all instances.
    fn stale_batches(&self) -> u64 {
        let statuses = self.instances().into_iter().filter_map(|instance| instance.status);
        statuses.map(|status| status.stale_batches).sum()
    }

    /// Reads the status of all instances, and notes the changes.
    async fn read_all(&self) {
        let all = self.instances();
        let read = all.iter().map(|one| one.ask(Method::GET, "/demo/here", None));
        let read: Vec<Result<(Status, _, _), _>> = join_all(read).await;
        let mut known = self.known.lock();
        for (place, read) in read.into_iter().enumerate() {
            let one = &mut known.instances[place];
            let was_up = std::mem::replace(&mut one.is_up, read.is_ok());
            let Ok((now, tenures, looks)) = read else {
                // before its first answer the instance may still be starting
                if was_up && one.status.is_some() {
                    let text = format!("{} does not answer: it is stopped, or has died.", one.name);
                    known.note(&text);
                }
                continue;
            };
            let (name, stale_batches) = (now.instance.clone(), now.stale_batches);
            (one.name, one.tenures, one.looks) = (name.clone(), tenures, looks);
            let Some(before) = one.status.replace(now) else { continue };
            if !was_up {
                known.note(&format!("{name} answers again."));
            }
            if stale_batches > before.stale_batches {
                known.note(&format!(
                    "The store refused a batch of {name}: its token is older than the fence. {name} had lost the \
                     lock without knowing; nothing was sold twice, and its orders wait for another turn."
                ));
            }
        }
    }

    /// Sends the command to all instances. The instances that are up must carry it out.
    async fn command_all(&self, command: Command) -> Result<(), Problem> {
        let all = self.instances();
        let done = join_all(all.iter().map(|instance| instance.command(&command))).await;
        let mut of_running = all.iter().zip(done).filter(|(instance, _)| instance.is_up);
        of_running.try_for_each(|(_, done)| done)
    }
}

impl Known {
    fn note(&mut self, text: &str) {
        self.notes.push(json!({"at_ms": now_ms(), "text": text}));
        let excess = self.notes.len().saturating_sub(MOST_NOTES);
        self.notes.drain(..excess);
    }
}

fn nobody_answers() -> Problem {
    Problem::new(INSTANCE_UNREACHABLE, "No instance of this sale answers.")
}
