//! A run that the page can show again: the experiences of its buyers and its instances, event by event.
//!
//! Each of `events` is a list: microseconds since the first request, the kind of event, and more. `shop` is an index into
//! `shops`. For a larger run, `events` has only every n-th buyer, and `sample` has the number of all.
//!
//! | event | then | meaning |
//! |---|---|---|
//! | `asked`, `none`, `failed` | buyer, shop | the buyer ordered; was told sold out; got no other answer |
//! | `sold` | buyer, shop, unit, token | two buyers with one unit: it was sold twice |
//! | `read` | shop, units left | before a write without a shared lock |
//! | `key`, `drop` | shop, token | the instance was about to write first; had written last |
//! | `bounced` | shop, token, fence | the store refused the token |
//! | `asleep`, `awake`, `killed` | shop | it was paused; went on; was killed |

use loadtest::model::Order;
use serde_json::{Value, json};

use super::Instance;
use super::record::{Fault, Run};
use crate::instance::rig::{MOST_LOOKS, Tenure};

/// About the most events.
const MOST: usize = 4000;

/// The run with its orders. `instances` have their last answers.
pub(super) fn replay(run: &Run, instances: &[Instance], orders: &[Order]) -> Value {
    let first = orders.iter().map(|order| order.sent).min().unwrap_or_default();
    let mut events = shop_events(run, instances, first);
    let room = MOST.saturating_sub(events.len()).max(1);
    let step = (2 * orders.len()).div_ceil(room).max(1);
    for (buyer, order) in orders.iter().enumerate().step_by(step) {
        let [sent, ended] = [order.sent, order.ended].map(|at| at - first);
        let (asked, shop) = order.places;
        events.push((sent, json!([sent, "asked", buyer, asked])));
        let event = match order.sold() {
            Some((left, token)) => {
                let holder = instances.iter().find(|one| one.name == run.shops[shop]);
                let token = token.or_else(|| held_at(run, holder?, order.ended));
                let unit = i64::try_from(run.stock).unwrap_or(i64::MAX) - left;
                json!([ended, "sold", buyer, shop, unit, token])
            }
            None if order.is_sold_out() => json!([ended, "none", buyer, shop]),
            None => json!([ended, "failed", buyer, shop]),
        };
        events.push((ended, event));
    }
    events.sort_by_key(|(at, _)| *at);
    json!({
        "version": 1,
        "run": run.id,
        "guard": run.guard,
        "fence": run.fence,
        "fault": run.fault,
        "lease_ms": instances.iter().find_map(|instance| instance.status.as_ref()?.lease_ms),
        "stock": run.stock,
        "buyers": orders.len(),
        "shops": run.shops,
        "took_us": events.last().map(|(at, _)| at),
        "sample": (step > 1).then(|| json!({"of": orders.len()})),
        "events": events.into_iter().map(|(_, event)| event).collect::<Value>(),
    })
}

/// The token under which the instance last began to write before this time, in microseconds since the run began. Without the
/// fence, the store gets no token.
fn held_at(run: &Run, instance: &Instance, at: u64) -> Option<i64> {
    #[expect(clippy::cast_precision_loss, reason = "a time")]
    let span = run.began_ms..=run.began_ms + at as f64 / 1e3;
    let last = instance.tenures.iter().rfind(|tenure| span.contains(&tenure.from_ms));
    last.map(|tenure| tenure.token)
}

/// The effects of the lock, the fence and the fault on the instances, each with its microseconds since the first request, which
/// was sent `first` microseconds after the run began.
fn shop_events(run: &Run, instances: &[Instance], first: u64) -> Vec<(u64, Value)> {
    #[expect(clippy::cast_precision_loss, reason = "a time")]
    let came = run.began_ms * 1e3 + first as f64;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time")]
    let since = |ms: f64| (ms * 1e3 - came).max(0.0) as u64;
    let place = |name: &String| run.shops.iter().position(|shop| shop == name);
    let up = || instances.iter().filter(|instance| instance.is_up);
    let last = up().flat_map(|one| &one.tenures).map(|tenure| tenure.from_ms).fold(0.0, f64::max);
    let mut events = Vec::new();
    let mut note = |at_ms, what: &str, shop: usize, numbers: &[i64]| {
        let at = since(at_ms);
        let mut event = vec![json!(at), json!(what), json!(shop)];
        event.extend(numbers.iter().map(|number| json!(number)));
        events.push((at, Value::Array(event)));
    };
    // an instance forgets the first reads of a larger run
    let is_whole = run.requests <= MOST_LOOKS as u64;
    for instance in up() {
        let Some(shop) = place(&instance.name) else { continue };
        let tenures = instance.tenures.iter().filter(|tenure| tenure.from_ms >= run.began_ms);
        for &Tenure { token, from_ms, to_ms, refused, stopped } in tenures {
            note(from_ms, "key", shop, &[token]);
            if let Some((from, to)) = stopped {
                note(from, "asleep", shop, &[]);
                note(to, "awake", shop, &[]);
            }
            if let Some((at, fence)) = refused {
                note(at, "bounced", shop, &[token, fence]);
            }
            // the last holder keeps the lock
            if let Some(to) = to_ms.filter(|_| from_ms < last) {
                note(to, "drop", shop, &[token]);
            }
        }
        for (at, left) in instance.looks.iter().filter(|(at, _)| is_whole && *at >= run.began_ms) {
            note(*at, "read", shop, &[left.cast_signed()]);
        }
    }
    // a killed instance remembers nothing
    if run.fault == Some(Fault::Kill)
        && let (Some(hit), Some(shop)) = (run.hit_ms, run.victim.as_ref().and_then(place))
    {
        note(hit, "killed", shop, &[]);
    }
    events
}
