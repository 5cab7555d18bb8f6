//! The state of a watched sale, as the readings add up to it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use fenced_lock::{QueueSnapshot, Token};

use super::alerts;
use super::clock::Clock;
use super::event_log::EventLog;
use super::percentiles::LastSeconds;
use super::throughput::Throughput;
use super::timeline::Timeline;
use super::view::{
    Alert, ClaimView, FenceView, Here, Lists, LockView, OrderView, Percentiles, StockView, View,
};
use crate::http::Extension;
use crate::http::reply;
use crate::inventory::{Accepted, Cursor, Fence, InventoryError, Item, SaleUpdate, Stock};
use crate::sale::{GuardStatus, Sale};

/// How many of the last orders are shown.
const LAST_ORDERS: usize = 50;

/// The same of a sale whose ledger is thinned out, at once.
const FAST_ORDERS: usize = 10;

/// How many claims of the queue are shown.
const QUEUE: usize = 32;

/// The result of one poll.
pub(super) struct Reading {
    /// How far the ledger was read before.
    pub(super) cursor: Option<Cursor>,
    /// The error is `None` if the store did not answer in time.
    pub(super) update: Result<SaleUpdate, Option<InventoryError>>,
    pub(super) queue_snapshot: Option<QueueSnapshot>,
    /// Leases and their instances.
    pub(super) labels: Vec<(i64, String)>,
}

/// The state of a watched sale, as the readings add up to it.
pub(super) struct Projection {
    item: Item,
    sale: Sale,
    extension: Option<Arc<dyn Extension>>,
    pub(super) clock: Clock,
    number: u64,
    stock: Option<Stock>,
    store_alert: Option<Alert>,
    lock_alert: Option<Alert>,
    holder_alert: Option<Alert>,
    guarded_by: Option<GuardStatus>,
    queue_snapshot: Option<QueueSnapshot>,
    queue: Vec<ClaimView>,
    timeline: Timeline,
    throughput: Throughput,
    seconds: LastSeconds,
    percentiles: Option<Percentiles>,
    orders: VecDeque<OrderView>,
    new_orders: usize,
    skipped: u64,
    event_log: EventLog,
}

impl Projection {
    pub(super) fn new(item: Item, sale: Sale, extension: Option<Arc<dyn Extension>>) -> Self {
        Self {
            item,
            sale,
            extension,
            clock: Clock::start(),
            number: 1,
            stock: None,
            store_alert: None,
            lock_alert: None,
            holder_alert: None,
            guarded_by: None,
            queue_snapshot: None,
            queue: Vec::new(),
            timeline: Timeline::default(),
            throughput: Throughput::default(),
            seconds: LastSeconds::default(),
            percentiles: None,
            orders: VecDeque::new(),
            new_orders: 0,
            skipped: 0,
            event_log: EventLog::default(),
        }
    }

    /// Adds a reading. Returns whether another sale has begun, so that all earlier messages are void.
    pub(super) fn take(&mut self, reading: Reading) -> bool {
        let Reading { cursor, update, queue_snapshot, labels } = reading;
        let mut is_new_sale = false;
        let alert = match update {
            Ok(update) => {
                let behind = cursor.map(|cursor| cursor.position);
                is_new_sale = self.compare(&update.stock, behind, update.is_same_ledger);
                let known = behind.filter(|_| update.is_same_ledger);
                self.sold(&update.stock, known, &update.orders, update.step);
                self.stock = Some(update.stock);
                None
            }
            Err(error) => {
                let alert = alerts::of_store(error, &self.item, self.stock.is_some());
                if alert.kind == "no-sale" && self.stock.take().is_some() {
                    self.forget_sale();
                    is_new_sale = true;
                }
                Some(alert)
            }
        };
        let alert = std::mem::replace(&mut self.store_alert, alert);
        self.note_change("store", alert.as_ref(), self.store_alert.clone().as_ref());
        let alert = alerts::of_lock(self.sale.lock_health(), self.lock_alert.as_ref());
        let alert = std::mem::replace(&mut self.lock_alert, alert);
        self.note_change("etcd", alert.as_ref(), self.lock_alert.clone().as_ref());
        for (lease, instance) in labels {
            self.timeline.lease_is_of(lease, &instance);
        }
        self.see(queue_snapshot);
        self.throughput.tick(self.stock.as_ref(), &self.clock);
        self.percentiles = self.seconds.tick(&self.sale.metrics().latency);
        self.event_log.count(&self.clock, &self.sale);
        self.note_guard();
        if let Some(extension) = &self.extension {
            for (kind, text) in extension.take_notes() {
                self.event_log.note(&self.clock, kind, text);
            }
        }
        is_new_sale
    }

