//! One order under a lock of its own.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::SaleError;
use super::error::from_store;
use super::tenure::{Tenure, unavailable};
use crate::inventory::{Inventory, InventoryError, Order, Outcome};
use crate::lock::LockError;

/// How one tenure ended for an order.
pub(super) enum Attempt {
    /// With an answer, or an error that another tenure would not mend.
    Ended(Result<Outcome, SaleError>),
    /// The lock was lost on the way, which is all that went wrong; another tenure may mend it.
    /// `silence` is there if the order was sent and not answered.
    LockLost { error: SaleError, silence: Option<InventoryError> },
}

/// Reduces the stock under the lock, then releases it.
pub(super) async fn under_lock(
    inventory: Inventory,
    mut tenure: Tenure,
    instance: String,
    order: Order,
    deadline: Instant,
) -> Attempt {
    let attempt = reduce_stock(&inventory, &mut tenure, &instance, &order, deadline).await;
    // the answer stands whenever the release is done: it goes on in the background
    drop(tenure.guard);
    attempt
}

/// The step that touches the stock. It takes the lock itself, for the owner that was passed in: it is
/// right on its own, and costs nothing where the owner holds the lock already.
///
/// A lost answer is not a failure: the same order is sent again, under the same token, as long as
/// the lock is held.
async fn reduce_stock(
    inventory: &Inventory,
    tenure: &mut Tenure,
    instance: &str,
    order: &Order,
    deadline: Instant,
) -> Attempt {
    let guard = match tenure.mutex.lock_as(&mut tenure.owner).await {
        Ok(guard) => guard,
        Err(LockError::Lost) => {
            return Attempt::LockLost { error: unavailable(LockError::Lost), silence: None };
        }
        Err(error) => return Attempt::Ended(Err(unavailable(error))),
    };
    let mut silence = None;
    let mut pause = Duration::from_millis(10);
    loop {
        let batch = std::slice::from_ref(order);
        let reduced = inventory.reduce(&order.item, Some(guard.token()), instance, batch).await;
        let error = match reduced.map(|mut outcomes| outcomes.pop()) {
            Ok(Some(outcome)) => return Attempt::Ended(Ok(outcome)),
            Ok(None) => InventoryError::InvalidArgument("one order, and no outcome"),
            Err(InventoryError::StaleToken { .. }) => {
                return Attempt::LockLost { error: SaleError::StaleToken, silence };
            }
            Err(error) => error,
        };
        let can_repeat = error.is_retryable() && Instant::now() + pause < deadline;
        tracing::warn!(order = order.id.as_str(), ?error, can_repeat, "the store did not reduce");
        if !can_repeat || guard.is_lost() {
            // silence outweighs a later refusal: the order may stand
            let error = silence.unwrap_or(error);
            return if can_repeat {
                let silence = Some(error).filter(|error| !error.nothing_written());
                Attempt::LockLost { error: unavailable(LockError::Lost), silence }
            } else {
                Attempt::Ended(Err(from_store(error.into(), order)))
            };
        }
        if !error.nothing_written() {
            silence = Some(error);
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}
