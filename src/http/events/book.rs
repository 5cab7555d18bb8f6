//! All that is known of a sale that is watched.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use fenced_lock::{QueueSnapshot, Token};

use super::clock::Clock;
use super::diary::Diary;
use super::flow::Flow;
use super::lanes::Lanes;
use super::percentiles::LastSeconds;
use super::reader::Reading;
use super::troubles;
use super::view::{
    ClaimView, FenceView, Here, Lists, LockView, OrderView, Percentiles, StockView, Trouble, View,
};
use crate::http::extension::Extension;
use crate::http::reply;
use crate::inventory::{Accepted, Fence, Followed, Item, Stock};
use crate::sale::metrics::Ending;
use crate::sale::{GuardStatus, Sale};

/// How many of the last orders are told.
const LAST_ORDERS: usize = 50;

/// How many orders are told at once of a sale that is faster than its ledger is read.
const FAST_ORDERS: usize = 10;

/// How many claims of the queue are told.
const QUEUE: usize = 32;

/// All that is known of a sale that is watched.
pub(super) struct Book {
    item: Item,
    sale: Sale,
    extension: Option<Arc<dyn Extension>>,
    pub(super) clock: Clock,
    number: u64,
    stock: Option<Stock>,
    store_trouble: Option<Trouble>,
    lock_trouble: Option<Trouble>,
    holder_trouble: Option<Trouble>,
    guarded_by: Option<GuardStatus>,
    sighting: Option<QueueSnapshot>,
    queue: Vec<ClaimView>,
    lanes: Lanes,
    flow: Flow,
    seconds: LastSeconds,
    percentiles: Option<Percentiles>,
    orders: VecDeque<OrderView>,
    new_orders: usize,
    skipped: u64,
    diary: Diary,
}

impl Book {
    pub(super) fn new(item: Item, sale: Sale, extension: Option<Arc<dyn Extension>>) -> Self {
        Self {
            item,
            sale,
            extension,
            clock: Clock::start(),
            number: 1,
            stock: None,
            store_trouble: None,
            lock_trouble: None,
            holder_trouble: None,
            guarded_by: None,
            sighting: None,
            queue: Vec::new(),
            lanes: Lanes::default(),
            flow: Flow::default(),
            seconds: LastSeconds::default(),
            percentiles: None,
            orders: VecDeque::new(),
            new_orders: 0,
            skipped: 0,
            diary: Diary::default(),
        }
    }

    /// Takes what was read. `true` if another sale has begun, so that what was told before is void.
    pub(super) fn take(&mut self, reading: Reading) -> bool {
        let Reading { followed, glance, sighting, labels } = reading;
        let mut is_new_sale = false;
        let trouble = match glance {
            Ok(glance) => {
                let behind = followed.map(|followed| followed.position);
                is_new_sale = self.compare(&glance.stock, behind, glance.is_same_ledger);
                let known = behind.filter(|_| glance.is_same_ledger);
                self.sold(&glance.stock, known, &glance.orders, glance.step);
                self.stock = Some(glance.stock);
                None
            }
            Err(error) => {
                let trouble = troubles::of_store(error.as_ref(), self.stock.is_some());
                if trouble.kind == "no-sale" && self.stock.take().is_some() {
                    self.forget_sale();
                    is_new_sale = true;
                }
                Some(trouble)
            }
        };
        let trouble = std::mem::replace(&mut self.store_trouble, trouble);
        self.tell_change("store", trouble.as_ref(), self.store_trouble.clone().as_ref());
        let trouble = troubles::of_lock(self.sale.lock_health(), self.lock_trouble.as_ref());
        let trouble = std::mem::replace(&mut self.lock_trouble, trouble);
        self.tell_change("etcd", trouble.as_ref(), self.lock_trouble.clone().as_ref());
        for (lease, instance) in labels {
            self.lanes.lease_is_of(lease, &instance);
        }
        self.see(sighting);
        self.flow.tick(self.stock.as_ref(), &self.clock);
        self.percentiles = self.seconds.tick(&self.sale.metrics().latency);
        self.diary.count(&self.clock, &self.sale);
        self.tell_guard();
        if let Some(extension) = &self.extension {
            for (kind, text) in extension.take_notes() {
                self.diary.note(&self.clock, kind, text);
            }
        }
        is_new_sale
    }

