//! One buyer: sends an order, and asks again with the same id until it is answered.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use serde::Deserialize;
use tokio::time::Instant;

use crate::api::{Problem, is_passing};
use crate::connection::{Answer, Connection, ConnectionError};
use crate::history::{Acknowledgement, Told, order_id};
use crate::plan::Plan;

static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The first pause before asking again; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The longest that the first connection may take to open; later ones count as part of an order.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// A buyer with a connection of its own.
#[derive(Debug)]
pub(crate) struct Buyer {
    plan: Arc<Plan>,
    /// Which instance it talks to.
    place: usize,
    connection: Option<Connection>,
    /// Why an attempt settled nothing, and how often.
    pub(crate) unsettled: BTreeMap<String, u64>,
}

/// How one attempt ended.
enum Attempt {
    Settled(Told),
    /// Ask again; `elsewhere` if this instance did not answer.
    Again {
        why: String,
        retry_after: Option<Duration>,
        elsewhere: bool,
    },
}

/// Borrowed where possible: it is read for every order. (No `flatten`: that would copy all of it.)
#[derive(Deserialize)]
struct Reserved<'a> {
    #[serde(borrow)]
    outcome: Cow<'a, str>,
    #[serde(borrow)]
    order: Cow<'a, str>,
    quantity: u64,
    remaining: i64,
    #[serde(borrow)]
    instance: Cow<'a, str>,
    token: Option<i64>,
}

impl Buyer {
    /// Connects to the instance at `place`.
    ///
    /// # Errors
    /// It does not accept the connection.
    pub(crate) async fn connect(plan: Arc<Plan>, place: usize) -> Result<Self, ConnectionError> {
        let connection = Connection::open(&plan.endpoints[place], CONNECT_LIMIT).await?;
        let unsettled = BTreeMap::new();
        Ok(Self { plan, place, connection: Some(connection), unsettled })
    }

    /// Sends order `number` and waits until it is settled, or the retries or the time are used up.
    pub(crate) async fn buy(&mut self, number: usize) -> Told {
        let deadline = Instant::now() + self.plan.timeout;
        let (item, number) = self.plan.place(number);
        let id = order_id(&self.plan.items[item].run, number);
        let mut pause = FIRST_PAUSE;
        for attempt in 0..=self.plan.retries {
            let left = deadline.saturating_duration_since(Instant::now());
            let limit = left.min(self.plan.attempt_limit());
            let (why, retry_after, elsewhere) = match self.attempt(item, &id, limit).await {
                Attempt::Settled(told) => return told,
                Attempt::Again { why, retry_after, elsewhere } => (why, retry_after, elsewhere),
            };
            if elsewhere {
                self.connection = None;
                self.place = (self.place + 1) % self.plan.endpoints.len();
            }
            *self.unsettled.entry(why).or_default() += 1;
            let wait = retry_after.unwrap_or_default().max(pause);
            if attempt == self.plan.retries || Instant::now() + wait >= deadline {
                break;
            }
            tokio::time::sleep(wait).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Told::Unknown
    }

    async fn attempt(&mut self, item: usize, id: &str, limit: Duration) -> Attempt {
        match self.send(item, id, limit).await {
            Ok(answer) if self.plan.probe.is_some() => read_probe(&answer),
            Ok(answer) => read(&answer, id, self.plan.quantity),
            Err(error) => {
                let why = match error {
                    ConnectionError::Connect { .. } => "connection refused",
                    ConnectionError::ConnectTimeout { .. } | ConnectionError::Timeout(_) => {
                        "no answer in time"
                    }
                    ConnectionError::Broken(_) | ConnectionError::Body(_) => "broken connection",
                };
                Attempt::Again { why: why.to_owned(), retry_after: None, elsewhere: true }
            }
        }
    }

    async fn send(
        &mut self,
        item: usize,
        id: &str,
        limit: Duration,
    ) -> Result<Answer, ConnectionError> {
        let endpoint = &self.plan.endpoints[self.place];
        let started = Instant::now();
        // kept again only after a whole answer; one that was closed while it was idle carried
        // nothing, so opening another one is no retry
        let open = self.connection.take().and_then(Connection::if_open);
        let mut connection = match open {
            Some(open) => open,
            None => Connection::open(endpoint, limit).await?,
        };
        let target = self.plan.target(self.place, item);
        let id = HeaderValue::from_str(id).expect("a run's id is made of visible ASCII characters");
        let key = Some((IDEMPOTENCY_KEY.clone(), id));
        let left = limit.saturating_sub(started.elapsed());
        let answer = connection.send(self.plan.method(), target, key, Bytes::new(), left).await?;
        self.connection = Some(connection);
        Ok(answer)
    }
}

/// What an answer that is no order's means.
fn read_probe(answer: &Answer) -> Attempt {
    if answer.status.is_success() {
        return Attempt::Settled(Told::Probed);
    }
    let status = answer.status.as_u16();
    Attempt::Settled(Told::Failed { status, kind: answer.status.as_str().to_owned() })
}

/// What an answer means for the order `id`.
fn read(answer: &Answer, id: &str, quantity: u64) -> Attempt {
    let status = answer.status;
    let failed = |what: &str| {
        let kind = format!("{} {what}", status.as_str()).trim_end().to_owned();
        Attempt::Settled(Told::Failed { status: status.as_u16(), kind })
    };
    if status == StatusCode::OK {
        return match serde_json::from_slice::<Reserved<'_>>(&answer.body) {
            Ok(reserved) if reserved.outcome != "reserved" => failed("with an unknown outcome"),
            Ok(reserved) if reserved.order != id => failed("for another order"),
            Ok(reserved) if reserved.quantity != quantity => failed("with another quantity"),
            Ok(Reserved { quantity, remaining, instance, token, .. }) => {
                let instance = instance.into_owned();
                let answer = Acknowledgement { quantity, remaining, instance, token };
                Attempt::Settled(Told::Acknowledged(answer))
            }
            Err(_) => failed("without a readable order"),
        };
    }
    let problem = Problem::read(&answer.body);
    match problem.kind() {
        "sold-out" if status == StatusCode::CONFLICT => Attempt::Settled(Told::SoldOut),
        kind if is_passing(status) => {
            let why = format!("{} {kind}", status.as_str()).trim_end().to_owned();
            Attempt::Again { why, retry_after: answer.retry_after, elsewhere: false }
        }
        kind => failed(kind),
    }
}
