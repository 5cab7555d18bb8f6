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
use crate::checker::{Acknowledgement, Order, Other, Outcome, order_id};
use crate::connection::{Answer, Connection, ConnectionError};
use crate::plan::Plan;
use crate::record::{Attempt, Recorder, RecorderGone};

static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The first pause before asking again; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The longest that the first connection may take to open; later ones count as part of an order.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// How long a buyer stays elsewhere before it tries the instance again that did not serve it.
const AWAY_FROM_HOME: Duration = Duration::from_secs(2);

/// A buyer with a connection of its own.
#[derive(Debug)]
pub(crate) struct Buyer {
    plan: Arc<Plan>,
    /// Which instance it talks to by right.
    home: usize,
    /// Which instance it talks to now, and until when if that is not its home.
    place: usize,
    away_until: Option<Instant>,
    connection: Option<Connection>,
    /// Why an attempt settled nothing, and how often.
    pub(crate) unsettled: BTreeMap<String, u64>,
}

/// What is known of a run while it goes on: its clock, and who takes down the attempts.
#[derive(Clone, Debug)]
pub(crate) struct Witness {
    /// When the run started.
    pub(crate) started: Instant,
    /// Takes down each attempt, if somebody wants to know.
    pub(crate) recorder: Option<Recorder>,
}

impl Witness {
    fn micros(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.started);
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }
}

/// What to do after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Settled,
    /// Ask again, at another instance if `elsewhere`, after `wait` at least; without it, as the
    /// pauses between attempts have it.
    Again {
        elsewhere: bool,
        wait: Option<Duration>,
    },
    /// The client is gone.
    Never,
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
    position: Option<u64>,
}

impl Buyer {
    /// Connects to the instance at `place`.
    ///
    /// # Errors
    /// It does not accept the connection.
    pub(crate) async fn connect(plan: Arc<Plan>, place: usize) -> Result<Self, ConnectionError> {
        let connection = Connection::open(&plan.endpoints[place], CONNECT_LIMIT).await?;
        Ok(Self {
            plan,
            home: place,
            place,
            away_until: None,
            connection: Some(connection),
            unsettled: BTreeMap::new(),
        })
    }

