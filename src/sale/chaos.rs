//! Selling without what was taken away. For tests: see [`crate::defence`].

use std::time::Duration;

use tokio::time::timeout;

use super::order_queue::WaitingOrder;
use super::{EtcdLock, SaleError, StockCheck};
use crate::defence::Defence;
use crate::fault::{self, Point};
use crate::inventory::{InventoryError, Order, OrderId, Outcome};

/// How long a handler may take that does everything itself: less than the store may.
const HANDLER_TIMEOUT: Duration = Duration::from_secs(1);

impl EtcdLock {
    /// Takes the order's units in the request's own future: who goes away, or is given up after a
    /// second, leaves its effect to chance. Whatever fails is told as if nothing had been taken.
    pub(super) async fn reduce_in_the_request(&self, order: Order) -> Result<Outcome, SaleError> {
        if let StockCheck::Answer(outcome) = self.context.check_stock(&order).await? {
            return Ok(outcome);
        }
        let waited = HANDLER_TIMEOUT;
        let sold = timeout(waited, self.sell(&order)).await;
        sold.unwrap_or(Err(SaleError::WaitTooLong { waited }))
    }

    async fn sell(&self, order: &Order) -> Result<Outcome, SaleError> {
        let tenure = self.take(&order.item).await?;
        fault::at(Point::AfterGrant).await;
        let (token, instance) = (Some(tenure.guard.token()), &self.context.options.instance);
        let batch = std::slice::from_ref(order);
        let reduced = self.context.inventory.reduce(&order.item, token, instance, batch).await;
        let mut outcomes = reduced.map_err(|error| SaleError::of_read(error, &order.item))?;
        fault::at(Point::BeforeRelease).await;
        let missing = || SaleError::StoreUnavailable { source: "one order, and no outcome".into() };
        outcomes.pop().ok_or_else(missing)
    }
}

/// Gives the orders of a batch that will be sent again new ids, if it was not answered.
pub(super) fn rename(batch: &mut [WaitingOrder], error: &InventoryError) {
    if Defence::CarefulRetry.is_on() || error.nothing_written() {
        return;
    }
    for waiting in batch {
        let id = waiting.order.id.as_str();
        let (first, attempt) = id.rsplit_once('~').unwrap_or((id, "1"));
        let attempt = attempt.parse().unwrap_or(1_u32) + 1;
        // one that is too long has no room for more
        let renamed = OrderId::new(&format!("{first}~{attempt}"));
        waiting.order.id = renamed.unwrap_or_else(|_| OrderId::random());
    }
}
