//! The instances of a demo, as this one knows them.

use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Method, StatusCode, Uri, header};
use flash_sale::http::problem::Problem;
use futures_util::future::join_all;
use reqwest::{Client, RequestBuilder};
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

use super::problem::{INSTANCE_UNREACHABLE, UNKNOWN_INSTANCE};
use super::record::Status;

/// How often the status of the others is read while a page is open.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// How long another instance may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(900);

/// The same for one that asks others first, twice at most.
const RELAY_TIMEOUT: Duration = Duration::from_secs(5);

/// The most notes that wait for a reader.
const MOST_NOTES: usize = 20;

/// Shorter than an instance keeps an idle connection open.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// For all calls to instances.
pub(super) static CLIENT: LazyLock<Client> = LazyLock::new(|| {
    let client = Client::builder().no_proxy().pool_idle_timeout(POOL_IDLE_TIMEOUT);
    client.build().expect("without TLS there is nothing to set up that can fail")
});

/// The instances of a demo.
pub(super) struct Instances {
    own: Arc<str>,
    others: Mutex<Others>,
}

struct Others {
    list: Vec<Instance>,
    asked_at: Option<Instant>,
    is_asking: bool,
    notes: Vec<(&'static str, String)>,
}

/// One instance.
#[derive(Clone)]
pub(super) struct Instance {
    pub(super) name: Arc<str>,
    pub(super) authority: Arc<str>,
    pub(super) is_here: bool,
    pub(super) is_up: bool,
    /// As of its last answer.
    pub(super) status: Option<Status>,
}

#[derive(Serialize)]
pub(super) struct InstanceView {
    instance: Arc<str>,
    url: String,
    up: bool,
    here: bool,
}

impl Instances {
    /// Those at `addresses`, and this one, which listens on `port`. The others are named by their ports until
    /// they answer.
    pub(super) fn new(own: &str, port: u16, addresses: &[Uri]) -> Self {
        let own: Arc<str> = own.into();
        let mut list: Vec<Instance> = addresses.iter().filter_map(instance).collect();
        let own_port = format!(":{port}");
        match list.iter_mut().find(|instance| instance.authority.ends_with(&own_port)) {
            Some(here) => here.is_here = true,
            None => list.insert(
                0,
                Instance {
                    name: Arc::clone(&own),
                    authority: format!("127.0.0.1:{port}").into(),
                    is_here: true,
                    is_up: true,
                    status: None,
                },
            ),
        }
        for here in list.iter_mut().filter(|instance| instance.is_here) {
            here.name = Arc::clone(&own);
            here.is_up = true;
        }
        let others = Others { list, asked_at: None, is_asking: false, notes: Vec::new() };
        Self { own, others: Mutex::new(others) }
    }

    pub(super) fn own(&self) -> &Arc<str> {
        &self.own
    }

    /// All of them, as of their last answers.
    pub(super) fn all(&self) -> Vec<Instance> {
        self.others().list.clone()
    }

    /// Whether one of them has this address.
    pub(super) fn has(&self, authority: &str) -> bool {
        self.others().list.iter().any(|known| known.authority.eq_ignore_ascii_case(authority))
    }

    pub(super) fn named(&self, name: &str) -> Result<Instance, Problem> {
        self.others()
            .list
            .iter()
            .find(|instance| *instance.name == *name)
            .cloned()
            .ok_or_else(|| Problem::new(UNKNOWN_INSTANCE, "the demo has no instance of this name"))
    }

    /// Whether a call of [`ask`](Self::ask) is due; the caller must make it.
    pub(super) fn is_due(&self) -> bool {
        let mut others = self.others();
        let is_due = !others.is_asking
            && others.asked_at.is_none_or(|asked_at| asked_at.elapsed() >= ASK_EVERY);
        if is_due {
            others.is_asking = true;
        }
        is_due
    }

