//! Reads that must not delay orders: the state of an item, single orders, pages of the ledger, and whether an item exists.
//!
//! These reads have a connection of their own; callers share reads of a state and of an order. Calls about an item, except the
//! start of a sale and the deletion of a replaced one, first check here that the item exists, since clients can make up any
//! number of names. An item without a sale is remembered for a second,
//! an item with one for the life of the process.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

use super::SaleError;
use super::shared_reads::SharedReads;
use crate::inventory::{
    Accepted, Inventory, InventoryError, Item, LedgerPage, LedgerPosition, OrderId, Sales, Stock,
    User, order_key,
};
use crate::throttle::Pace;

/// How long an item without a sale is remembered. A sale that starts at another instance is seen after at most this time.
const ABSENT_FOR: Duration = Duration::from_secs(1);

const MAX_ABSENT: usize = 4096;

/// How many items are read at once, and how long a further read waits for a place.
const MAX_LOOKUPS: usize = 64;
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The reads of all items at one instance.
pub struct Reads {
    inventory: Inventory,
    pages: Pace,
    /// Separate from `pages`: those need a token, and a client without one must not delay them.
    sales: Pace,
    places: Arc<Semaphore>,
    items: Mutex<Items>,
    stocks: Arc<SharedReads<(), Stock>>,
    /// By the key of an order: the id of the sale, and the order, if it was accepted.
    orders: Arc<SharedReads<String, (String, Option<Accepted>)>>,
}

#[derive(Default)]
struct Items {
    known: HashSet<Item>,
    /// When each item without a sale was looked for.
    absent: HashMap<Item, Instant>,
}

impl Reads {
    pub(super) fn new(inventory: &Inventory) -> Self {
        let inventory = inventory.over_another_connection();
        let places = Arc::new(Semaphore::new(MAX_LOOKUPS));
        let of = (inventory.clone(), Arc::clone(&places));
        let stocks = SharedReads::by(move |item, callers: Vec<()>| {
            let (inventory, places) = of.clone();
            async move {
                let _place = place(&places).await?;
                let stock = inventory.stock(&item).await?;
                Ok(callers.iter().map(|()| Ok(stock.clone())).collect())
            }
        });
        let of = (inventory.clone(), Arc::clone(&places));
        let orders = SharedReads::by(move |item, keys: Vec<String>| {
            let (inventory, places) = of.clone();
            async move {
                let _place = place(&places).await?;
                let found = inventory.look_up(&item, &keys).await?;
                let seen = |order: Result<_, _>| order.map(|order| (found.sale.clone(), order));
                Ok(found.orders.into_iter().map(seen).collect())
            }
        });
        let (pages, sales) = (Pace::default(), Pace::default());
        Self { inventory, pages, sales, places, items: Mutex::default(), stocks, orders }
    }

    /// The state of `item`, read at one moment after the call. Concurrent calls share a read.
    ///
    /// # Errors
    /// See [`SaleError`].
    pub async fn stock(&self, item: &Item) -> Result<Stock, SaleError> {
        self.check(item).await?;
        self.stocks.read(item, ()).await
    }

    /// The id of the sale, and the accepted order with this id and user, if there is one.
    ///
    /// # Errors
    /// See [`SaleError`].
    pub async fn order(
        &self,
        item: &Item,
        id: &OrderId,
        user: &User,
    ) -> Result<(String, Option<Accepted>), SaleError> {
        self.check(item).await?;
        self.orders.read(item, order_key(id, user)).await
    }

    /// The running sale of `item`, and the sales that were replaced and are kept.
    ///
    /// # Errors
    /// See [`SaleError`].
    pub async fn sales(&self, item: &Item) -> Result<Sales, SaleError> {
        self.check(item).await?;
        let (inventory, of) = (self.inventory.clone(), item.clone());
        let sales = self.sales.run(async move { inventory.sales(&of).await }).await;
        sales.ok_or(SaleError::TooManyReads)?.map_err(|error| SaleError::of_read(error, item))
    }

    /// Whether `item` is known to exist. The default item counts as known: there is only one.
    pub(super) fn is_known(&self, item: &Item) -> bool {
        let is_default = *item == Item::DEFAULT && !self.inventory.has_named_items_only();
        is_default || self.items.lock().known.contains(item)
    }

    /// Fails if `item` has no sale, in any state. The default item needs none.
    pub(crate) async fn check(&self, item: &Item) -> Result<(), SaleError> {
        if self.is_known(item) {
            return Ok(());
        }
        let failed = |error| SaleError::of_read(error, item);
        let asked_at = Instant::now();
        let absent_at = self.items.lock().absent.get(item).copied();
        if absent_at.is_some_and(|at| asked_at - at < ABSENT_FOR) {
            return Err(failed(InventoryError::UnknownItem));
        }
        let _place = place(&self.places).await.map_err(failed)?;
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

    /// Notes that a sale of `item` was started here, or may have been (`is_known` is false).
    pub(super) fn started(&self, item: &Item, is_known: bool) {
        let mut items = self.items.lock();
        items.absent.remove(item);
        if is_known {
            items.known.insert(item.clone());
        }
    }

    /// A page of up to `limit` entries of the ledger. An instance reads one page at a time.
    ///
    /// # Errors
    /// See [`SaleError`].
    pub async fn ledger(
        &self,
        item: &Item,
        from: LedgerPosition,
        limit: u32,
    ) -> Result<LedgerPage, SaleError> {
        self.check(item).await?;
        let (inventory, of) = (self.inventory.clone(), item.clone());
        let page = self.pages.run(async move { inventory.ledger(&of, from, limit).await }).await;
        page.ok_or(SaleError::TooManyReads)?.map_err(|error| SaleError::of_read(error, item))
    }
}

/// A place among the items that are read at once, or an error after [`LONGEST_WAIT`].
async fn place(places: &Semaphore) -> Result<SemaphorePermit<'_>, InventoryError> {
    let place = timeout(LONGEST_WAIT, places.acquire()).await.ok();
    place.and_then(Result::ok).ok_or_else(InventoryError::too_late)
}
