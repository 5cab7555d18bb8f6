//! One buyer: sends an order, and retries with the same id until it is answered. The same for what the buyer does with it
//! then.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use http_body_util::Full;
use hyper::Request;
use hyper::body::Bytes;
use rand::RngExt as _;
use tokio::time::{Instant, sleep};

use crate::answer::{self, Retry};
use crate::checker::{Event, Order, Outcome, order_id};
use crate::conduct::{Step, choices};
use crate::connection::{Connection, ConnectionError};
use crate::load::{Plan, Shared};
use crate::record::Attempt;

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
        let mut rng = choices(seed, number);
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

    /// Another one at the same place, with a connection of its own.
    pub(crate) fn another(&self) -> Self {
        let plan = Arc::clone(&self.plan);
        Self { plan, home: self.home, place: self.home, away_until: None, connection: None }
    }

    /// Sends order `number` and waits until it is settled, or the retries or the time are used up.
    ///
    /// # Errors
    /// The attempts cannot be recorded any more.
    pub(crate) async fn buy(&mut self, number: usize, shared: &Shared) -> Result<Order> {
        let mut order = Order::default();
        let departure = Departure::of(self.plan.setup.seed, self.plan.args.abandon, number);
        self.ask(number, None, departure, &mut order, shared).await?;
        Ok(order)
    }

    /// Takes these steps with the accepted order `number`, as long as each is answered.
    ///
    /// # Errors
    /// As [`Self::buy`].
    pub(crate) async fn settle(
        &mut self,
        number: usize,
        order: &mut Order,
        steps: &[Step],
        shared: &Shared,
    ) -> Result<()> {
        for (place, Step { wait, event }) in (2..).zip(steps) {
            if shared.stop.run_until_cancelled(sleep(*wait)).await.is_none() {
                break;
            }
            let seed = self.plan.setup.seed.wrapping_add(place);
            let departure = Departure::of(seed, self.plan.args.abandon, number);
            let asked = order.change(*event);
            self.ask(number, Some(*event), departure, asked, shared).await?;
            if !asked.is_settled() {
                break;
            }
        }
        Ok(())
    }

    /// Sends order `number`, or asks for a change of it, and adds each attempt to `asked`.
    async fn ask(
        &mut self,
        number: usize,
        change: Option<Event>,
        mut departure: Option<Departure>,
        asked: &mut Order,
        shared: &Shared,
    ) -> Result<()> {
        let plan = Arc::clone(&self.plan);
        let mut sent = Instant::now();
        let deadline = sent + plan.args.timeout;
        self.return_home(sent);
        let (item, number) = plan.place(number);
        let id = order_id(&plan.setup.items[item].run, number);
        let event = change.unwrap_or_default();
        let mut pauses = 0;
        for attempt in 0..=plan.args.retries {
            let limit = deadline.saturating_duration_since(sent).min(plan.args.attempt_timeout());
            let to = self.place;
            let request = plan.request(to, (item, number), &id, change);
            let sending = self.send(request, &id, event, limit, departure.take());
            let (outcome, retry) = match shared.cut.run_until_cancelled(sending).await {
                Some(sent) => sent.unwrap_or_else(|error| answer::read_error(&error)),
                None => (Outcome::went_away(), None),
            };
            let (began, ended) = (shared.micros(sent), shared.micros(Instant::now()));
            shared.note(&outcome);
            if let Some(recorder) = &shared.recorder {
                let (order, outcome) = (id.clone(), outcome.clone());
                let quantity = plan.args.quantity;
                let line =
                    Attempt { order, item, change, quantity, to, sent: began, ended, outcome };
                recorder.send(line).await.context("the run cannot be recorded any more")?;
            }
            asked.add(to, began, ended, outcome);
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
                shared.cut.run_until_cancelled(sleep(wait)).await;
                pauses += 1;
            }
            sent = Instant::now();
        }
        Ok(())
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
        request: Request<Full<Bytes>>,
        id: &str,
        event: Event,
        limit: Duration,
        departure: Option<Departure>,
    ) -> Result<(Outcome, Option<Retry>), ConnectionError> {
        let started = Instant::now();
        let endpoint = &self.plan.endpoints[self.place];
        let idle = self.connection.take();
        let mut connection = Connection::reuse_or_open(idle, endpoint, limit).await?;
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
            None => answer::read(&answer, id, self.plan.args.quantity, event),
        })
    }
}
