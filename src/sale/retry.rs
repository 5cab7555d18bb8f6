//! Sending a write again until its outcome is known.

use std::sync::Arc;

use tokio::time::sleep;

use crate::backoff::Backoff;
use crate::inventory::InventoryError;

/// Why a write has no outcome.
pub(super) struct Failed {
    /// The failure of the latest attempt.
    pub(super) latest: Arc<InventoryError>,
    /// The failure of an attempt that was sent and not answered, if there was one: the write may have been done.
    pub(super) unknown: Option<Arc<InventoryError>>,
}

/// Sends a write, and again after a failure for as long as it `may_repeat`. Repeating must change nothing: an order keeps
/// its id, and a sale is started again under the same hold of the lock.
pub(super) async fn until_known<T, F>(
    send: impl Fn() -> F,
    may_repeat: impl Fn(&InventoryError) -> bool,
) -> Result<T, Failed>
where
    F: Future<Output = Result<T, Arc<InventoryError>>>,
{
    let mut pauses = Backoff::default();
    let mut unknown = None;
    loop {
        let latest = match send().await {
            Ok(outcome) => return Ok(outcome),
            Err(error) => error,
        };
        if !latest.nothing_written() {
            unknown.get_or_insert_with(|| Arc::clone(&latest));
        }
        if !may_repeat(&latest) {
            return Err(Failed { latest, unknown });
        }
        sleep(pauses.next()).await;
    }
}
