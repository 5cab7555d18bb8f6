//! The rate of accepted orders, with its history.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::message::{Clock, Recent, round};
use crate::inventory::{Accepted, Stock};

/// The period over which rates are averaged.
const SECOND: Duration = Duration::from_secs(1);

/// How often a point is added, and how many are kept: a minute.
const POINT_EVERY: Duration = Duration::from_millis(500);
const POINTS: usize = 120;

/// The most instances with a rate of their own.
const MOST_INSTANCES: usize = 64;

/// The rate of accepted orders and its history.
#[derive(Default)]
pub(super) struct Throughput {
    total: u64,
    by_instance: BTreeMap<Arc<str>, u64>,
    /// Totals of the last second, oldest first.
    past: VecDeque<(Instant, u64, BTreeMap<Arc<str>, u64>)>,
    rate: f64,
    rates: BTreeMap<Arc<str>, f64>,
    pub(super) points: Recent<POINTS>,
    last_point: Option<Instant>,
}

impl Throughput {
    /// Counts `count` orders, of which `orders` were read; each of these stands for `step`.
    pub(super) fn add(&mut self, count: u64, orders: &[Accepted], step: u64) {
        self.total += count;
        for order in orders {
            let name = Arc::from(order.instance.as_str());
            if self.by_instance.len() < MOST_INSTANCES || self.by_instance.contains_key(&name) {
                *self.by_instance.entry(name).or_default() += step;
            }
        }
    }

    /// Computes the rates, and adds a point when it is due.
    pub(super) fn tick(&mut self, stock: Option<&Stock>, clock: &Clock) {
        let now = Instant::now();
        while self.past.len() > 1 && now - self.past[1].0 >= SECOND {
            self.past.pop_front();
        }
        if let Some((since, total, by_instance)) = self.past.front() {
            // a shorter period would exaggerate the rate
            let seconds = (now - *since).max(SECOND).as_secs_f64();
            let rate = |now: u64, then: u64| {
                let orders = u32::try_from(now.saturating_sub(then)).unwrap_or(u32::MAX);
                round(f64::from(orders) / seconds)
            };
            self.rate = rate(self.total, *total);
            let of = |(name, orders): (&Arc<str>, &u64)| {
                let then = by_instance.get(name).copied().unwrap_or(0);
                (Arc::clone(name), rate(*orders, then))
            };
            self.rates = self.by_instance.iter().map(of).collect();
        }
        self.past.push_back((now, self.total, self.by_instance.clone()));
        if self.last_point.is_none_or(|last| now - last >= POINT_EVERY) {
            self.last_point = Some(now);
            self.points.push(json!({
                "at_ms": clock.ms(now),
                "stock": stock.map(|stock| stock.stock),
                "sold": stock.map_or(0, |stock| stock.lucky),
                "total": self.rate,
                "rates": self.rates,
            }));
        }
    }

    /// Orders per second.
    pub(super) fn rates(&self) -> Value {
        json!({ "total": self.rate, "by_instance": self.rates })
    }

    pub(super) fn instances(&self) -> impl Iterator<Item = Arc<str>> {
        self.by_instance.keys().cloned()
    }
}
