//! Selling without what was taken away. For tests: see [`crate::defence`].

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::error::from_read;
use super::guard::SaleGuard;
use super::order_queue::WaitingOrder;
use super::tenure::{self, lock_name};
use super::{Inner, Look, Sale, SaleError};
use crate::defence::Defence;
use crate::fault::{self, Point};
use crate::inventory::{InventoryError, Order, OrderId, Outcome};

/// How long a handler may take that does everything itself: less than the store may.
const HANDLER_TIMEOUT: Duration = Duration::from_secs(1);

impl Sale {
    /// Takes the order's units in the request's own future: who goes away, or is given up after a
    /// second, leaves its effect to chance. Whatever fails is told as if nothing had been taken.
    pub(super) async fn reduce_in_the_request(&self, order: Order) -> Result<Outcome, SaleError> {
        if let Look::Answer(outcome) = self.look(&order).await? {
            return Ok(outcome);
        }
        let waited = HANDLER_TIMEOUT;
        let sold = timeout(waited, self.sell(&order)).await;
        sold.unwrap_or(Err(SaleError::WaitTooLong { waited }))
    }

    async fn sell(&self, order: &Order) -> Result<Outcome, SaleError> {
        let Inner { inventory, guards, options, .. } = &*self.0;
        let tenure = match guards.current() {
            SaleGuard::Distributed { sessions, lock_name: base, .. } => {
                let name = lock_name(base, &order.item);
                let waited = options.wait_timeout;
                Some(tenure::take(sessions, &name, Instant::now() + waited, waited).await?)
            }
            SaleGuard::Local(_) | SaleGuard::Peer(_) | SaleGuard::Nothing => None,
        };
        fault::at(Point::AfterGrant).await;
        let token = tenure.as_ref().map(|tenure| tenure.guard.token());
        let batch = std::slice::from_ref(order);
        let reduced = inventory.reduce(&order.item, token, &options.instance, batch).await;
        let mut outcomes = reduced.map_err(|error| from_read(error, &order.item))?;
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
