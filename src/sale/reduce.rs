//! One order under a lock of its own.

use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{LockError, SessionKeeper};
use tokio::time::{Instant, sleep};

use super::tenure::{self, Tenure, unavailable};
use super::{SaleContext, SaleError};
use crate::inventory::{InventoryError, Order, Outcome};

/// Takes the lock for one order, reduces the stock, and releases the lock.
pub(super) async fn under_own_lock(
    context: &Arc<SaleContext>,
    sessions: &SessionKeeper,
    lock_name: &str,
    order: Order,
) -> Result<Outcome, SaleError> {
    let waited = context.options.wait_timeout;
    let deadline = Instant::now() + waited;
    let (mut silence, mut latest_loss) = (None, None);
    let mut pause = Duration::from_millis(10);
    loop {
        let asked_at = Instant::now();
        let tenure = match tenure::take(sessions, lock_name, deadline, waited).await {
            Ok(tenure) => tenure,
            Err(error) => {
                let error = latest_loss.unwrap_or(error);
                return Err(unknown_if_sent(silence, &order, error));
            }
        };
        // in a task of its own: from here on the order is carried out, also if its buyer disconnects
        let attempt = context.tasks.spawn(under_lock(
            Arc::clone(context),
            asked_at,
            tenure,
            order.clone(),
            // the store has its own time: a tenure is not given up because the wait for it was long
            Instant::now() + waited,
        ));
        match attempt.await {
            Ok(Attempt::Ended(result)) => {
                return result.map_err(|error| unknown_if_sent(silence, &order, error));
            }
            Ok(Attempt::LockLost { error, silence: latest }) => {
                silence = silence.or(latest);
                latest_loss = Some(error);
            }
            Err(failed) => {
                let order = order.id;
                return Err(SaleError::OutcomeUnknown { order, source: failed.into() });
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

/// Once an order was sent and not answered, its outcome is unknown, whatever failed later.
fn unknown_if_sent(silence: Option<InventoryError>, order: &Order, error: SaleError) -> SaleError {
    silence.map_or(error, |silence| SaleError::of_order(silence, order))
}

/// The result of one tenure for an order.
enum Attempt {
    /// An answer, or an error that another tenure would not change.
    Ended(Result<Outcome, SaleError>),
    /// The lock was lost: another tenure can succeed. `silence` is set if the order was sent and not
    /// answered.
    LockLost { error: SaleError, silence: Option<InventoryError> },
}

/// Reduces the stock under the lock, then releases it.
async fn under_lock(
    context: Arc<SaleContext>,
    asked_at: Instant,
    mut tenure: Tenure,
    order: Order,
    deadline: Instant,
) -> Attempt {
    let _tenure = context.metrics.granted(asked_at);
    let attempt = reduce_stock(&context, &mut tenure, &order, deadline).await;
    if let Attempt::LockLost { .. } = attempt {
        context.metrics.lost();
    }
    // the release goes on in the background
    drop(tenure.guard);
    attempt
}

/// The step that changes the stock. It takes the lock itself for the given owner, so it is correct on its own;
/// re-entry costs nothing.
///
/// A lost answer is not a failure: the same order is sent again, under the same token, while the lock is
/// held.
async fn reduce_stock(
    context: &SaleContext,
    tenure: &mut Tenure,
    order: &Order,
    deadline: Instant,
) -> Attempt {
    let SaleContext { inventory, options, metrics, .. } = context;
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
        let sent_at = Instant::now();
        let reduced =
            inventory.reduce(&order.item, Some(guard.token()), &options.instance, batch).await;
        metrics.batch(1, sent_at, &reduced);
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
            // an attempt without an answer outweighs a later refusal: the order may have been accepted
            let error = silence.unwrap_or(error);
            return if can_repeat {
                let silence = Some(error).filter(|error| !error.nothing_written());
                Attempt::LockLost { error: unavailable(LockError::Lost), silence }
            } else {
                Attempt::Ended(Err(SaleError::of_order(error, order)))
            };
        }
        if !error.nothing_written() {
            silence = Some(error);
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}
