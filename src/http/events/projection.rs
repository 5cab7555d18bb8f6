//! The state of a watched sale, accumulated from the readings.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fenced_lock::{ObservedClaim, QueueSnapshot};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::alerts::{self, Alert, LOCK_LOST, NO_SALE};
use super::event_log::EventLog;
use crate::http::stock::StockView;
use crate::http::{AppState, reply};
use crate::inventory::{Entry, InventoryError, Item, SaleState, Stock};
use crate::sale::metrics::LATENCY_WINDOW;
use crate::sale::{GuardStatus, Sale};

/// How many claims of the queue are shown.
const QUEUE: usize = 32;

/// The period of the rate.
const SECOND: Duration = Duration::from_secs(1);

/// The outcomes of orders that do not count as refused.
const NOT_REFUSED: [&str; 7] =
    ["reserved", "sold-out", "conflict", "abandoned", "confirmed", "cancelled", "returned"];

/// The state of a watched sale, accumulated from the readings.
pub(super) struct Projection {
    item: Item,
    sale: Sale,
    pub(super) clock: Clock,
    stock: Option<Stock>,
    /// The name of the sale's ledger.
    ledger: String,
    /// The last entries of the ledger.
    orders: Vec<Entry>,
    /// How many orders were accepted, for each poll of the last second.
    accepted: VecDeque<(Instant, u64)>,
    store_alert: Option<Alert>,
    lock_alert: Option<Alert>,
    guard: GuardStatus,
    queue_snapshot: Option<QueueSnapshot>,
    /// The instances that have queued or sold.
    instances: BTreeSet<Arc<str>>,
    event_log: EventLog,
}

impl Projection {
    pub(super) fn new(app: &AppState, item: &Item) -> Self {
        Self {
            item: item.clone(),
            sale: app.sale.clone(),
            clock: Clock::start(),
            stock: None,
            ledger: String::new(),
            orders: Vec::new(),
            accepted: VecDeque::new(),
            store_alert: None,
            lock_alert: None,
            guard: app.sale.guard().status(),
            queue_snapshot: None,
            instances: BTreeSet::from([app.sale.instance().into()]),
            event_log: EventLog::default(),
        }
    }

    /// Adds a poll's reading, and the queue.
    pub(super) fn add(
        &mut self,
        read: Result<SaleState, InventoryError>,
        queue_snapshot: Option<QueueSnapshot>,
    ) {
        let alert = match read {
            Ok(state) => {
                self.add_state(state);
                None
            }
            Err(error) => Some(alerts::of_store(error, &self.item, self.stock.is_some())),
        };
        if alert.as_ref().is_some_and(|alert| alert.kind == NO_SALE) {
            (self.stock, self.ledger, self.orders) = (None, String::new(), Vec::new());
        }
        self.set_store_alert(alert);
        self.set_lock_alert();
        if let Some(queue_snapshot) = &queue_snapshot {
            let claims = queue_snapshot.queue.iter();
            self.instances.extend(claims.filter_map(|claim| claim.label.clone()));
            self.event_log.examine(self.clock.now_ms(), &queue_snapshot.queue);
        }
        self.queue_snapshot = queue_snapshot;
        self.event_log.count(self.clock.now_ms(), &self.sale);
        self.set_guard();
    }

    fn add_state(&mut self, state: SaleState) {
        let SaleState { stock: now, ledger, entries } = state;
        let is_new = !self.ledger.is_empty() && self.ledger != ledger;
        let before = match self.stock.take() {
            None => now.clone(),
            Some(before) if is_new => Stock { fence: before.fence, ..Stock::default() },
            Some(before) => before,
        };
        let accepted = if now.entries > before.entries {
            now.orders.saturating_sub(before.orders)
        } else {
            // a guard of the demo may sell without a ledger, and guards can change during the sale
            u64::try_from(now.lucky.saturating_sub(before.lucky)).unwrap_or(0)
        };
        self.accepted.retain(|(at, _)| at.elapsed() < SECOND);
        self.accepted.push_back((Instant::now(), accepted));

        // only an instance that has sold has a watermark, which would refuse such data
        if now.fence < before.fence {
            let text = "The store was rolled back: its fence went down. Orders accepted since then are lost.";
            self.note("rolled-back", text);
        } else if is_new {
            let units = reply::grouped(now.initial);
            self.note("sale-started", format!("A sale of {units} units was started."));
        }
        self.instances.extend(entries.iter().map(|entry| entry.instance().into()));
        (self.stock, self.ledger, self.orders) = (Some(now), ledger, entries);
    }

    fn set_store_alert(&mut self, now: Option<Alert>) {
        let is_outage = |alert: &Alert| alert.kind != NO_SALE;
        let was_away = self.store_alert.as_ref().is_some_and(is_outage);
        match now.as_ref().filter(|now| is_outage(now)) {
            Some(now) if !was_away => self.note("store-away", now.text.clone()),
            None if was_away => self.note("store-back", "Redis answers again."),
            _ => {}
        }
        self.store_alert = now;
    }

