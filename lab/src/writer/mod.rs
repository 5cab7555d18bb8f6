//! Other ways to write a batch: without the fence, the order ids or the atomic ledger, and with faults at
//! points around the write. Plugged into the inventory as its [`BatchWriter`].

mod unfenced;
mod weak;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use fenced_lock::Token;
use flash_sale::inventory::{BatchWriter, Inventory, InventoryError, Item, Order, Outcome};
use futures_util::future::BoxFuture;

use crate::fault::{self, Point};

/// Writes batches as the service does, unless something was taken away.
#[derive(Debug)]
pub struct Writer {
    fence: AtomicBool,
    order_ids: AtomicBool,
    atomic_ledger: AtomicBool,
    /// The token of each item's latest batch.
    latest: Mutex<HashMap<Item, Token>>,
}

/// What a [`Writer`] can do without. Each is described by what happens without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteDefence {
    /// The step under the lock is to read, to decide, and to write what was decided, and no token is
    /// compared: the write of a program that trusts the lock alone. A holder that is paused between reading
    /// and writing undoes what the next one sold.
    Fence,
    /// An order id that is known already is taken again.
    OrderIds,
    /// Stock and ledger are written by two commands: first the stock, then the units sold with the
    /// ledger. A holder that dies in between has taken units for nobody.
    AtomicLedger,
}

impl WriteDefence {
    /// All there are.
    pub const ALL: [Self; 3] = [Self::Fence, Self::OrderIds, Self::AtomicLedger];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fence => "fence",
            Self::OrderIds => "order-ids",
            Self::AtomicLedger => "atomic-ledger",
        }
    }
}

impl Default for Writer {
    fn default() -> Self {
        let [fence, order_ids, atomic_ledger] = [true; 3].map(AtomicBool::new);
        Self { fence, order_ids, atomic_ledger, latest: Mutex::default() }
    }
}

impl Writer {
    /// Whether it is there.
    pub fn has(&self, defence: WriteDefence) -> bool {
        self.switch_of(defence).load(Ordering::Relaxed)
    }

    /// Takes it away, or brings it back.
    pub fn set(&self, defence: WriteDefence, on: bool) {
        self.switch_of(defence).store(on, Ordering::Relaxed);
    }

    /// The names of those that are off.
    pub fn without(&self) -> Vec<&'static str> {
        let off = WriteDefence::ALL.into_iter().filter(|defence| !self.has(*defence));
        off.map(WriteDefence::name).collect()
    }

    /// Whether a batch was written under this token, and none since under another one of its item.
    pub(crate) fn has_written_under(&self, token: Token) -> bool {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).values().any(|it| *it == token)
    }

    /// Notes a batch of `item` under `token`; whether it is the first.
    fn is_first_under(&self, token: Token, item: &Item) -> bool {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.insert(item.clone(), token) != Some(token)
    }

    fn switch_of(&self, defence: WriteDefence) -> &AtomicBool {
        match defence {
            WriteDefence::Fence => &self.fence,
            WriteDefence::OrderIds => &self.order_ids,
            WriteDefence::AtomicLedger => &self.atomic_ledger,
        }
    }

    async fn write(
        &self,
        inventory: &Inventory,
        item: &Item,
        token: Option<Token>,
        instance: &str,
        orders: &[&Order],
    ) -> Result<Vec<Outcome>, InventoryError> {
        if token.is_some_and(|token| self.is_first_under(token, item)) {
            fault::at(Point::AfterGrant).await;
        }
        let has_ids = self.has(WriteDefence::OrderIds);
        if let Some(token) = token.filter(|_| !self.has(WriteDefence::Fence)) {
            let instance = instance.replace(char::is_control, "?");
            return unfenced::reduce(inventory, item, token, &instance, orders, has_ids).await;
        }
        fault::at(Point::BeforeWrite).await;
        let is_atomic = self.has(WriteDefence::AtomicLedger);
        let outcomes = if has_ids && is_atomic {
            fault::once_sent(inventory.reduce_by_script(item, token, instance, orders)).await?
        } else {
            weak::reduce(inventory, item, token, instance, orders, has_ids, is_atomic).await?
        };
        fault::at(Point::AfterAnswer).await;
        Ok(outcomes)
    }
}

impl BatchWriter for Writer {
    fn reduce<'a>(
        &'a self,
        inventory: &'a Inventory,
        item: &'a Item,
        token: Option<Token>,
        instance: &'a str,
        orders: &'a [&'a Order],
    ) -> BoxFuture<'a, Result<Vec<Outcome>, InventoryError>> {
        Box::pin(self.write(inventory, item, token, instance, orders))
    }
}

/// A token as the store has it.
fn token_text(token: Token) -> String {
    format!("{:x} {}", token.cluster().0, token.revision())
}
