//! A run for the page to show again: what its buyers and its instances saw, event by event.

use loadtest::Order;
use serde::Serialize;
use serde_json::{Value, json};

use super::record::{Fault, Run};
use super::{Control, Instance};
use crate::writer::tenures::Tenure;

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

/// The tenures of an instance in a run.
pub(super) struct Lane {
    instance: String,
    tenures: Vec<Tenure>,
}

impl Control {
    /// The tenures of all instances since the buyers of `run` came, as of their last answers.
    pub(super) fn lanes(&self, run: &Run) -> Vec<Lane> {
        let lane = |Instance { name: instance, mut tenures, .. }| {
            tenures.retain(|tenure| tenure.from_ms >= run.began_ms);
            Lane { instance, tenures }
        };
        self.instances().into_iter().filter(|one| one.is_up).map(lane).collect()
    }
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
    }
    // one that was killed remembers nothing
    if run.fault == Some(Fault::Kill)
        && let (Some(hit), Some(victim)) = (run.hit_ms, &run.victim)
        && let Some(shop) = shops.iter().position(|shop| shop == victim)
    {
        events.push(Event::Shop(since(hit), "asleep", shop));
    }
    events
}

/// How long after the fault another instance wrote under the lock.
pub(super) fn takeover_ms(run: &Run, lanes: &[Lane]) -> Option<u64> {
    let (hit, victim) = (run.hit_ms?, run.victim.as_ref()?);
    let (own, others): (Vec<_>, Vec<_>) = lanes.iter().partition(|lane| lane.instance == *victim);
    // a paused holder is found to be stopped some time later; one that was killed remembers nothing
    let mut own = own.into_iter().flat_map(|lane| &lane.tenures);
    let is_hit = |tenure: &&Tenure| tenure.from_ms <= hit && tenure.to_ms.is_none_or(|to| to > hit);
    let stopped_at = own.find(is_hit).map_or(hit, |tenure| tenure.from_ms);
    let later = others.into_iter().flat_map(|lane| &lane.tenures);
    let next = later.map(|tenure| tenure.from_ms).filter(|from| *from >= stopped_at);
    let millis = next.reduce(f64::min)? - stopped_at;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a length of time")]
    Some(millis.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::super::run::tests::run_with;
    use super::*;

    fn lane(instance: &str, tenures: &[(f64, f64)]) -> Lane {
        let tenure = |&(from_ms, to)| Tenure {
            token: 1,
            from_ms,
            to_ms: Some(to),
            refused: None,
            stopped: None,
        };
        let tenures = tenures.iter().map(tenure).collect();
        Lane { instance: instance.into(), tenures }
    }

    /// Goal: a takeover is counted from the stop of the victim to the next write of another instance.
    #[test]
    fn takeover_is_from_the_stop_to_the_next_write() {
        let mut run = Run { hit_ms: Some(1000.0), ..run_with(Fault::Pause) };
        let other = || lane("8080", &[(110.0, 120.0), (3200.0, 3300.0), (4000.0, 4001.0)]);
        // paused: its tenure began before it was found to be stopped
        let paused = [other(), lane("8090", &[(105.0, 106.0), (200.0, 8200.0)])];
        assert_eq!(takeover_ms(&run, &paused), Some(3000));
        // killed: it remembers nothing
        assert_eq!(takeover_ms(&run, &[other(), lane("8090", &[])]), Some(2200));
        assert_eq!(takeover_ms(&run, &[lane("8080", &[(110.0, 120.0)])]), None, "nobody wrote");
        run.hit_ms = None;
        assert_eq!(takeover_ms(&run, &paused), None, "no fault");
    }
}
