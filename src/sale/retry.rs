//! Sending a write again until its outcome is known. An order whose outcome stays unknown is answered by
//! [`SaleError::OutcomeUnknown`](super::SaleError::OutcomeUnknown).

use std::sync::Arc;

use tokio::time::sleep;

use crate::backoff::Backoff;
use crate::inventory::InventoryError;

/// Sends a write, and again after a failure for as long as it `may_repeat`. Repeating must change nothing: an order keeps
/// its id, and a sale its own. Returns the latest answer, and the error of an attempt that was sent and not answered, if there was
/// one. Of several, the latest one that [may still arrive](InventoryError::may_still_arrive) at the store counts.
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
