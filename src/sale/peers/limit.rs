//! How long an order waits.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::sale::SaleError;

/// A wait ends when its time is over, and when nobody waits any more.
pub(super) struct Limit {
    deadline: Instant,
    waited: Duration,
    gone: CancellationToken,
}

impl Limit {
    /// At most `limit` from now on, until `gone`.
    pub(super) fn new(limit: Duration, gone: CancellationToken) -> Self {
        Self { deadline: Instant::now() + limit, waited: limit, gone }
    }

    /// Waits for `work` as long as that is allowed, and then drops it.
    pub(super) async fn wait<T>(
        &self,
        work: impl Future<Output = Result<T, SaleError>>,
    ) -> Result<T, SaleError> {
        tokio::select! {
            biased;
            () = self.gone.cancelled() => Err(SaleError::Stopping),
            result = timeout_at(self.deadline, work) => {
                result.unwrap_or(Err(SaleError::WaitTooLong { waited: self.waited }))
            }
        }
    }
}
