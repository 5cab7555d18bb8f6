//! The tenures of the last seconds: their times from the watch of the queue, their orders from the ledger.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::QueueSnapshot;
use tokio::time::Instant;

use super::clock::Clock;
use super::view::TenureView;
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
    unsure_to: i64,
    /// The tokens whose tenures changed since the last message.
    changed: BTreeSet<i64>,
}

#[derive(Default)]
struct Tenure {
    /// The watch may be later than the ledger.
    seen: Option<Seen>,
    instance: Option<Arc<str>>,
    orders: u64,
    is_estimate: bool,
}

#[derive(Clone, Copy, PartialEq)]
struct Seen {
    lease: i64,
    began_at: Instant,
    ended_at: Option<Instant>,
}

impl Timeline {
    /// Adds what the watch of the queue has seen.
    pub(super) fn see(&mut self, queue_snapshot: &QueueSnapshot) {
        let ended = queue_snapshot.tenures.iter().map(|tenure| {
            let (lease, began_at) = (tenure.lease, tenure.began_at);
            (tenure.revision, Seen { lease, began_at, ended_at: Some(tenure.ended_at) })
        });
        let holder = queue_snapshot.queue.first().map(|claim| {
            (claim.revision, Seen { lease: claim.lease, began_at: claim.since, ended_at: None })
        });
        let oldest = Instant::now().checked_sub(WINDOW);
        for (token, seen) in ended.chain(holder) {
            let is_old = seen.ended_at.zip(oldest).is_some_and(|(ended, oldest)| ended < oldest);
            if is_old && !self.by_token.contains_key(&token) {
                continue;
            }
            let tenure = self.by_token.entry(token).or_default();
            if tenure.seen.is_some_and(|known| known == seen || known.ended_at.is_some()) {
                continue;
            }
            tenure.seen = Some(seen);
            self.changed.insert(token);
        }
    }

    /// Adds orders of the ledger, each of which stands for `step`.
    pub(super) fn sold(&mut self, orders: &[Accepted], step: u64) {
        for order in orders {
            let Some(token) = order.token.map(fenced_lock::Token::revision) else { continue };
            let tenure = self.by_token.entry(token).or_default();
            tenure.orders += step;
            tenure.is_estimate |= step > 1;
            if tenure.instance.is_none() {
                tenure.instance = Some(order.instance.as_str().into());
            }
            self.changed.insert(token);
        }
    }

    /// Notes that orders before this one were not read.
    pub(super) fn unread_before(&mut self, order: &Accepted) {
        self.unsure_to = order.token.map_or(0, fenced_lock::Token::revision);
    }

    /// Connects tenures and leases with the instances that are known by now.
    pub(super) fn settle(&mut self) {
        for tenure in self.by_token.values() {
            if let (Some(instance), Some(seen)) = (&tenure.instance, tenure.seen)
                && !self.instances.contains_key(&seen.lease)
            {
                self.instances.insert(seen.lease, Arc::clone(instance));
            }
        }
        for (token, tenure) in &mut self.by_token {
            if tenure.instance.is_none()
                && let Some(instance) = tenure.seen.and_then(|s| self.instances.get(&s.lease))
            {
                tenure.instance = Some(Arc::clone(instance));
                self.changed.insert(*token);
            }
        }
    }

    /// Notes the instance of a lease.
    pub(super) fn lease_is_of(&mut self, lease: i64, instance: &str) {
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

    /// Drops the tenures that are too old to be shown.
    pub(super) fn prune(&mut self) {
        let now = Instant::now();
        self.by_token.retain(|_, tenure| {
            let ended_at = tenure.seen.and_then(|seen| seen.ended_at);
            ended_at.is_none_or(|ended_at| now - ended_at < WINDOW)
        });
        while self.by_token.len() > MOST {
            self.by_token.pop_first();
        }
    }

    pub(super) fn all(&self, clock: &Clock) -> Vec<TenureView> {
        self.by_token
            .iter()
            .filter_map(|(token, tenure)| self.view(*token, tenure, clock))
            .collect()
    }

    /// The tenures that have changed since the last call.
    pub(super) fn take_changed(&mut self, clock: &Clock) -> Vec<TenureView> {
        let changed = std::mem::take(&mut self.changed);
        let view = |token| self.view(token, self.by_token.get(&token)?, clock);
        changed.into_iter().filter_map(view).collect()
    }

    /// None until its times are known.
    fn view(&self, token: i64, tenure: &Tenure, clock: &Clock) -> Option<TenureView> {
        let seen = tenure.seen?;
        Some(TenureView {
            token,
            instance: tenure.instance.clone(),
            start_ms: clock.ms(seen.began_at),
            end_ms: seen.ended_at.map(|at| clock.ms(at)),
            orders: tenure.orders,
            exact: !tenure.is_estimate && token > self.unsure_to,
        })
    }
}
