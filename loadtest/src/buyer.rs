//! One buyer: sends an order, and retries with the same id until it is answered.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use hyper::header::{HeaderName, HeaderValue};
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use rand_xoshiro::SplitMix64;
use tokio::time::Instant;

use crate::answer::{self, Retry};
use crate::checker::{Order, Outcome, order_id, u64_from};
use crate::connection::{Connection, ConnectionError};
use crate::load::{Plan, Shared};
use crate::record::Attempt;

static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The first pause; each further one is twice as long, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The time limit for the first connection; later ones count as part of an order.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// How long a buyer stays away from an instance that did not serve it.
const AWAY_FROM_HOME: Duration = Duration::from_secs(2);

/// The longest time before a client disconnects on purpose.
const LONGEST_STAY: Duration = Duration::from_millis(3);

/// How long it is away before it retries.
const SHORTEST_AWAY: Duration = Duration::from_millis(50);
const LONGEST_AWAY: Duration = Duration::from_millis(500);

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
}

/// How a client disconnects on purpose before the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Departure {
    /// How long it stays after it sent the request.
    stay: Duration,
    /// The time before its retry, if it comes back.
    away: Option<Duration>,
}

impl Departure {
    /// How the client of order `number` disconnects, if it is one of the `share` (0 to 1) that do; half of them never
    /// come back. A function of the seed and the number, so that a run can be repeated.
    fn of(seed: u64, share: f64, number: usize) -> Option<Self> {
        let seed = SplitMix64::seed_from_u64(seed).next_u64() ^ u64_from(number);
        let mut rng = SplitMix64::seed_from_u64(seed);
        if !rng.random_bool(share) {
            return None;
        }
        // half of them disconnect at once
        let stay = LONGEST_STAY.mul_f64(rng.random_range(-1.0..1.0_f64).max(0.0));
        let away = rng.random_range(SHORTEST_AWAY..LONGEST_AWAY);
        Some(Self { stay, away: rng.random_bool(0.5).then_some(away) })
    }
}

/// The pause after so many others.
pub(crate) fn pause(others: u32) -> Duration {
    (FIRST_PAUSE * (1 << others.min(10))).min(LONGEST_PAUSE)
}

impl Buyer {
    /// Connects to the instance at `place`.
    ///
    /// # Errors
    /// It does not accept the connection.
    pub(crate) async fn connect(plan: Arc<Plan>, place: usize) -> Result<Self, ConnectionError> {
        let connection = Connection::open(&plan.endpoints[place], CONNECT_LIMIT).await?;
        Ok(Self { plan, home: place, place, away_until: None, connection: Some(connection) })
    }

    /// Sends order `number` and waits until it is settled, or the retries or the time are used up.
    ///
    /// # Errors
    /// The attempts cannot be recorded any more.
    pub(crate) async fn buy(&mut self, number: usize, shared: &Shared) -> Result<Order> {
        let plan = Arc::clone(&self.plan);
        let mut sent = Instant::now();
        let deadline = sent + plan.args.timeout;
        self.return_home(sent);
        let mut departure = Departure::of(plan.setup.seed, plan.args.abandon, number);
        let (item, number) = plan.place(number);
        let id = order_id(&plan.setup.items[item].run, number);
        let mut order = Order::default();
        let mut pauses = 0;
        for attempt in 0..=plan.args.retries {
            let limit = deadline.saturating_duration_since(sent).min(plan.args.attempt_timeout());
            let to = self.place;
            let sending = self.send(item, &id, limit, departure.take()).await;
            let (outcome, retry) = sending.unwrap_or_else(|error| answer::read_error(&error));
            let (began, ended) = (shared.micros(sent), shared.micros(Instant::now()));
            shared.note(&outcome);
            if let Some(recorder) = &shared.recorder {
                let (order, outcome) = (id.clone(), outcome.clone());
                let quantity = plan.args.quantity;
                let line = Attempt { order, item, quantity, to, sent: began, ended, outcome };
                recorder.send(line).await.context("the run cannot be recorded any more")?;
            }
            order.add(began, ended, outcome);
            let Some(Retry { elsewhere, wait }) = retry else { break };
            if elsewhere {
                self.use_next_instance();
            }
            // a connection that broke says nothing about the next one
            let broke = elsewhere && wait.is_none() && attempt == 0;
            let wait =
                if broke { Duration::ZERO } else { wait.unwrap_or_default().max(pause(pauses)) };
            if attempt == plan.args.retries || Instant::now() + wait >= deadline {
                break;
            }
            if !broke {
                tokio::time::sleep(wait).await;
                pauses += 1;
            }
            sent = Instant::now();
        }
        Ok(order)
    }

    fn use_next_instance(&mut self) {
        self.connection = None;
        self.place = (self.place + 1) % self.plan.endpoints.len();
        self.away_until = (self.place != self.home).then(|| Instant::now() + AWAY_FROM_HOME);
    }

    /// Goes back home in time: a restarted instance must get buyers again.
    fn return_home(&mut self, now: Instant) {
        if self.away_until.is_some_and(|until| until <= now) {
            self.away_until = None;
            self.connection = None;
            self.place = self.home;
        }
    }

    /// Sends an order once, and waits for the answer unless the client disconnects before. Replacing a connection that
    /// closed while idle is no retry.
    async fn send(
        &mut self,
        item: usize,
        id: &str,
        limit: Duration,
        departure: Option<Departure>,
    ) -> Result<(Outcome, Option<Retry>), ConnectionError> {
        let started = Instant::now();
        let endpoint = &self.plan.endpoints[self.place];
        let idle = self.connection.take();
        let mut connection = Connection::reuse_or_open(idle, endpoint, limit).await?;
        let key =
            HeaderValue::from_str(id).expect("a run's id is made of visible ASCII characters");
        let mut request = self.plan.requests[self.place][item].clone();
        request.headers_mut().insert(&IDEMPOTENCY_KEY, key);
        if let Some(Departure { stay, away }) = departure {
            connection.send_and_close(request, stay).await;
            let retry = away.map(|away| Retry { elsewhere: true, wait: Some(away) });
            return Ok((Outcome::went_away(), retry));
        }
        let answer = connection.send(request, limit.saturating_sub(started.elapsed())).await?;
        // only after a whole answer
        self.connection = Some(connection);
        Ok(match self.plan.args.probe_path {
            Some(_) => (answer::read_probe(&answer), None),
            None => answer::read(&answer, id, self.plan.args.quantity),
        })
    }
}