    /// Sends order `number` and waits until it is settled, or the retries or the time are used up.
    ///
    /// # Errors
    /// The attempts cannot be recorded any more.
    pub(crate) async fn buy(
        &mut self,
        number: usize,
        witness: &Witness,
    ) -> Result<Order, RecorderGone> {
        let mut sent = Instant::now();
        let deadline = sent + self.plan.timeout;
        self.go_home(sent);
        let mut leave = self.plan.chance.leave(number);
        let (item, number) = self.plan.place(number);
        let id = order_id(&self.plan.items[item].run, number);
        let mut order = Order::unsent();
        let mut pause = FIRST_PAUSE;
        for attempt in 0..=self.plan.retries {
            let limit = deadline.saturating_duration_since(sent).min(self.plan.attempt_limit());
            let place = self.place;
            let (outcome, next) = match leave.take() {
                Some(leave) => match self.leave(item, &id, limit, leave.after).await {
                    Ok(()) => (
                        Outcome::WentAway,
                        leave.back.map_or(Next::Never, |back| Next::Again {
                            elsewhere: true,
                            wait: Some(back),
                        }),
                    ),
                    Err(error) => read_error(&error),
                },
                None => self.attempt(item, &id, limit).await,
            };
            if let Some(why) = outcome.unsettled() {
                *self.unsettled.entry(why).or_default() += 1;
            }
            let (began, ended) = (witness.micros(sent), witness.micros(Instant::now()));
            if let Some(recorder) = &witness.recorder {
                let outcome = outcome.clone();
                recorder
                    .attempt(Attempt { item, number, place, sent: began, ended, outcome })
                    .await?;
            }
            order.add(began, ended, outcome);
            let Next::Again { elsewhere, wait } = next else { break };
            if elsewhere {
                self.go_elsewhere();
            }
            // a connection that broke says nothing about the next one
            let broke = elsewhere && wait.is_none() && attempt == 0;
            let wait = if broke { Duration::ZERO } else { wait.unwrap_or_default().max(pause) };
            if attempt == self.plan.retries || Instant::now() + wait >= deadline {
                break;
            }
            if !broke {
                tokio::time::sleep(wait).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            sent = Instant::now();
        }
        Ok(order)
    }

    fn go_elsewhere(&mut self) {
        self.connection = None;
        self.place = (self.place + 1) % self.plan.endpoints.len();
        self.away_until = (self.place != self.home).then(|| Instant::now() + AWAY_FROM_HOME);
    }

    /// An instance that was started again must not be left without buyers.
    fn go_home(&mut self, now: Instant) {
        if self.away_until.is_some_and(|until| until <= now) {
            self.away_until = None;
            self.connection = None;
            self.place = self.home;
        }
    }

    async fn attempt(&mut self, item: usize, id: &str, limit: Duration) -> (Outcome, Next) {
        match self.send(item, id, limit).await {
            Ok(answer) if self.plan.probe.is_some() => (read_probe(&answer), Next::Settled),
            Ok(answer) => read(&answer, id, self.plan.quantity),
            Err(error) => read_error(&error),
        }
    }

    /// Sends the order and goes away.
    async fn leave(
        &mut self,
        item: usize,
        id: &str,
        limit: Duration,
        stay: Duration,
    ) -> Result<(), ConnectionError> {
        let connection = self.connection(limit).await?;
        let target = self.plan.target(self.place, item);
        connection.send_and_leave(self.plan.method(), target, key(id), stay).await;
        Ok(())
    }

    async fn send(
        &mut self,
        item: usize,
        id: &str,
        limit: Duration,
    ) -> Result<Answer, ConnectionError> {
        let started = Instant::now();
        let mut connection = self.connection(limit).await?;
        let target = self.plan.target(self.place, item);
        let left = limit.saturating_sub(started.elapsed());
        let answer =
            connection.send(self.plan.method(), target, key(id), Bytes::new(), left).await?;
        self.connection = Some(connection);
        Ok(answer)
    }

    /// The open connection, or another one. It is kept again only after a whole answer; one that was
    /// closed while it was idle carried nothing, so opening another one is no retry.
    async fn connection(&mut self, limit: Duration) -> Result<Connection, ConnectionError> {
        match self.connection.take().and_then(Connection::if_open) {
            Some(open) => Ok(open),
            None => Connection::open(&self.plan.endpoints[self.place], limit).await,
        }
    }
}

fn key(id: &str) -> Option<(HeaderName, HeaderValue)> {
    let id = HeaderValue::from_str(id).expect("a run's id is made of visible ASCII characters");
    Some((IDEMPOTENCY_KEY.clone(), id))
}

/// What it means that there is no answer.
fn read_error(error: &ConnectionError) -> (Outcome, Next) {
    let (why, nothing_taken) = match error {
        ConnectionError::Connect { .. } => ("connection refused", true),
        ConnectionError::ConnectTimeout { .. } => ("no connection in time", true),
        ConnectionError::Timeout(_) => ("no answer in time", false),
        ConnectionError::Broken(_) | ConnectionError::Body(_) => ("broken connection", false),
    };
    let other = Other { status: None, why: why.into(), nothing_taken, is_final: false };
    (Outcome::Other(other), Next::Again { elsewhere: true, wait: None })
}

/// What an answer that is no order's means.
fn read_probe(answer: &Answer) -> Outcome {
    if answer.status.is_success() {
        return Outcome::Probed;
    }
    let status = Some(answer.status.as_u16());
    Outcome::Other(Other { status, why: "".into(), nothing_taken: false, is_final: true })
}

/// What an answer means for the order `id`.
fn read(answer: &Answer, id: &str, quantity: u64) -> (Outcome, Next) {
    let status = answer.status;
    let other = |why: Cow<'static, str>, nothing_taken, is_final| {
        Outcome::Other(Other { status: Some(status.as_u16()), why, nothing_taken, is_final })
    };
    if status == StatusCode::OK {
        let odd = |what: &'static str| other(what.into(), false, true);
        let outcome = match serde_json::from_slice::<Reserved<'_>>(&answer.body) {
            Ok(reserved) if reserved.outcome != "reserved" => odd("with an unknown outcome"),
            Ok(reserved) if reserved.order != id => odd("for another order"),
            Ok(reserved) if reserved.quantity != quantity => odd("with another quantity"),
            Ok(Reserved { quantity, remaining, instance, token, position, .. }) => {
                let instance = instance.into_owned();
                Outcome::Acknowledged(Acknowledgement {
                    quantity,
                    remaining,
                    instance,
                    token,
                    position,
                })
            }
            Err(_) => odd("without a readable order"),
        };
        return (outcome, Next::Settled);
    }
    let problem = Problem::read(&answer.body);
    let kind = problem.kind();
    if kind == "sold-out" && status == StatusCode::CONFLICT {
        return (Outcome::SoldOut, Next::Settled);
    }
    // a problem of the service says whether anything was taken; a gateway's answer does not
    let nothing_taken =
        !kind.is_empty() && (status.is_client_error() || status == StatusCode::SERVICE_UNAVAILABLE);
    // the service names a time after which it is worth asking again, and none if it never is
    let again = is_passing(status) && (kind.is_empty() || answer.retry_after.is_some());
    let outcome = other(kind.to_owned().into(), nothing_taken, !again);
    if again {
        // a full queue is left alone; another instance may be able to do what this one cannot
        let elsewhere = status != StatusCode::TOO_MANY_REQUESTS;
        let wait = Some(answer.retry_after.unwrap_or_default());
        (outcome, Next::Again { elsewhere, wait })
    } else {
        (outcome, Next::Settled)
    }
}
