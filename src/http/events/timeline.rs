//! The tenures of the last seconds: their times from the watch of the queue, their orders from the ledger.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{QueueSnapshot, Token};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::message::{Clock, Entries};
use crate::inventory::Accepted;

/// How long a tenure is shown after its end.
const WINDOW: Duration = Duration::from_secs(10);

/// The most tenures that are shown.
const MOST: usize = 1000;

/// The most leases whose instances are remembered.
const MOST_LEASES: usize = 256;

/// The tenures of the last seconds.
#[derive(Default)]
pub(super) struct Timeline {
    by_token: BTreeMap<i64, Tenure>,
    instances: HashMap<i64, Arc<str>>,
    /// Some orders of tenures up to this token were not read.
    unread_to: i64,
    /// The tokens whose tenures changed since the last message.
    changed: BTreeSet<i64>,
}

#[derive(Default)]
struct Tenure {
    /// None until the watch has seen it, which may be later than its orders are read.
    times: Option<Times>,
    instance: Option<Arc<str>>,
    orders: u64,
    is_estimate: bool,
}

#[derive(Clone, Copy, PartialEq)]
struct Times {
    lease: i64,
    began_at: Instant,
    ended_at: Option<Instant>,
}

impl Timeline {
    /// Adds what the watch of the queue has seen.
    pub(super) fn add_queue(&mut self, queue_snapshot: &QueueSnapshot) {
        let ended = queue_snapshot.tenures.iter().map(|tenure| {
            let (lease, began_at) = (tenure.lease, tenure.began_at);
            (tenure.revision, Times { lease, began_at, ended_at: Some(tenure.ended_at) })
        });
        let holder = queue_snapshot.queue.first().map(|claim| {
            (claim.revision, Times { lease: claim.lease, began_at: claim.since, ended_at: None })
        });
        for (token, times) in ended.chain(holder) {
            let is_old = times.ended_at.is_some_and(|ended_at| ended_at.elapsed() > WINDOW);
            if is_old && !self.by_token.contains_key(&token) {
                continue;
            }
            let tenure = self.by_token.entry(token).or_default();
            if tenure.times.is_some_and(|known| known == times || known.ended_at.is_some()) {
                continue;
            }
            tenure.times = Some(times);
            self.changed.insert(token);
        }
    }

    /// Adds orders of the ledger, each of which stands for `step`.
    pub(super) fn add_orders(&mut self, orders: &[Accepted], step: u64) {
        for order in orders {
            let Some(token) = order.token.map(Token::revision) else { continue };
            let tenure = self.by_token.entry(token).or_default();
            tenure.orders += step;
            tenure.is_estimate |= step > 1;
            tenure.instance.get_or_insert_with(|| order.instance.as_str().into());
            self.changed.insert(token);
        }
    }

    /// Notes that orders before this one were not read.
    pub(super) fn unread_before(&mut self, order: &Accepted) {
        self.unread_to = order.token.map_or(0, Token::revision);
    }

    /// Connects tenures and leases with the instances that are known by now, and drops the tenures that are too
    /// old to be shown.
    pub(super) fn settle(&mut self) {
        for tenure in self.by_token.values() {
            if let (Some(instance), Some(times)) = (&tenure.instance, tenure.times) {
                self.instances.entry(times.lease).or_insert_with(|| Arc::clone(instance));
            }
        }
        for (token, tenure) in &mut self.by_token {
            if tenure.instance.is_none()
                && let Some(instance) = tenure.times.and_then(|t| self.instances.get(&t.lease))
            {
                tenure.instance = Some(Arc::clone(instance));
                self.changed.insert(*token);
            }
        }
        self.by_token.retain(|_, tenure| {
            let ended_at = tenure.times.and_then(|times| times.ended_at);
            ended_at.is_none_or(|ended_at| ended_at.elapsed() < WINDOW)
        });
        while self.by_token.len() > MOST {
            self.by_token.pop_first();
        }
    }

    /// Notes the instance of a lease.
    pub(super) fn add_lease(&mut self, lease: i64, instance: &str) {
        if self.instances.len() >= MOST_LEASES {
            self.instances.clear();
        }
        self.instances.insert(lease, instance.into());
    }

    pub(super) fn instance_of(&self, lease: i64) -> Option<Arc<str>> {
        self.instances.get(&lease).cloned()
    }

    /// The instances of the known leases.
    pub(super) fn instances(&self) -> impl Iterator<Item = Arc<str>> {
        self.instances.values().cloned()
    }

    pub(super) fn list(&self, which: Entries, clock: &Clock) -> Vec<Value> {
        let is_meant = |token| which == Entries::All || self.changed.contains(token);
        let tenures = self.by_token.iter().filter(|(token, _)| is_meant(*token));
        tenures.filter_map(|(token, tenure)| self.view(*token, tenure, clock)).collect()
    }

    pub(super) fn mark_sent(&mut self) {
        self.changed.clear();
    }

    /// None until its times are known.
    fn view(&self, token: i64, tenure: &Tenure, clock: &Clock) -> Option<Value> {
        let times = tenure.times?;
        Some(json!({
            "token": token,
            "instance": tenure.instance,
            "start_ms": clock.ms(times.began_at),
            "end_ms": times.ended_at.map(|at| clock.ms(at)),
            "orders": tenure.orders,
            "exact": !tenure.is_estimate && token > self.unread_to,
        }))
    }
}
