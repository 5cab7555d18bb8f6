//! Sends a write again until its outcome is known. If the outcome stays unknown, the order gets
//! [`SaleError::OutcomeUnknown`](super::SaleError::OutcomeUnknown).

use std::sync::Arc;

use tokio::time::sleep;

use crate::backoff::Backoff;
use crate::inventory::InventoryError;

/// Sends a write, and again after a failure while it `may_repeat`. A repeated write must change nothing: an order keeps its id,
/// and so does a sale. Returns the latest answer, and the error of an attempt that may have been carried out, if there was one:
/// of several, the latest that [may still arrive](InventoryError::may_still_arrive) at the store, or else the latest.
pub(super) async fn until_known<T, F>(
    send: impl Fn() -> F,
    may_repeat: impl Fn(&Arc<InventoryError>) -> bool,
) -> (Result<T, Arc<InventoryError>>, Option<Arc<InventoryError>>)
where
    F: Future<Output = Result<T, InventoryError>>,
{
    let mut pauses = Backoff::default();
    let mut unanswered: Option<Arc<InventoryError>> = None;
    loop {
        let error = match send().await {
            Ok(answer) => return (Ok(answer), unanswered),
            Err(error) => Arc::new(error),
        };
        let has_arrived = unanswered.as_ref().is_none_or(|known| !known.may_still_arrive());
        if error.may_still_arrive() || !error.nothing_written() && has_arrived {
            unanswered = Some(Arc::clone(&error));
        }
        if !may_repeat(&error) {
            return (Err(error), unanswered);
        }
        sleep(pauses.next()).await;
    }
}
