//! What the store acknowledged, so that an older copy of its data is noticed.
//!
//! A Redis that lost its last writes (it was started again without them, a replica that lagged was
//! promoted, a backup was restored) is in good order all the same: only an instance that remembers can
//! tell. So every call sends along what this instance was last told of the item, and the script
//! compares before it writes or answers anything: the fence, which never goes down; the sale; and the
//! latest order of it that was acknowledged here, whose record never changes. That costs one more
//! field in a command that is sent anyway.
//!
//! The first instance that misses something has the script note it in the store (`doubt`), which refuses everybody
//! from then on. Until one that remembers has asked, the others go on.
//!
//! Only what was acknowledged is remembered, never what was merely read: with replicas to wait for,
//! what was read may be lost without anybody having been promised it. Another instance may have been
//! told more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::record::{fence_text, record_text};
use super::{Accepted, Fence, InventoryError, Item};

/// What the store must still have; nothing of an item that it acknowledged nothing of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Acknowledged {
    fence: Option<Fence>,
    /// The latest order's place in the ledger.
    position: u64,
    /// As the scripts take it: the fence, the sale's name in the store, the latest order, its record.
    arguments: [String; 4],
}

/// What a call was told.
pub(super) struct Told<'a> {
    pub(super) fence: Option<Fence>,
    pub(super) sale: String,
    /// Of the accepted orders, the one furthest down the ledger.
    pub(super) latest: Option<&'a Accepted>,
}

impl Acknowledged {
    /// As the scripts take it.
    pub(super) fn arguments(&self) -> &[String; 4] {
        &self.arguments
    }

    fn sale(&self) -> &str {
        &self.arguments[1]
    }

    /// Of two tellings of one sale, whichever says more.
    fn add(&mut self, told: &Told<'_>) {
        let is_lower = |fence: &Fence| {
            self.fence.is_some_and(|known| {
                known.cluster == fence.cluster && known.revision >= fence.revision
            })
        };
        if let Some(fence) = told.fence.filter(|fence| !is_lower(fence)) {
            self.fence = Some(fence);
            self.arguments[0] = fence_text(fence);
        }
        if let Some(latest) = told.latest.filter(|latest| latest.position > self.position) {
            self.position = latest.position;
            latest.order.as_str().clone_into(&mut self.arguments[2]);
            self.arguments[3] = record_text(latest);
        }
    }
}

/// The memory of one instance. It outlives every connection, and has an entry for each item that the
/// store has acknowledged something of.
#[derive(Debug, Default)]
pub(super) struct Memory(Mutex<HashMap<Item, Entry>>);

#[derive(Debug, Default)]
struct Entry {
    acknowledged: Arc<Acknowledged>,
    /// Set when the store was seen to lack it, or to lack what another instance was told, until it has
    /// it again.
    is_missed: bool,
}

impl Memory {
    /// What the store must have of `item`.
    pub(super) fn of(&self, item: &Item) -> Arc<Acknowledged> {
        self.entries().get(item).map(|entry| Arc::clone(&entry.acknowledged)).unwrap_or_default()
    }

    /// Remembers what a call was told that had been sent with `asked`.
    pub(super) fn learn(&self, item: &Item, asked: &Acknowledged, told: &Told<'_>) {
        let mut entries = self.entries();
        let entry = entries.entry(item.clone()).or_default();
        let known = Arc::make_mut(&mut entry.acknowledged);
        if told.sale != known.sale() {
            if known.sale() != asked.sale() {
                // two calls learned of two sales, and which is the later one the next call will tell
                return;
            }
            // the store checked that it is a later sale than the one that was asked with
            let arguments = [String::new(), told.sale.clone(), String::new(), String::new()];
            *known = Acknowledged { arguments, ..Acknowledged::default() };
        }
        known.add(told);
    }

