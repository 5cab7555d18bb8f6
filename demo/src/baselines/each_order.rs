//! A lock of the library, taken for each order: shows what it costs without combining.

use fenced_lock::{Guard, LockError, QueueEntry, SessionKeeper, Token};
use flash_sale::sale::SaleError;

use super::connection::unavailable;
use super::per_order::{Limit, OrderLock};

pub(super) struct EachOrder(pub(super) SessionKeeper);

impl OrderLock for EachOrder {
    type Hold = Guard;

    async fn take(&self, name: &str, limit: &Limit) -> Result<Guard, SaleError> {
        let take = async { self.0.session().await?.mutex(name)?.lock().await };
        limit.wait(async { take.await.map_err(|error: LockError| unavailable(error)) }).await
    }

    async fn release(&self, hold: Guard) {
        if let Err(error) = hold.unlock().await {
            tracing::debug!(%error, "the release is unknown: the session repeats it");
        }
    }

    fn token(hold: &Guard) -> Option<Token> {
        Some(hold.token())
    }

    async fn queue(&self, name: &str) -> Result<Vec<QueueEntry>, SaleError> {
        let queue = async { self.0.session().await?.mutex(name)?.queue().await };
        queue.await.map_err(|error: LockError| unavailable(error))
    }

    async fn close(&self) {
        self.0.close().await;
    }
}
