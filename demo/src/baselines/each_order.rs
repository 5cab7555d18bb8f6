//! A lock of the library, taken for each order: shows what it costs without combining.

use fenced_lock::{Guard, LockError, QueueEntry, SessionKeeper, Token};
use flash_sale::sale::SaleError;

use super::etcd_locks::unavailable;
use super::per_order::OrderLock;

pub(super) struct EachOrder(pub(super) SessionKeeper);

impl OrderLock for EachOrder {
    /// The name of the lock, and the hold once it is granted.
    type Claim = (String, Option<Guard>);

    async fn claim(&self, name: &str) -> Result<Self::Claim, SaleError> {
        Ok((name.to_owned(), None))
    }

    async fn wait(&self, (name, hold): &mut Self::Claim) -> Result<Option<Token>, SaleError> {
        let take = async { self.0.session().await?.mutex(name)?.lock().await };
        let guard = take.await.map_err(|error: LockError| unavailable(error))?;
        Ok(Some(hold.insert(guard).token()))
    }

    async fn withdraw(&self, (_, hold): Self::Claim) {
        if let Some(guard) = hold
            && let Err(error) = guard.unlock().await
        {
            tracing::debug!(%error, "the release is unknown: the session repeats it");
        }
    }

    async fn queue(&self, name: &str) -> Result<Vec<QueueEntry>, SaleError> {
        let queue = async { self.0.session().await?.mutex(name)?.queue().await };
        queue.await.map_err(|error: LockError| unavailable(error))
    }

    async fn close(&self) {
        self.0.close().await;
    }
}
