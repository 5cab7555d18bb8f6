//! One buyer: sends an order, and retries with the same id until it is answered. The buyer's later requests for that order
//! follow the same rule.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::Request;
use hyper::body::Bytes;
use rand::RngExt as _;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::answer::{self, Retry};
use crate::checker::{Event, FinalOutcome, Order, Outcome};
use crate::cli::Args;
use crate::conduct::{Step, choices};
use crate::connection::{Connection, ConnectionError};
use crate::load::Run;
use crate::record::{Attempt, Line};

/// The first pause; each further one is twice as long, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long a buyer avoids an instance that did not serve it.
const AWAY_FROM_HOME: Duration = Duration::from_secs(2);

/// The longest time that a client waits before it disconnects on purpose.
const LONGEST_STAY: Duration = Duration::from_millis(3);

/// The shortest time that such a client is away before it retries.
const SHORTEST_AWAY: Duration = Duration::from_millis(50);
const LONGEST_AWAY: Duration = Duration::from_millis(500);

/// A buyer with a connection of its own.
#[derive(Debug)]
pub(crate) struct Buyer {
    run: Arc<Run>,
    /// The instance that the buyer belongs to.
    home: usize,
    /// The instance that the buyer uses now, and until when if that is not its home.
    place: usize,
    away_until: Option<Instant>,
    connection: Option<Connection>,
}

/// How a client disconnects on purpose before the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Departure {
    /// How long the client stays after it has sent the request.
    stay: Duration,
    /// How long it is away before it retries; `None` if it never comes back.
    away: Option<Duration>,
}

impl Departure {
    /// How the client of order `number` disconnects; `None` if it stays. A `share` (0 to 1) of the clients disconnect, and half of
    /// these never come back. The same seed and number give the same result, so that a run can be repeated.
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

/// The pause after this many earlier pauses.
pub(crate) fn pause(others: u32) -> Duration {
    (FIRST_PAUSE * (1 << others.min(10))).min(LONGEST_PAUSE)
}

impl Buyer {
    pub(crate) fn new(run: Arc<Run>, home: usize, connection: Option<Connection>) -> Self {
        Self { run, home, place: home, away_until: None, connection }
    }

    /// Takes orders until none is left, or the buyer gives up. Returns them with their numbers. While a buyer waits to pay
    /// late, others order.
    pub(crate) async fn purchase(mut self) -> Vec<(usize, Order)> {
        let mut orders = Vec::new();
        let mut later = JoinSet::new();
        let mut unanswered: u32 = 0;
        let run = Arc::clone(&self.run);
        while let Some(Some(number)) = run.live.stop.run_until_cancelled(run.next(unanswered)).await
        {
            let mut order = Order::default();
            self.ask(number, None, 0, &mut order).await;
            run.live.count(run.setup.plan.rate, number, &order);
            let answered = order.is_settled() || order.abandoned;
            unanswered = if answered { 0 } else { unanswered.saturating_add(1) };
            match self.steps(number, &order) {
                steps if steps.iter().any(Step::is_aside) => {
                    // over a connection of its own, to the instance that answered
                    let mut buyer = Self::new(Arc::clone(&run), order.places.1, None);
                    later.spawn(async move {
                        buyer.settle(number, &mut order, &steps).await;
                        (number, order)
                    });
                }
                steps => {
                    self.settle(number, &mut order, &steps).await;
                    orders.push((number, order));
                }
            }
        }
        orders.extend(later.join_all().await);
        orders
    }

    /// The buyer's requests for the order after its answer.
    fn steps(&self, number: usize, order: &Order) -> Vec<Step> {
        let Run { args, setup, .. } = &*self.run;
        let hold = setup.before.hold_seconds.map(Duration::from_secs);
        if order.answer().is_none() {
            // units may come back, and then an attempt without an answer may still take them
            let can_gain = hold.is_some() || setup.plan.conduct.returns > 0.0;
            let may_arrive = can_gain && order.is_refused() && order.in_doubt;
            let cancel = Step { wait: Duration::ZERO, event: Event::Cancelled };
            return may_arrive.then_some(cancel).into_iter().collect();
        }
        // without a ledger the service knows no order ids, and probes are no orders
        let (plan, has_ids) =
            (&setup.plan, !setup.plan.without_ledger && args.probe_path.is_none());
        let steps = hold.map(|hold| plan.conduct.steps(plan.seed, number, hold));
        let mut steps = steps.unwrap_or_default();
        if has_ids {
            plan.conduct.take_back(plan.seed, number, hold.is_some(), &mut steps);
            plan.conduct.ask_again(plan.seed, number, &mut steps);
        }
        steps
    }

