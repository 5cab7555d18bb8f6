//! The rate of accepted orders and its history.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::clock::{Clock, round};
use super::view::{Point, Rates};
use crate::inventory::{Accepted, Stock};

/// The period over which rates are averaged.
const SMOOTHED: Duration = Duration::from_secs(1);

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
    rates: Rates,
    points: VecDeque<Point>,
    last_point: Option<Instant>,
    new_points: usize,
}

impl Throughput {
    /// Counts `count` orders, of which `orders` were read; each of these stands for `step`.
    pub(super) fn add(&mut self, count: u64, orders: &[Accepted], step: u64) {
        self.total += count;
        for order in orders {
            let has_room = self.by_instance.len() < MOST_INSTANCES;
            if let Some(orders) = self.by_instance.get_mut(order.instance.as_str()) {
                *orders += step;
            } else if has_room {
                self.by_instance.insert(order.instance.as_str().into(), step);
            }
        }
    }

    /// Computes the rates, and adds a point when it is due.
    pub(super) fn tick(&mut self, stock: Option<&Stock>, clock: &Clock) {
        let now = Instant::now();
        while self.past.len() > 1 && now - self.past[1].0 >= SMOOTHED {
            self.past.pop_front();
        }
        if let Some((since, total, by_instance)) = self.past.front() {
            // a shorter period would exaggerate the rate
            let seconds = (now - *since).max(SMOOTHED).as_secs_f64();
            let rate = |now: u64, then: u64| {
                let orders = u32::try_from(now.saturating_sub(then)).unwrap_or(u32::MAX);
                round(f64::from(orders) / seconds)
            };
            self.rates.total = rate(self.total, *total);
            let of = |(name, orders): (&Arc<str>, &u64)| {
                let then = by_instance.get(name).copied().unwrap_or(0);
                (Arc::clone(name), rate(*orders, then))
            };
            self.rates.by_instance = self.by_instance.iter().map(of).collect();
        }
        self.past.push_back((now, self.total, self.by_instance.clone()));
        if self.last_point.is_none_or(|last| now - last >= POINT_EVERY) {
            self.last_point = Some(now);
            if self.points.len() == POINTS {
                self.points.pop_front();
            }
            self.points.push_back(Point {
                at_ms: clock.ms(now),
                stock: stock.map(|stock| stock.stock),
                sold: stock.map_or(0, |stock| stock.lucky),
                total: self.rates.total,
                rates: self.rates.by_instance.clone(),
            });
            self.new_points += 1;
        }
    }

    /// Clears the history: another sale has begun.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    pub(super) fn rates(&self) -> &Rates {
        &self.rates
    }

    pub(super) fn instances(&self) -> impl Iterator<Item = &Arc<str>> {
        self.by_instance.keys()
    }

    pub(super) fn points(&self) -> Vec<&Point> {
        self.points.iter().collect()
    }

    /// The points since the last message.
    pub(super) fn new_points(&self) -> Vec<&Point> {
        self.points.iter().skip(self.points.len().saturating_sub(self.new_points)).collect()
    }

    pub(super) fn mark_sent(&mut self) {
        self.new_points = 0;
    }
}