    fn set_lock_alert(&mut self) {
        let now = alerts::of_lock(self.sale.lock_health(), self.lock_alert.as_ref());
        let before = std::mem::replace(&mut self.lock_alert, now.clone());
        match (before, now) {
            // the event log has its own note on a lost session
            (None, Some(now)) if now.kind != LOCK_LOST => self.note("etcd-away", now.text),
            (Some(_), None) => {
                let text = format!("The lock service answers {} again.", self.sale.instance());
                self.note("etcd-back", text);
            }
            _ => {}
        }
    }

    fn set_guard(&mut self) {
        let now = self.sale.guard().status();
        if now != self.guard {
            let fence = match now.is_fenced() {
                is_fenced if is_fenced == self.guard.is_fenced() => "",
                true => "; the fence is on",
                false => "; the fence is off",
            };
            self.note("guard", format!("The sale is guarded by {} now{fence}.", now.description));
            self.guard = now;
        }
    }

    fn note(&mut self, kind: &'static str, text: impl Into<String>) {
        self.event_log.note(self.clock.now_ms(), kind, text);
    }

    /// The whole state.
    pub(super) fn state(&self) -> Value {
        let stock = self.stock.as_ref();
        let sold = stock.map_or(0, |stock| stock.lucky);
        let initial = stock.map_or(0, |stock| stock.initial);
        let last_second = self.accepted.iter().filter(|(at, _)| at.elapsed() < SECOND);
        let queue = self.queue_snapshot.as_ref().filter(|snapshot| snapshot.is_current);
        let alerts = [&self.store_alert, &self.lock_alert].into_iter().flatten().cloned();
        let alerts = alerts
            .chain(queue.and_then(|queue| alerts::of_holder(&queue.queue)))
            .chain(stock.into_iter().flat_map(alerts::of_stock))
            .chain(alerts::of_guard(&self.guard));
        json!({
            "instance": self.sale.instance(),
            "item": self.item,
            "guard": self.guard.name,
            "fence_on": self.guard.is_fenced(),
            "stock": stock.map(|stock| StockView::of(&self.item, stock)),
            "sold": sold,
            "oversold": sold.saturating_sub(initial).max(0),
            "orders_per_second": last_second.map(|(_, count)| count).sum::<u64>(),
            "orders": self.orders,
            "instances": self.instances,
            "lock": self.lock(),
            "here": self.here(),
            "latency_ms": self.latency(),
            "notes": self.event_log.notes,
            "alerts": alerts.collect::<Vec<_>>(),
        })
    }

    /// Counters of this instance since its start.
    fn here(&self) -> Value {
        let metrics = self.sale.metrics();
        let orders: BTreeMap<_, _> = metrics.orders().collect();
        let refused = orders.iter().filter(|(outcome, _)| !NOT_REFUSED.contains(outcome));
        json!({
            "waiting": self.sale.guard().waiting(),
            "sold_out": orders["sold-out"],
            "refused": refused.map(|(_, count)| count).sum::<u64>(),
            "stale_batches": metrics.stale_batches.get(),
        })
    }

    /// The latency of the last orders at this instance, in milliseconds; `None` without orders.
    fn latency(&self) -> Option<Value> {
        let recent = self.sale.metrics().latency.recent();
        // two decimals: a fast order takes less than a tenth of a millisecond
        let ms = |us: u64| round(f64::from(u32::try_from(us).unwrap_or(u32::MAX)) / 100.0) / 10.0;
        (!recent.is_empty()).then(|| {
            json!({
                "p50": ms(recent.value_at_quantile(0.5)),
                "p90": ms(recent.value_at_quantile(0.9)),
                "p99": ms(recent.value_at_quantile(0.99)),
                "max": ms(recent.max()),
                "count": recent.len(),
                "window_s": LATENCY_WINDOW.as_secs(),
            })
        })
    }

    /// The lock with its queue; `None` without a distributed lock.
    fn lock(&self) -> Option<Value> {
        let current = self.queue_snapshot.as_ref().filter(|snapshot| snapshot.is_current);
        let claims = current.map_or(&[][..], |snapshot| &snapshot.queue);
        let view = |claim: &ObservedClaim| {
            json!({
                "token": claim.revision,
                "instance": claim.label,
                "since_ms": self.clock.ms(claim.since),
            })
        };
        let ttl = self.sale.lease_ttl().map(|ttl| ttl.as_millis());
        Some(json!({
            "name": self.sale.guard().lock_name(&self.item)?,
            "ttl_ms": ttl,
            "known": current.is_some(),
            "holder": claims.first().map(view),
            "queue": claims.iter().take(QUEUE).map(view).collect::<Vec<_>>(),
        }))
    }
}

/// Converts instants of the monotonic clock to the wall clock. Reads the wall clock once, so that setting it does not distort the
/// times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    anchor: Instant,
    /// The anchor on the wall clock, in milliseconds since 1970.
    anchor_ms: f64,
}

impl Clock {
    fn start() -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { anchor: Instant::now(), anchor_ms: since_1970.as_secs_f64() * 1000.0 }
    }

    /// Milliseconds since 1970, with one decimal.
    fn ms(&self, at: Instant) -> f64 {
        let after = at.saturating_duration_since(self.anchor).as_secs_f64();
        let before = self.anchor.saturating_duration_since(at).as_secs_f64();
        round(self.anchor_ms + (after - before) * 1000.0)
    }

    pub(super) fn now_ms(&self) -> f64 {
        self.ms(Instant::now())
    }
}

/// Rounds to one decimal.
fn round(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}
