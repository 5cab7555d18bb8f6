//! The state of a watched sale, as the readings add up to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fenced_lock::{ObservedClaim, QueueSnapshot, Token};
use serde_json::{Value, json};

use super::alerts::{self, Alert, LOCK_LOST, NO_SALE};
use super::event_log::EventLog;
use super::message::{Clock, Recent, round};
use super::rates::Throughput;
use super::timeline::Timeline;
use crate::http::stock::StockView;
use crate::http::{AppState, Extension, reply};
use crate::inventory::{Event, InventoryError, Item, LedgerPosition, SaleUpdate, Stock};
use crate::sale::metrics::LATENCY_WINDOW;
use crate::sale::{GuardStatus, Sale};

/// How many of the last orders are shown.
const LAST_ORDERS: usize = 50;

/// How many orders of one reading are shown if the ledger is thinned out.
const FAST_ORDERS: usize = 10;

/// How many claims of the queue are shown.
const QUEUE: usize = 32;

/// The lists that grow, by their names in the messages.
pub(super) type Lists = [(&'static str, Vec<Value>); 4];

/// The state of a watched sale, as the readings add up to it.
pub(super) struct Projection {
    item: Item,
    sale: Sale,
    extension: Option<Arc<dyn Extension>>,
    pub(super) clock: Clock,
    /// The number of the sale since the first watcher came.
    number: u64,
    history: History,
    stock: Option<Stock>,
    store_alert: Option<Alert>,
    lock_alert: Option<Alert>,
    guard: GuardStatus,
    queue_snapshot: Option<QueueSnapshot>,
    timeline: Timeline,
    event_log: EventLog,
}

/// The orders of one sale.
#[derive(Default)]
struct History {
    throughput: Throughput,
    orders: Recent<LAST_ORDERS>,
    /// The name of the ledger that was read.
    ledger: Option<String>,
    /// How many orders of the ledger were not read one by one.
    skipped: u64,
}

impl Projection {
    pub(super) fn new(app: &AppState, item: &Item) -> Self {
        Self {
            item: item.clone(),
            sale: app.sale.clone(),
            extension: app.extension.clone(),
            clock: Clock::start(),
            number: 1,
            history: History::default(),
            stock: None,
            store_alert: None,
            lock_alert: None,
            guard: app.sale.guard_status(),
            queue_snapshot: None,
            timeline: Timeline::default(),
            event_log: EventLog::default(),
        }
    }

    /// Adds what a poll has read: the `update` of the ledger after `cursor`, and the queue. Returns whether another sale
    /// has begun, so that all earlier messages are void.
    pub(super) fn add(
        &mut self,
        cursor: Option<&LedgerPosition>,
        update: Result<SaleUpdate, InventoryError>,
        queue_snapshot: Option<QueueSnapshot>,
    ) -> bool {
        let mut is_new_sale = false;
        let alert = match update {
            Ok(update) => {
                let position = cursor.map(|cursor| cursor.after);
                is_new_sale = self.compare(&update.stock, position, update.is_same_ledger);
                let known = position.filter(|_| update.is_same_ledger);
                self.add_orders(&update, known);
                self.stock = Some(update.stock);
                None
            }
            Err(error) => {
                let alert = alerts::of_store(&error, self.stock.is_some());
                if alert.kind == NO_SALE && self.stock.take().is_some() {
                    self.forget_sale();
                    is_new_sale = true;
                }
                Some(alert)
            }
        };
        self.set_store_alert(alert);
        self.set_lock_alert();
        if let Some(queue_snapshot) = &queue_snapshot {
            self.timeline.add_queue(queue_snapshot);
            self.event_log.examine(&self.clock, &queue_snapshot.tenures);
        }
        self.timeline.drop_old();
        self.queue_snapshot = queue_snapshot;
        self.history.throughput.tick(self.stock.as_ref(), &self.clock);
        self.event_log.count(self.clock.now_ms(), &self.sale);
        self.set_guard();
        is_new_sale
    }

    /// Whether this is another sale than before. Notes its start, or a roll-back. `position`: how far the ledger was
    /// read before.
    fn compare(&mut self, now: &Stock, position: Option<u64>, is_same_ledger: bool) -> bool {
        let Some(before) = &self.stock else { return position.is_some() };
        // only an instance that sold has a watermark that refuses such data
        let is_rolled_back =
            before.fence.is_some_and(|then| now.fence.is_none_or(|now| now < then));
        // with holds, units come back
        let is_less = now.lucky < before.lucky && now.terms.hold_seconds.is_none();
        let is_other = !is_same_ledger || now.initial != before.initial || is_less;
        if is_rolled_back {
            let text = "The store was rolled back: its fence went down. Orders accepted since then are lost.";
            self.note("rolled-back", text);
        }
        if is_other {
            self.forget_sale();
            if !is_rolled_back {
                let units = reply::grouped(now.initial);
                self.note("sale-started", format!("A sale of {units} units was started."));
            }
        }
        is_other
    }

    fn forget_sale(&mut self) {
        self.number += 1;
        self.history = History::default();
    }

    /// Adds the new entries. `known` is the position up to which the ledger was read.
    fn add_orders(&mut self, update: &SaleUpdate, known: Option<u64>) {
        let SaleUpdate { stock: now, name, entries, step, .. } = update;
        self.history.ledger = Some(name.clone());
        let read = u64::try_from(entries.len()).unwrap_or(u64::MAX);
        let new = now.entries.saturating_sub(known.unwrap_or(0));
        self.history.skipped += new.saturating_sub(read);
        if let Some(first) = entries.first().filter(|first| known.is_none() && first.position > 1) {
            self.timeline.unread_before(first);
        }
        // what becomes of a hold is no order
        let orders: Vec<_> =
            entries.iter().filter(|entry| entry.event == Event::Reserved).cloned().collect();
        self.timeline.add_orders(&orders, *step);
        if new == 0 {
            // another guard sells without a ledger, and the guard can be switched during the sale
            let before = self.stock.as_ref().map_or(now.lucky, |before| before.lucky);
            let sold = now.lucky.saturating_sub(before);
            self.history.throughput.add(u64::try_from(sold).unwrap_or(0), &[], *step);
        } else if known.is_some() || self.stock.is_some() {
            let changes = read.saturating_sub(u64::try_from(orders.len()).unwrap_or(u64::MAX));
            let count = new.saturating_sub(changes.saturating_mul(*step));
            self.history.throughput.add(count, &orders, *step);
        }
        // a thinned-out ledger is too fast to be read by eye
        let shown = if *step > 1 { FAST_ORDERS } else { LAST_ORDERS };
        for entry in &entries[entries.len().saturating_sub(shown)..] {
            self.history.orders.push(json!({
                "position": entry.position,
                "event": entry.event,
                "order": entry.order,
                "instance": entry.instance,
                "token": entry.token.map(Token::revision),
                "quantity": entry.quantity,
                "remaining": entry.remaining,
            }));
        }
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
        let now = self.sale.guard_status();
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

    /// How far the ledger was read.
    pub(super) fn cursor(&self) -> Option<LedgerPosition> {
        let after = self.stock.as_ref()?.entries;
        Some(LedgerPosition { of: self.history.ledger.clone(), ..after.into() })
    }

    /// The entries of the lists since the last call, or all.
    pub(super) fn take_entries(&mut self, all: bool) -> Lists {
        [
            ("tenures", self.timeline.take(all, &self.clock)),
            ("points", self.history.throughput.points.take(all)),
            ("orders", self.history.orders.take(all)),
            ("notes", self.event_log.notes.take(all)),
        ]
    }

    /// All but the lists. Each message has the whole state.
    pub(super) fn state(&self) -> Value {
        let stock = self.stock.as_ref();
        let sold = stock.map_or(0, |stock| stock.lucky);
        let initial = stock.map_or(0, |stock| stock.initial);
        let queue = self.queue_snapshot.as_ref().filter(|snapshot| snapshot.is_current);
        let alerts = [&self.store_alert, &self.lock_alert].into_iter().flatten().cloned();
        let alerts = alerts
            .chain(queue.and_then(|queue| alerts::of_holder(&queue.queue)))
            .chain(stock.into_iter().flat_map(alerts::of_stock))
            .chain(alerts::of_guard(&self.guard));
        json!({
            "sale": self.number,
            "instance": self.sale.instance(),
            "item": self.item,
            "guard": self.guard.name,
            "fence_on": self.guard.is_fenced(),
            "stock": stock.map(|stock| StockView::of(&self.item, stock)),
            "sold": sold,
            "oversold": sold.saturating_sub(initial).max(0),
            "instances": self.instances(),
            "here": self.here(),
            "lock": self.lock(),
            "rates": self.history.throughput.rates(),
            "latency_ms": self.latency(),
            "skipped": self.history.skipped,
            "troubles": alerts.collect::<Vec<_>>(),
            "demo": self.extension.clone().map(Extension::view),
        })
    }

    fn instances(&self) -> BTreeSet<Arc<str>> {
        let mut names: BTreeSet<_> = self.history.throughput.instances().collect();
        names.extend(self.timeline.instances.iter().cloned());
        names.insert(self.sale.instance().into());
        names
    }

    /// Counters of this instance since its start.
    fn here(&self) -> Value {
        let metrics = self.sale.metrics();
        let orders: BTreeMap<_, _> = metrics.orders().collect();
        let all: u64 = orders.values().sum();
        let not_refused =
            ["reserved", "sold-out", "conflict", "abandoned", "confirmed", "cancelled"];
        let not_refused = not_refused.map(|key| orders[key]);
        json!({
            "waiting": self.sale.waiting(),
            "sold_out": orders["sold-out"],
            "refused": all - not_refused.iter().sum::<u64>(),
            "orders": orders,
            "stale_batches": metrics.stale_batches.get(),
            "lost_tenures": metrics.lost_tenures.get(),
            "lost_sessions": self.sale.lost_sessions(),
        })
    }

    /// The latency of the last orders at this instance, in milliseconds; null without orders.
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

    /// The lock with its queue; null without a distributed lock.
    fn lock(&self) -> Option<Value> {
        let current = self.queue_snapshot.as_ref().filter(|snapshot| snapshot.is_current);
        let claims = current.map_or(&[][..], |snapshot| &snapshot.queue);
        let view = |claim: &ObservedClaim| {
            json!({
                "token": claim.revision,
                "lease": format!("{:x}", claim.lease),
                "instance": claim.label,
                "since_ms": self.clock.ms(claim.since),
            })
        };
        let ttl = self.sale.lease().map(|(_, ttl)| ttl.as_millis());
        Some(json!({
            "name": self.sale.lock_name(&self.item)?,
            "ttl_ms": ttl,
            "known": current.is_some(),
            "holder": claims.first().map(view),
            "queue": claims.iter().take(QUEUE).map(view).collect::<Vec<_>>(),
        }))
    }
}