    /// Makes these requests for order `number`, in order, until one is not answered.
    async fn settle(&mut self, number: usize, order: &mut Order, steps: &[Step]) {
        for (salt, Step { wait, event }) in (2..).zip(steps) {
            if self.run.live.stop.run_until_cancelled(sleep(*wait)).await.is_none() {
                break;
            }
            if *event == Event::Reserved {
                self.use_next_instance();
            }
            let asked = order.change(*event);
            self.ask(number, Some(*event), salt, asked).await;
            if !asked.is_settled() {
                break;
            }
        }
    }

    /// Sends order `number`, or a change of it, until it is settled, or retries or time are used up. Adds each attempt to
    /// `asked`. `salt` tells the random choices of an order's requests apart.
    async fn ask(&mut self, number: usize, change: Option<Event>, salt: u64, asked: &mut Order) {
        let run = Arc::clone(&self.run);
        let Args { plan, timeout, retries, .. } = &run.args;
        let mut sent = Instant::now();
        let deadline = sent + *timeout;
        let patient_until =
            run.args.patience.map_or(deadline, |patience| deadline.min(sent + patience));
        self.return_to_home_instance(sent);
        let seed = plan.seed.wrapping_add(salt);
        let mut departure = Departure::of(seed, plan.abandon, number);
        let id = run.setup.id(number);
        let event = change.unwrap_or_default();
        let (mut pauses, mut attempt) = (0, 0);
        loop {
            let limit = deadline.saturating_duration_since(sent).min(run.args.attempt_timeout());
            let to = self.place;
            let request = run.request(to, number, &id, change);
            let sending = self.send(request, &id, event, limit, departure.take());
            let (outcome, retry) = match run.cut.run_until_cancelled(sending).await {
                Some(sent) => sent.unwrap_or_else(|error| answer::read_error(&error)),
                None => (Outcome::went_away(), None),
            };
            let (began, ended) = (run.micros(sent), run.micros(Instant::now()));
            if let Some(recorder) = &run.recorder {
                let (order, outcome, quantity) = (id.clone(), outcome.clone(), plan.quantity);
                let attempt = Attempt { order, change, quantity, to, sent: began, ended, outcome };
                recorder.write(&Line::Attempt(attempt));
            }
            asked.add(to, began, ended, outcome);
            let Some(Retry { elsewhere, wait }) = retry else { break };
            if elsewhere {
                self.use_next_instance();
            }
            // a broken connection says nothing about the next one
            let broke = elsewhere && wait.is_none() && attempt == 0;
            let wait =
                if broke { Duration::ZERO } else { wait.unwrap_or_default().max(pause(pauses)) };
            // waiting for held units or for the end of a pause is no retry
            let is_held = asked.outcome == FinalOutcome::HeldOut;
            let until = if is_held { patient_until } else { deadline };
            if !is_held && attempt == *retries || Instant::now() + wait >= until {
                break;
            }
            attempt += u32::from(!is_held);
            if !broke {
                run.cut.run_until_cancelled(sleep(wait)).await;
                pauses += 1;
            }
            sent = Instant::now();
        }
    }

    fn use_next_instance(&mut self) {
        self.connection = None;
        self.place = (self.place + 1) % self.run.endpoints.len();
        self.away_until = (self.place != self.home).then(|| Instant::now() + AWAY_FROM_HOME);
    }

    /// Returns to the home instance after a while: an instance that was restarted must get buyers again.
    fn return_to_home_instance(&mut self, now: Instant) {
        if self.away_until.is_some_and(|until| until <= now) {
            self.away_until = None;
            self.connection = None;
            self.place = self.home;
        }
    }

    /// Sends an order once, and waits for the answer unless the client disconnects before. Replacing a connection that closed
    /// while idle does not count as a retry.
    async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
        id: &str,
        event: Event,
        limit: Duration,
        departure: Option<Departure>,
    ) -> Result<(Outcome, Option<Retry>), ConnectionError> {
        let started = Instant::now();
        let endpoint = &self.run.endpoints[self.place];
        let idle = self.connection.take();
        let mut connection = Connection::reuse_or_open(idle, endpoint, limit).await?;
        if let Some(Departure { stay, away }) = departure {
            connection.send_and_close(request, stay).await;
            let retry = away.map(|away| Retry { elsewhere: true, wait: Some(away) });
            return Ok((Outcome::went_away(), retry));
        }
        let answer = connection.send(request, limit.saturating_sub(started.elapsed())).await?;
        // keep the connection only after a whole answer
        self.connection = Some(connection);
        Ok(match self.run.args.probe_path {
            Some(_) => (answer::read_probe(&answer), None),
            None => answer::read(&answer, id, self.run.args.plan.quantity, event),
        })
    }
}
