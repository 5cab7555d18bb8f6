//! A run for the page to show again: what its buyers and its instances saw, event by event.

use loadtest::Order;
use serde::Serialize;
use serde_json::{Value, json};

use super::record::{Fault, Lane, Run};

/// The most events.
const MOST: usize = 4000;

/// A recorded run.
#[derive(Debug, Serialize)]
pub(super) struct Replay {
    version: u32,
    run: String,
    guard: String,
    fence: bool,
    fault: Option<Fault>,
    stock: u64,
    buyers: usize,
    /// The instances, by their places in the events.
    shops: Vec<String>,
    took_us: u64,
    /// If there are too many events, only some buyers are among them.
    sample: Option<Value>,
    events: Vec<Event>,
}

/// Microseconds since the first request, what happened, and where.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
enum Event {
    /// `asked`, `none` or `failed`: the buyer and the shop.
    Buyer(u64, &'static str, usize, usize),
    /// `sold`: the buyer, the shop, the unit and the token.
    Sold(u64, &'static str, usize, usize, i64, Option<i64>),
    /// `key` or `drop`: the shop and the token.
    Tenure(u64, &'static str, usize, i64),
    /// `bounced`: the shop, the token and the fence.
    Bounced(u64, &'static str, usize, i64, i64),
    /// `asleep` or `awake`: the shop.
    Shop(u64, &'static str, usize),
}

impl Event {
    fn at(&self) -> u64 {
        match self {
            Self::Buyer(at, ..)
            | Self::Sold(at, ..)
            | Self::Tenure(at, ..)
            | Self::Bounced(at, ..)
            | Self::Shop(at, ..) => *at,
        }
    }
}

impl Replay {
    /// This run, with its orders at `shops` and its lanes.
    pub(super) fn new(run: &Run, shops: Vec<String>, orders: &[Order], lanes: &[Lane]) -> Self {
        let first = orders.iter().map(|order| order.sent).min().unwrap_or_default();
        #[expect(clippy::cast_precision_loss, reason = "a time")]
        let came = run.began_ms * 1e3 + first as f64;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time")]
        let since = |ms: f64| (ms * 1e3 - came).max(0.0) as u64;
        let mut events = of_the_shops(run, &shops, lanes, since);
        let room = MOST.saturating_sub(events.len()).max(1);
        let step = (2 * orders.len()).div_ceil(room).max(1);
        for (buyer, order) in orders.iter().enumerate().step_by(step) {
            let (asked, shop) = order.places;
            let ended = order.ended - first;
            events.push(Event::Buyer(order.sent - first, "asked", buyer, asked));
            events.push(match order.sold() {
                Some((left, token)) => {
                    let unit = i64::try_from(run.stock).unwrap_or(i64::MAX) - left;
                    Event::Sold(ended, "sold", buyer, shop, unit, token)
                }
                None if order.is_sold_out() => Event::Buyer(ended, "none", buyer, shop),
                None => Event::Buyer(ended, "failed", buyer, shop),
            });
        }
        events.sort_by_key(Event::at);
        Self {
            version: 1,
            run: run.id.clone(),
            guard: run.guard.clone(),
            fence: run.fence,
            fault: run.fault,
            stock: run.stock,
            buyers: orders.len(),
            shops,
            took_us: events.last().map(Event::at).unwrap_or_default(),
            sample: (step > 1).then(|| json!({"of": orders.len()})),
            events,
        }
    }
}

/// What the lock, the fence and the fault did to the instances, with times since the first request.
fn of_the_shops(
    run: &Run,
    shops: &[String],
    lanes: &[Lane],
    since: impl Fn(f64) -> u64,
) -> Vec<Event> {
    let mut events = Vec::new();
    let tenures = lanes.iter().flat_map(|lane| &lane.tenures);
    let last = tenures.map(|tenure| tenure.from_ms).fold(0.0, f64::max);
    for lane in lanes {
        let Some(shop) = shops.iter().position(|shop| *shop == lane.instance) else { continue };
        for tenure in &lane.tenures {
            let token = tenure.token;
            events.push(Event::Tenure(since(tenure.from_ms), "key", shop, token));
            if let Some((from, to)) = tenure.stopped {
                events.push(Event::Shop(since(from), "asleep", shop));
                events.push(Event::Shop(since(to), "awake", shop));
            }
            if let Some((at, fence)) = tenure.refused {
                events.push(Event::Bounced(since(at), "bounced", shop, token, fence));
            }
            // the last holder keeps the lock
            if let Some(to) = tenure.to_ms.filter(|_| tenure.from_ms < last) {
                events.push(Event::Tenure(since(to), "drop", shop, token));
            }
        }
        // one that was killed remembers nothing
        let is_killed =
            run.fault == Some(Fault::Kill) && run.victim.as_ref() == Some(&lane.instance);
        if let Some(hit) = run.hit_ms.filter(|_| is_killed) {
            events.push(Event::Shop(since(hit), "asleep", shop));
        }
    }
    events
}