    /// Whether this is another sale than before; notes what is odd.
    fn compare(&mut self, now: &Stock, behind: Option<u64>, is_same_ledger: bool) -> bool {
        let Some(before) = self.stock else { return behind.is_some() };
        let went_back = |then: Fence| {
            let fence = now.fence.filter(|fence| fence.cluster == then.cluster);
            fence.is_none_or(|fence| fence.revision < then.revision)
        };
        let is_rolled_back = before.fence.is_some_and(went_back);
        if is_rolled_back {
            let text = "The store was put back to an earlier state: its fence went down. Orders that were \
                        accepted since then are lost."
                .to_owned();
            self.diary.note(&self.clock, "rolled-back", text);
        }
        let is_other = !is_same_ledger || now.initial != before.initial || now.lucky < before.lucky;
        if is_other {
            self.forget_sale();
            if !is_rolled_back {
                let units = reply::grouped(now.initial);
                let text = format!("A sale of {units} units was started.");
                self.diary.note(&self.clock, "sale-started", text);
            }
        }
        is_other
    }

    /// Another sale begins, or none.
    fn forget_sale(&mut self) {
        self.number += 1;
        self.flow.reset();
        self.orders.clear();
        self.new_orders = 0;
        self.skipped = 0;
    }

    /// Takes the new orders, with the position up to which the ledger was known.
    fn sold(&mut self, now: &Stock, known: Option<u64>, orders: &[Accepted], step: u64) {
        let read = u64::try_from(orders.len()).unwrap_or(u64::MAX);
        let since = known.unwrap_or(0);
        let new = now.orders.saturating_sub(since);
        self.skipped += new.saturating_sub(read);
        if let Some(first) = orders.first().filter(|first| known.is_none() && first.position > 1) {
            self.lanes.unread_before(first);
        }
        self.lanes.sold(orders, step);
        if new == 0 {
            // what is sold without a ledger, maybe since the guard was switched during the sale
            let before = self.stock.map_or(now.lucky, |before| before.lucky);
            let sold = now.lucky.saturating_sub(before);
            self.flow.add(u64::try_from(sold).unwrap_or(0), &[], step);
        } else if known.is_some() || self.stock.is_some() {
            self.flow.add(new, orders, step);
        }
        // what is thinned out is too fast to be read
        let told = if step > 1 { FAST_ORDERS } else { LAST_ORDERS };
        for accepted in &orders[orders.len().saturating_sub(told)..] {
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

    fn see(&mut self, sighting: Option<QueueSnapshot>) {
        if let Some((lease, _)) = self.sale.lease() {
            self.lanes.lease_is_of(lease, self.sale.instance());
        }
        if let Some(sighting) = &sighting {
            self.lanes.see(sighting);
        }
        self.lanes.settle();
        self.lanes.prune();
        let (lanes, clock) = (&self.lanes, &self.clock);
        let view = |claim: &fenced_lock::ObservedClaim| ClaimView {
            token: claim.revision,
            lease: format!("{:x}", claim.lease),
            instance: lanes.instance_of(claim.lease),
            since_ms: clock.ms(claim.since),
        };
        let current = sighting.as_ref().filter(|sighting| sighting.is_current);
        self.queue = current.map_or(Vec::new(), |s| s.queue.iter().take(QUEUE).map(view).collect());
        self.holder_trouble = current.and_then(|s| troubles::of_holder(s, self.queue.first()));
        if let Some(sighting) = &sighting {
            self.diary.see(clock, &sighting.tenures, |lease| lanes.instance_of(lease));
        }
        self.sighting = sighting;
    }

    fn tell_change(&mut self, what: &str, before: Option<&Trouble>, now: Option<&Trouble>) {
        let is_away = |trouble: Option<&Trouble>| trouble.is_some_and(|t| t.kind != "no-sale");
        let is_lost = |trouble: &Trouble| trouble.kind == "lock-lost";
        let (kind, text) = match (is_away(before), is_away(now), what) {
            (false, true, "store") => ("store-away", now.map(|t| t.text.clone())),
            (true, false, "store") => ("store-back", Some("Redis answers again.".to_owned())),
            // the diary tells of a lost session by itself
            (false, true, _) if now.is_some_and(is_lost) => return,
            (false, true, _) => ("etcd-away", now.map(|t| t.text.clone())),
            (true, false, _) if before.is_some_and(is_lost) => {
                let name = self.sale.instance();
                ("etcd-back", Some(format!("{name} has a session with etcd again.")))
            }
            (true, false, _) => ("etcd-back", Some("etcd answers again.".to_owned())),
            _ => return,
        };
        self.diary.note(&self.clock, kind, text.unwrap_or_default());
    }

    fn tell_guard(&mut self) {
        let now = self.sale.guard_status();
        let changed = self.guarded_by.as_ref().is_some_and(|before| *before != now);
        let fence = if now.is_fenced() { "on" } else { "off" };
        let text = format!("The sale is guarded by {} now; the fence is {fence}.", now.description);
        self.guarded_by = Some(now);
        if !changed {
            return;
        }
        self.diary.note(&self.clock, "guard", text);
    }

    /// How far the ledger was followed.
    pub(super) fn followed(&self) -> Option<Followed> {
        let position = self.stock?.orders;
        let newest = self.orders.back().filter(|newest| newest.position == position);
        let order = newest.and_then(|newest| crate::inventory::OrderId::new(&newest.order).ok());
        Some(Followed { position, order })
    }

    /// Whether the queue has claims of whom nobody knows.
    pub(super) fn has_strangers(&self, sighting: &QueueSnapshot) -> bool {
        let leases: BTreeSet<_> = sighting.queue.iter().map(|claim| claim.lease).collect();
        leases.into_iter().any(|lease| self.lanes.instance_of(lease).is_none())
    }

    /// Everything, as it is now.
    pub(super) fn whole(&self) -> View<'_> {
        self.view(Lists {
            tenures: self.lanes.all(&self.clock),
            points: self.flow.points(),
            orders: self.orders.iter().collect(),
            notes: self.diary.notes(),
        })
    }

    /// What is new since this was last asked; the second part tells whether any list has grown.
    pub(super) fn change(&mut self) -> (View<'_>, bool) {
        let tenures = self.lanes.take_changed(&self.clock);
        let skip = self.orders.len().saturating_sub(self.new_orders);
        let lists = Lists {
            tenures,
            points: self.flow.new_points(),
            orders: self.orders.iter().skip(skip).collect(),
            notes: self.diary.new_notes(),
        };
        let has_grown = !(lists.tenures.is_empty()
            && lists.points.is_empty()
            && lists.orders.is_empty()
            && lists.notes.is_empty());
        (self.view(lists), has_grown)
    }

    /// What was new is told.
    pub(super) fn told(&mut self) {
        self.flow.told();
        self.diary.told();
        self.new_orders = 0;
    }

    fn view<'a>(&'a self, lists: Lists<'a>) -> View<'a> {
        let (sale, stock) = (&self.sale, self.stock);
        let mut troubles: Vec<Trouble> = self.store_trouble.iter().cloned().collect();
        troubles.extend(self.lock_trouble.clone());
        troubles.extend(self.holder_trouble.clone());
        troubles.extend(stock.iter().flat_map(troubles::of_stock));
        let guard = sale.guard_status();
        troubles.extend(troubles::of_guard(&guard));
        let sold = stock.map_or(0, |stock| stock.lucky);
        let initial = stock.map_or(0, |stock| stock.initial);
        View {
            sale: self.number,
            instance: sale.instance(),
            item: reply::item_name(&self.item),
            guard: guard.name,
            fence_on: guard.is_fenced(),
            stock: stock.map(stock_view),
            sold,
            oversold: sold.saturating_sub(initial).max(0),
            instances: self.instances(),
            here: here(sale),
            lock: self.lock(),
            rates: self.flow.rates().clone(),
            latency_ms: self.percentiles.clone(),
            skipped: self.skipped,
            troubles,
            demo: self.extension.as_ref().map(|extension| extension.view()),
            lists,
        }
    }

    fn instances(&self) -> Vec<Arc<str>> {
        let mut names: BTreeSet<Arc<str>> = self.flow.instances().cloned().collect();
        names.extend(self.queue.iter().filter_map(|claim| claim.instance.clone()));
        names.extend(self.lanes.instances());
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
            known: self.sighting.as_ref().is_some_and(|sighting| sighting.is_current),
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
    let orders: BTreeMap<_, _> =
        Ending::ALL.iter().map(|ending| (ending.label(), metrics.orders(*ending))).collect();
    let all: u64 = orders.values().sum();
    let fine = [Ending::Reserved, Ending::SoldOut, Ending::Conflict, Ending::Abandoned];
    let fine: u64 = fine.iter().map(|ending| orders[ending.label()]).sum();
    Here {
        waiting: sale.waiting(),
        sold_out: orders[Ending::SoldOut.label()],
        refused: all - fine,
        orders,
        stale_batches: metrics.stale_batches.get(),
        lost_tenures: metrics.lost_tenures.get(),
        lost_sessions: sale.lost_sessions(),
    }
}