    /// Whether this is another sale than before. Notes a roll-back and a start.
    fn compare(&mut self, now: &Stock, behind: Option<u64>, is_same_ledger: bool) -> bool {
        let Some(before) = self.stock else { return behind.is_some() };
        let went_back = |then: Fence| {
            let fence = now.fence.filter(|fence| fence.cluster == then.cluster);
            fence.is_none_or(|fence| fence.revision < then.revision)
        };
        let is_rolled_back = before.fence.is_some_and(went_back);
        if is_rolled_back {
            let text = "The store was rolled back: its fence went down. Orders accepted since then are lost."
                .to_owned();
            self.event_log.note(&self.clock, "rolled-back", text);
        }
        let is_other = !is_same_ledger || now.initial != before.initial || now.lucky < before.lucky;
        if is_other {
            self.forget_sale();
            if !is_rolled_back {
                let units = reply::grouped(now.initial);
                let text = format!("A sale of {units} units was started.");
                self.event_log.note(&self.clock, "sale-started", text);
            }
        }
        is_other
    }

    /// Resets the history of the sale.
    fn forget_sale(&mut self) {
        self.number += 1;
        self.throughput.reset();
        self.orders.clear();
        self.new_orders = 0;
        self.skipped = 0;
    }

    /// Adds the new orders. `known` is the position up to which the ledger was read.
    fn sold(&mut self, now: &Stock, known: Option<u64>, orders: &[Accepted], step: u64) {
        let read = u64::try_from(orders.len()).unwrap_or(u64::MAX);
        let since = known.unwrap_or(0);
        let new = now.orders.saturating_sub(since);
        self.skipped += new.saturating_sub(read);
        if let Some(first) = orders.first().filter(|first| known.is_none() && first.position > 1) {
            self.timeline.unread_before(first);
        }
        self.timeline.sold(orders, step);
        if new == 0 {
            // sold without a ledger: the guard may have been switched during the sale
            let before = self.stock.map_or(now.lucky, |before| before.lucky);
            let sold = now.lucky.saturating_sub(before);
            self.throughput.add(u64::try_from(sold).unwrap_or(0), &[], step);
        } else if known.is_some() || self.stock.is_some() {
            self.throughput.add(new, orders, step);
        }
        // a thinned-out ledger is too fast to be read by eye
        let shown = if step > 1 { FAST_ORDERS } else { LAST_ORDERS };
        for accepted in &orders[orders.len().saturating_sub(shown)..] {
            if self.orders.len() == LAST_ORDERS {
                self.orders.pop_front();
            }
            self.orders.push_back(OrderView {
                position: accepted.position,
                order: accepted.order.as_str().to_owned(),
                instance: accepted.instance.as_str().into(),
                token: accepted.token.map(Token::revision),
                quantity: accepted.quantity.get(),
                remaining: accepted.remaining,
            });
            self.new_orders += 1;
        }
    }

    fn see(&mut self, queue_snapshot: Option<QueueSnapshot>) {
        if let Some((lease, _)) = self.sale.lease() {
            self.timeline.lease_is_of(lease, self.sale.instance());
        }
        if let Some(queue_snapshot) = &queue_snapshot {
            self.timeline.see(queue_snapshot);
        }
        self.timeline.settle();
        self.timeline.prune();
        let (timeline, clock) = (&self.timeline, &self.clock);
        let view = |claim: &fenced_lock::ObservedClaim| ClaimView {
            token: claim.revision,
            lease: format!("{:x}", claim.lease),
            instance: timeline.instance_of(claim.lease),
            since_ms: clock.ms(claim.since),
        };
        let current = queue_snapshot.as_ref().filter(|snapshot| snapshot.is_current);
        self.queue = current.map_or(Vec::new(), |s| s.queue.iter().take(QUEUE).map(view).collect());
        self.holder_alert = current.and_then(|s| alerts::of_holder(s, self.queue.first()));
        if let Some(queue_snapshot) = &queue_snapshot {
            self.event_log.see(clock, &queue_snapshot.tenures, |lease| timeline.instance_of(lease));
        }
        self.queue_snapshot = queue_snapshot;
    }

    fn note_change(&mut self, what: &str, before: Option<&Alert>, now: Option<&Alert>) {
        let is_away = |alert: Option<&Alert>| alert.is_some_and(|t| t.kind != "no-sale");
        let is_lost = |alert: &Alert| alert.kind == "lock-lost";
        let (kind, text) = match (is_away(before), is_away(now), what) {
            (false, true, "store") => ("store-away", now.map(|t| t.text.clone())),
            (true, false, "store") => ("store-back", Some("Redis answers again.".to_owned())),
            // the event log notes a lost session itself
            (false, true, _) if now.is_some_and(is_lost) => return,
            (false, true, _) => ("etcd-away", now.map(|t| t.text.clone())),
            (true, false, _) if before.is_some_and(is_lost) => {
                let name = self.sale.instance();
                ("etcd-back", Some(format!("{name} has a session with the lock service again.")))
            }
            (true, false, _) => ("etcd-back", Some("The lock service answers again.".to_owned())),
            _ => return,
        };
        self.event_log.note(&self.clock, kind, text.unwrap_or_default());
    }

    fn note_guard(&mut self) {
        let now = self.sale.guard_status();
        let changed = self.guarded_by.as_ref().is_some_and(|before| *before != now);
        let fence = if now.is_fenced() { "on" } else { "off" };
        let text = format!("The sale is guarded by {} now; the fence is {fence}.", now.description);
        self.guarded_by = Some(now);
        if !changed {
            return;
        }
        self.event_log.note(&self.clock, "guard", text);
    }