    /// Notes whether the store has what it acknowledged of `item`: one line in the log when that
    /// changes, not one for each order.
    pub(super) fn note<T>(&self, item: &Item, answer: &Result<T, InventoryError>) {
        match answer {
            Err(InventoryError::RolledBack { what }) if self.set_missed(item, true) => {
                tracing::error!(
                    %item,
                    "the store was rolled back: {what}. Nothing of this item is sold here until the right \
                     data are back, the sale is started afresh, or the loss is accepted with `flash-sale \
                     recover store`"
                );
            }
            // no sale, and none that is missed
            Ok(_) | Err(InventoryError::UnknownItem) if self.set_missed(item, false) => {
                tracing::warn!(%item, "the store has again what it acknowledged, or a later sale");
            }
            Err(InventoryError::Damaged { .. }) => self.know(item),
            _ => {}
        }
    }

    /// Has an item that is damaged be among those that are [looked at](Self::items).
    pub(super) fn know(&self, item: &Item) {
        self.entries().entry(item.clone()).or_default();
    }

    /// Up to `most` of the items that something is remembered of: those first that the store lacks something
    /// of, and one at least that it does not.
    pub(super) fn items(&self, most: usize) -> Vec<Item> {
        let entries = self.entries();
        let (missed, others): (Vec<_>, Vec<_>) =
            entries.iter().partition(|(_, entry)| entry.is_missed);
        missed
            .into_iter()
            .take(most - 1)
            .chain(others)
            .take(most)
            .map(|(item, _)| item.clone())
            .collect()
    }

    /// How many items the store lacks something of.
    pub(super) fn missed(&self) -> usize {
        self.entries().values().filter(|entry| entry.is_missed).count()
    }

    /// `true` if that is news.
    fn set_missed(&self, item: &Item, is_missed: bool) -> bool {
        let mut entries = self.entries();
        // another instance may miss something of an item that nothing is remembered of here
        let entry = match entries.get_mut(item) {
            Some(entry) => entry,
            None if is_missed => entries.entry(item.clone()).or_default(),
            None => return false,
        };
        std::mem::replace(&mut entry.is_missed, is_missed) != is_missed
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<Item, Entry>> {
        // nothing panics while it is held; and if it did, each entry would still be whole
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{OrderId, Quantity, User};
    use fenced_lock::ClusterId;

    fn accepted(position: u64) -> Accepted {
        Accepted {
            position,
            order: OrderId::new(&format!("order-{position}")).expect("visible ASCII"),
            quantity: Quantity::ONE,
            user: User::default(),
            remaining: 7,
            instance: "8080".into(),
            token: None,
        }
    }

    fn told(sale: &str, revision: i64, latest: Option<&'static Accepted>) -> Told<'static> {
        let fence = Some(Fence { cluster: ClusterId(1), revision });
        Told { fence, sale: sale.into(), latest }
    }

    /// Answers that overtake each other never make the memory older, and a sale that was learned of
    /// meanwhile is not forgotten for the answer to a call that was sent before.
    #[test]
    fn the_memory_never_gets_older() {
        let (memory, item) = (Memory::default(), Item::DEFAULT);
        let order = |position| -> &'static Accepted { Box::leak(Box::new(accepted(position))) };
        let before = memory.of(&item);
        assert_eq!(*before.arguments(), ["", "", "", ""]);
        memory.learn(&item, &before, &told("first", 3, Some(order(5))));
        memory.learn(&item, &before, &told("first", 2, Some(order(4))));
        let first = memory.of(&item);
        assert_eq!(*first.arguments(), ["1 3", "first", "order-5", "5\t1\t7\t\t8080\t"]);

        memory.learn(&item, &first, &told("second", 9, None));
        assert_eq!(*memory.of(&item).arguments(), ["1 9", "second", "", ""]);
        memory.learn(&item, &before, &told("first", 3, Some(order(6))));
        assert_eq!(*memory.of(&item).arguments(), ["1 9", "second", "", ""]);
    }
}
