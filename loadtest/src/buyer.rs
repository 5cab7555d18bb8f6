//! One buyer: sends an order, and retries with the same id until it is answered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use tokio::time::Instant;

use crate::answer::{self, Next};
use crate::checker::{Order, Outcome, order_id};
use crate::connection::{Answer, Connection, ConnectionError};
use crate::plan::Plan;
use crate::record::{Attempt, Recorder, RecorderGone};

static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The pause before the first retry; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The time limit for the first connection; later ones count as part of an order.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// How long a buyer stays away from an instance that did not serve it.
const AWAY_FROM_HOME: Duration = Duration::from_secs(2);

/// A buyer with a connection of its own.
#[derive(Debug)]
pub(crate) struct Buyer {
    plan: Arc<Plan>,
    /// The instance it belongs to.
    pub(crate) home: usize,
    /// The instance it uses now, and until when if that is not its home.
    place: usize,
    away_until: Option<Instant>,
    connection: Option<Connection>,
    /// Attempts without a decision, by reason.
    pub(crate) unsettled: BTreeMap<String, u64>,
}

/// The clock and the recorder of a run.
#[derive(Clone, Debug)]
pub(crate) struct Witness {
    /// When the run started.
    pub(crate) started: Instant,
    /// Records each attempt, with `--history`.
    pub(crate) recorder: Option<Recorder>,
}

impl Witness {
    fn micros(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.started);
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }
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
        let mut leave = self.plan.abandon.leave(number);
        let (item, number) = self.plan.place(number);
        let id = order_id(&self.plan.items[item].run, number);
        let mut order = Order::unsent();
        let mut pause = FIRST_PAUSE;
        for attempt in 0..=self.plan.retries {
            let limit = deadline.saturating_duration_since(sent).min(self.plan.attempt_timeout);
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
                    Err(error) => answer::read_error(&error),
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

    /// Goes back home in time: a restarted instance must get buyers again.
    fn go_home(&mut self, now: Instant) {
        if self.away_until.is_some_and(|until| until <= now) {
            self.away_until = None;
            self.connection = None;
            self.place = self.home;
        }
    }

    async fn attempt(&mut self, item: usize, id: &str, limit: Duration) -> (Outcome, Next) {
        match self.send(item, id, limit).await {
            Ok(answer) if self.plan.probe.is_some() => (answer::read_probe(&answer), Next::Settled),
            Ok(answer) => answer::read(&answer, id, self.plan.quantity),
            Err(error) => answer::read_error(&error),
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
        connection.send_and_leave(self.plan.method(), target, Some(key(id)), stay).await;
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
            connection.send(self.plan.method(), target, Some(key(id)), Bytes::new(), left).await?;
        self.connection = Some(connection);
        Ok(answer)
    }

    /// The open connection, or a new one. The caller stores it again after a whole answer. Replacing a
    /// connection that closed while idle is no retry.
    async fn connection(&mut self, limit: Duration) -> Result<Connection, ConnectionError> {
        match self.connection.take().and_then(Connection::if_open) {
            Some(open) => Ok(open),
            None => Connection::open(&self.plan.endpoints[self.place], limit).await,
        }
    }
}

fn key(id: &str) -> (HeaderName, HeaderValue) {
    let id = HeaderValue::from_str(id).expect("a run's id is made of visible ASCII characters");
    (IDEMPOTENCY_KEY.clone(), id)
}
