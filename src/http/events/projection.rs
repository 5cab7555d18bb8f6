//! The state of a watched sale, by the readings so far.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fenced_lock::{ObservedClaim, QueueSnapshot};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::alerts::{self, Alert};
use crate::http::AppState;
use crate::http::stock::StockView;
use crate::inventory::{InventoryError, Item, Stock};
use crate::sale::Sale;

/// How many claims of the queue are shown.
const QUEUE: usize = 32;

/// The period of the rate.
const SECOND: Duration = Duration::from_secs(1);

/// The outcomes of orders that do not count as refused.
const NOT_REFUSED: [&str; 7] =
    ["reserved", "sold-out", "order-conflict", "abandoned", "confirmed", "cancelled", "returned"];

pub(super) struct Projection {
    item: Item,
    sale: Sale,
    pub(super) clock: Clock,
    stock: Option<Stock>,
    /// The orders accepted between two polls, for each poll of the last second.
    accepted: VecDeque<(Instant, u64)>,
    store_alert: Option<Alert>,
    lock_alert: Option<Alert>,
    queue_snapshot: Option<QueueSnapshot>,
    /// This instance, and all that had a claim in the queue.
    instances: BTreeSet<Arc<str>>,
}

impl Projection {
    pub(super) fn new(app: &AppState, item: &Item) -> Self {
        Self {
            item: item.clone(),
            sale: app.sale.clone(),
            clock: Clock::start(),
            stock: None,
            accepted: VecDeque::new(),
            store_alert: None,
            lock_alert: None,
            queue_snapshot: None,
            instances: BTreeSet::from([app.sale.instance().into()]),
        }
    }

    /// Adds a poll's reading, and the queue.
    pub(super) fn add(
        &mut self,
        read: Result<Stock, InventoryError>,
        queue_snapshot: Option<QueueSnapshot>,
    ) {
        if matches!(read, Err(InventoryError::UnknownItem)) {
            self.stock = None;
        }
        self.store_alert = match read {
            Ok(now) => {
                self.add_stock(now);
                None
            }
            Err(error) => Some(alerts::of_store(error, &self.item, self.stock.is_some())),
        };
        self.lock_alert = alerts::of_lock(self.sale.lock_health(), self.lock_alert.as_ref());
        let claims = queue_snapshot.iter().flat_map(|snapshot| &snapshot.queue);
        self.instances.extend(claims.filter_map(|claim| claim.label.clone()));
        self.queue_snapshot = queue_snapshot;
    }

    fn add_stock(&mut self, now: Stock) {
        let before = match self.stock.take() {
            None => now.clone(),
            Some(before) if before.sale != now.sale => Stock::default(),
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
        self.stock = Some(now);
    }

    pub(super) fn state(&self) -> Value {
        let (stock, guard) = (self.stock.as_ref(), self.sale.guard().status());
        let sold = stock.map_or(0, |stock| stock.lucky);
        let initial = stock.map_or(0, |stock| stock.initial);
        let last_second = self.accepted.iter().filter(|(at, _)| at.elapsed() < SECOND);
        let queue = self.queue_snapshot.as_ref().filter(|snapshot| snapshot.is_current);
        let alerts = [&self.store_alert, &self.lock_alert].into_iter().flatten().cloned();
        let alerts = alerts
            .chain(queue.and_then(|queue| alerts::of_holder(&queue.queue)))
            .chain(stock.into_iter().flat_map(alerts::of_stock))
            .chain(alerts::of_guard(&guard));
        json!({
            "instance": self.sale.instance(),
            "item": self.item,
            "guard": guard.name,
            "fence_on": guard.is_fenced(),
            "stock": stock.map(|stock| StockView::of(&self.item, stock)),
            "sold": sold,
            "oversold": sold.saturating_sub(initial).max(0),
            "orders_per_second": last_second.map(|(_, count)| count).sum::<u64>(),
            "instances": self.instances,
            "lock": self.lock(),
            "here": self.here(),
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

/// Converts instants of the monotonic clock to the wall clock. Reads the wall clock once: setting it does not distort the times.
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
        ((self.anchor_ms + (after - before) * 1000.0) * 10.0).round() / 10.0
    }

    pub(super) fn now_ms(&self) -> f64 {
        self.ms(Instant::now())
    }
}