    /// Reads the status of all others.
    pub(super) async fn ask(&self) {
        let list = self.all();
        let others = list.iter().filter(|instance| !instance.is_here);
        let asked = others.map(|instance| async move {
            let answer = call(instance, Method::GET, "/demo?only=here", None).await;
            let status = answer.ok().and_then(|a| serde_json::from_slice::<Status>(&a).ok());
            (Arc::clone(&instance.authority), status)
        });
        let answers = join_all(asked).await;
        let mut others = self.others();
        others.is_asking = false;
        let is_first = others.asked_at.replace(Instant::now()).is_none();
        let Others { list, notes, .. } = &mut *others;
        for (authority, status) in answers {
            let Some(known) = list.iter_mut().find(|known| known.authority == authority) else {
                continue;
            };
            let (was_up, name) = (known.is_up, Arc::clone(&known.name));
            known.is_up = status.is_some();
            match status {
                None if was_up && !is_first => notes.push((
                    "instance-gone",
                    format!("{name} does not answer: it is stopped, or has died."),
                )),
                None => {}
                Some(status) => {
                    if !was_up && !is_first {
                        notes.push(("instance-back", format!("{name} answers again.")));
                    }
                    let before = known.status.as_ref().map(|status| status.stale_batches);
                    if before.is_some_and(|before| status.stale_batches > before) {
                        notes.push(("stale-batch", flash_sale::http::stale_batch(&name)));
                    }
                    known.name = Arc::clone(&status.instance);
                    known.status = Some(status);
                }
            }
        }
        let excess = notes.len().saturating_sub(MOST_NOTES);
        notes.drain(..excess);
    }

    /// Adds a note for the pages of this instance.
    pub(super) fn note(&self, kind: &'static str, text: String) {
        let mut others = self.others();
        if others.notes.len() < MOST_NOTES {
            others.notes.push((kind, text));
        }
    }

    pub(super) fn take_notes(&self) -> Vec<(&'static str, String)> {
        std::mem::take(&mut self.others().notes)
    }

    pub(super) fn views(&self) -> Vec<InstanceView> {
        let view = |instance: &Instance| InstanceView {
            instance: Arc::clone(&instance.name),
            url: format!("http://{}", instance.authority),
            up: instance.is_up,
            here: instance.is_here,
        };
        self.others().list.iter().map(view).collect()
    }

    fn others(&self) -> MutexGuard<'_, Others> {
        // the list is whole even after a panic
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn instance(address: &Uri) -> Option<Instance> {
    let authority = address.authority()?;
    let name = authority.port().map_or_else(|| authority.to_string(), |port| port.to_string());
    Some(Instance {
        name: name.into(),
        authority: authority.as_str().into(),
        is_here: false,
        is_up: true,
        status: None,
    })
}

/// Calls another instance and returns the body of its answer.
///
/// # Errors
/// `instance-unreachable`.
pub(super) async fn call(
    instance: &Instance,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> Result<Bytes, Problem> {
    let body = body.map_or_else(Bytes::new, |body| body.to_string().into());
    let request = request(instance, method, path, body).timeout(ANSWER_TIMEOUT);
    let answer = async { request.send().await?.error_for_status()?.bytes().await };
    answer.await.map_err(|_| unreachable(instance))
}

/// Calls an instance that may have to ask others, and returns its answer, also if that is a problem.
///
/// # Errors
/// `instance-unreachable`.
pub(super) async fn pass_on(
    instance: &Instance,
    method: Method,
    path: &str,
    body: Bytes,
) -> Result<(StatusCode, Bytes), Problem> {
    let request = request(instance, method, path, body).timeout(RELAY_TIMEOUT);
    let answer = async {
        let answer = request.send().await?;
        Ok::<_, reqwest::Error>((answer.status(), answer.bytes().await?))
    };
    answer.await.map_err(|_| unreachable(instance))
}

fn request(instance: &Instance, method: Method, path: &str, body: Bytes) -> RequestBuilder {
    CLIENT
        .request(method, format!("http://{}{path}", instance.authority))
        .header(header::CONTENT_TYPE, "application/json")
        .body(body)
}

fn unreachable(instance: &Instance) -> Problem {
    let detail = format!("instance {} did not carry out the request", instance.name);
    Problem::new(INSTANCE_UNREACHABLE, detail)
}
