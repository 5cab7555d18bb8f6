//! Reads that must not delay orders: pages of the ledger, and whether an item exists.
//!
//! They have a connection of their own. Orders and questions about an item that this instance does not know come here
//! first, since a client can make up any number of names. What was found to have no sale is remembered for a second, and
//! what exists for the life of the process.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::SaleError;
use crate::inventory::{Inventory, InventoryError, Item, LedgerPage, LedgerPosition};
use crate::throttle::Pace;

/// How long an item without a sale is remembered: so late, at most, a sale that starts at another instance is seen.
const ABSENT_FOR: Duration = Duration::from_secs(1);

/// The most items without a sale that are remembered.
const MAX_ABSENT: usize = 4096;

/// The most items that are looked up at once, and how long another one waits.
const MAX_LOOKUPS: usize = 64;
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Reads {
    inventory: Inventory,
    pages: Pace,
    lookups: Semaphore,
    items: Mutex<Items>,
}

#[derive(Default)]
struct Items {
    known: HashSet<Item>,
    /// Items that had no sale at this time.
    absent: HashMap<Item, Instant>,
}

impl Reads {
    pub(super) fn new(inventory: &Inventory) -> Self {
        Self {
            inventory: inventory.over_another_connection(),
            pages: Pace::default(),
            lookups: Semaphore::new(MAX_LOOKUPS),
            items: Mutex::default(),
        }
    }

    /// Whether `item` is known to exist. The default item counts as known: there is only one.
    pub(super) fn is_known(&self, item: &Item) -> bool {
        let is_default = *item == Item::DEFAULT && !self.inventory.has_named_items_only();
        is_default || self.items.lock().known.contains(item)
    }

    /// Fails for an item without a sale.
    pub(super) async fn check(&self, item: &Item) -> Result<(), SaleError> {
        if self.is_known(item) {
            return Ok(());
        }
        let failed = |error| SaleError::of_read(error, item);
        let asked_at = Instant::now();
        let absent_at = self.items.lock().absent.get(item).copied();
        if absent_at.is_some_and(|at| asked_at - at < ABSENT_FOR) {
            return Err(failed(InventoryError::UnknownItem));
        }
        let place = timeout(LONGEST_WAIT, self.lookups.acquire()).await;
        let _place = place.map_err(|_| failed(InventoryError::too_late()))?;
        let exists = self.inventory.exists(item).await.map_err(failed)?;
        let mut items = self.items.lock();
        if exists {
            items.known.insert(item.clone());
            return Ok(());
        }
        if items.absent.len() >= MAX_ABSENT {
            items.absent.clear();
        }
        items.absent.insert(item.clone(), asked_at);
        Err(failed(InventoryError::UnknownItem))
    }

    /// Notes that a sale of `item` was started here, or that it may have been.
    pub(super) fn started(&self, item: &Item, is_known: bool) {
        let mut items = self.items.lock();
        items.absent.remove(item);
        if is_known {
            items.known.insert(item.clone());
        }
    }

    /// See [`Sale::ledger`](super::Sale::ledger).
    pub(super) async fn page(
        &self,
        item: &Item,
        from: LedgerPosition,
        limit: u32,
    ) -> Result<LedgerPage, SaleError> {
        let (inventory, of) = (self.inventory.clone(), item.clone());
        let page = self.pages.run(async move { inventory.ledger(&of, from, limit).await }).await;
        page.ok_or(SaleError::TooManyReads)?.map_err(|error| SaleError::of_read(error, item))
    }
}