    /// How far the ledger was read.
    pub(super) fn cursor(&self) -> Option<Cursor> {
        let position = self.stock?.orders;
        let newest = self.orders.back().filter(|newest| newest.position == position);
        let order = newest.and_then(|newest| crate::inventory::OrderId::new(&newest.order).ok());
        Some(Cursor { position, order })
    }

    /// Whether the queue has claims of unknown instances.
    pub(super) fn has_strangers(&self, queue_snapshot: &QueueSnapshot) -> bool {
        let leases: BTreeSet<_> = queue_snapshot.queue.iter().map(|claim| claim.lease).collect();
        leases.into_iter().any(|lease| self.timeline.instance_of(lease).is_none())
    }

    /// The whole state.
    pub(super) fn whole(&self) -> View<'_> {
        self.view(Lists {
            tenures: self.timeline.all(&self.clock),
            points: self.throughput.points(),
            orders: self.orders.iter().collect(),
            notes: self.event_log.notes(),
        })
    }

    /// The changes since the last message, and whether any list has grown.
    pub(super) fn change(&mut self) -> (View<'_>, bool) {
        let tenures = self.timeline.take_changed(&self.clock);
        let skip = self.orders.len().saturating_sub(self.new_orders);
        let lists = Lists {
            tenures,
            points: self.throughput.new_points(),
            orders: self.orders.iter().skip(skip).collect(),
            notes: self.event_log.new_notes(),
        };
        let has_grown = !(lists.tenures.is_empty()
            && lists.points.is_empty()
            && lists.orders.is_empty()
            && lists.notes.is_empty());
        (self.view(lists), has_grown)
    }

    /// Notes that the changes were sent.
    pub(super) fn mark_sent(&mut self) {
        self.throughput.mark_sent();
        self.event_log.mark_sent();
        self.new_orders = 0;
    }

    fn view<'a>(&'a self, lists: Lists<'a>) -> View<'a> {
        let (sale, stock) = (&self.sale, self.stock);
        let mut alerts: Vec<Alert> = self.store_alert.iter().cloned().collect();
        alerts.extend(self.lock_alert.clone());
        alerts.extend(self.holder_alert.clone());
        alerts.extend(stock.iter().flat_map(alerts::of_stock));
        let guard = sale.guard_status();
        alerts.extend(alerts::of_guard(&guard));
        let sold = stock.map_or(0, |stock| stock.lucky);
        let initial = stock.map_or(0, |stock| stock.initial);
        View {
            sale: self.number,
            instance: sale.instance(),
            item: &self.item,
            guard: guard.name,
            fence_on: guard.is_fenced(),
            stock: stock.map(stock_view),
            sold,
            oversold: sold.saturating_sub(initial).max(0),
            instances: self.instances(),
            here: here(sale),
            lock: self.lock(),
            rates: self.throughput.rates().clone(),
            latency_ms: self.percentiles.clone(),
            skipped: self.skipped,
            alerts,
            demo: self.extension.as_ref().map(|extension| extension.view()),
            lists,
        }
    }

    fn instances(&self) -> Vec<Arc<str>> {
        let mut names: BTreeSet<Arc<str>> = self.throughput.instances().cloned().collect();
        names.extend(self.queue.iter().filter_map(|claim| claim.instance.clone()));
        names.extend(self.timeline.instances());
        names.insert(self.sale.instance().into());
        if let Some(extension) = &self.extension {
            names.extend(extension.instances());
        }
        names.into_iter().collect()
    }

    fn lock(&self) -> Option<LockView> {
        let name = self.sale.lock_name(&self.item)?;
        let ttl = self.sale.lease().map(|(_, ttl)| ttl.as_millis());
        Some(LockView {
            name,
            ttl_ms: ttl.and_then(|ttl| u64::try_from(ttl).ok()),
            known: self.queue_snapshot.as_ref().is_some_and(|snapshot| snapshot.is_current),
            holder: self.queue.first().cloned(),
            queue: self.queue.clone(),
        })
    }
}

fn stock_view(stock: Stock) -> StockView {
    StockView {
        stock: stock.stock,
        lucky: stock.lucky,
        initial: stock.initial,
        orders: stock.orders,
        balanced: stock.is_balanced(),
        fence: stock
            .fence
            .map(|fence| FenceView { cluster: fence.cluster.to_string(), token: fence.revision }),
    }
}

fn here(sale: &Sale) -> Here {
    let metrics = sale.metrics();
    let orders: BTreeMap<_, _> = metrics.orders().collect();
    let all: u64 = orders.values().sum();
    let fine: u64 =
        ["reserved", "sold-out", "conflict", "abandoned"].map(|key| orders[key]).iter().sum();
    Here {
        waiting: sale.waiting(),
        sold_out: orders["sold-out"],
        refused: all - fine,
        orders,
        stale_batches: metrics.stale_batches.get(),
        lost_tenures: metrics.lost_tenures.get(),
        lost_sessions: sale.lost_sessions(),
    }
}
