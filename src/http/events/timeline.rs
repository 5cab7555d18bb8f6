//! The tenures of the last seconds: their times from the watch of the queue, their orders from the ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{QueueSnapshot, Token};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::message::Clock;
use crate::inventory::Accepted;

/// How long a tenure is shown after its end.
const WINDOW: Duration = Duration::from_secs(10);

/// The most tenures that are shown.
const MOST: usize = 1000;

/// The most instances that are remembered.
const MOST_INSTANCES: usize = 256;

/// The tenures of the last seconds.
#[derive(Default)]
pub(super) struct Timeline {
    by_token: BTreeMap<i64, Tenure>,
    /// Those that were seen in the queue.
    pub(super) instances: BTreeSet<Arc<str>>,
    /// Some orders of tenures up to this token were not read.
    unread_to: i64,
    /// The tokens whose tenures changed since the last message.
    changed: BTreeSet<i64>,
}

#[derive(Default)]
struct Tenure {
    /// When it began and ended. None until the watch has seen it, which may be later than its orders are read.
    times: Option<(Instant, Option<Instant>)>,
    instance: Option<Arc<str>>,
    orders: u64,
    is_estimate: bool,
}

impl Timeline {
    /// Adds what the watch of the queue has seen.
    pub(super) fn add_queue(&mut self, queue_snapshot: &QueueSnapshot) {
        let QueueSnapshot { queue, tenures, .. } = queue_snapshot;
        let labels = queue.iter().map(|claim| &claim.label).chain(tenures.iter().map(|t| &t.label));
        for label in labels.flatten() {
            if self.instances.len() < MOST_INSTANCES {
                self.instances.insert(Arc::clone(label));
            }
        }
        let ended = tenures.iter();
        let ended = ended.map(|t| (t.revision, &t.label, (t.began_at, Some(t.ended_at))));
        let holder = queue.first().map(|claim| (claim.revision, &claim.label, (claim.since, None)));
        for (token, label, times) in ended.chain(holder) {
            let is_old = times.1.is_some_and(|ended_at| ended_at.elapsed() > WINDOW);
            if is_old && !self.by_token.contains_key(&token) {
                continue;
            }
            let tenure = self.by_token.entry(token).or_default();
            if tenure.times.is_some_and(|known| known == times || known.1.is_some()) {
                continue;
            }
            tenure.times = Some(times);
            tenure.instance = tenure.instance.take().or_else(|| label.clone());
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

    /// Drops the tenures that are too old to be shown.
    pub(super) fn drop_old(&mut self) {
        self.by_token.retain(|_, tenure| {
            let ended_at = tenure.times.and_then(|(_, ended_at)| ended_at);
            ended_at.is_none_or(|ended_at| ended_at.elapsed() < WINDOW)
        });
        while self.by_token.len() > MOST {
            self.by_token.pop_first();
        }
    }

    /// The tenures that changed since the last call, or all.
    pub(super) fn take(&mut self, all: bool, clock: &Clock) -> Vec<Value> {
        let changed = std::mem::take(&mut self.changed);
        let tokens = if all { self.by_token.keys().copied().collect() } else { changed };
        tokens.into_iter().filter_map(|token| self.view(token, clock)).collect()
    }

    /// None until its times are known.
    fn view(&self, token: i64, clock: &Clock) -> Option<Value> {
        let tenure = self.by_token.get(&token)?;
        let (began_at, ended_at) = tenure.times?;
        Some(json!({
            "token": token,
            "instance": tenure.instance,
            "start_ms": clock.ms(began_at),
            "end_ms": ended_at.map(|at| clock.ms(at)),
            "orders": tenure.orders,
            "exact": !tenure.is_estimate && token > self.unread_to,
        }))
    }
}
