//! Starting a sale afresh.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::error::from_start;
use super::guard::SaleGuard;
use super::tenure::{self, lock_name};
use super::{Inner, Sale, SaleError};
use crate::inventory::{Item, Stock};

/// How long to wait before a fresh start that the store did not answer is tried again.
const START_PAUSE: Duration = Duration::from_millis(200);

impl Sale {
    /// Starts a sale of `item` afresh: stock `units`, lucky 0, no orders. Returns the new state.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have started the sale. Starting it again is safe as long as
    /// nobody has ordered since.
    ///
    /// # Errors
    /// See [`SaleError`].
    pub async fn start(&self, item: &Item, units: u64) -> Result<Stock, SaleError> {
        self.check_open()?;
        let Inner { inventory, options, .. } = &*self.0;
        let tenure = match self.0.guards.current() {
            SaleGuard::Distributed { sessions, lock_name: base, .. } => {
                let waited = options.wait_timeout;
                let deadline = Instant::now() + waited;
                Some(tenure::take(sessions, &lock_name(base, item), deadline, waited).await?)
            }
            SaleGuard::Peer(peer) => return self.start_with_peer(peer, item, units).await,
            SaleGuard::Local(_) | SaleGuard::Nothing => None,
        };
        let token = tenure.as_ref().map(|tenure| tenure.guard.token());
        let deadline = Instant::now() + options.wait_timeout;
        let mut silence = None;
        loop {
            let error = match inventory.start(item, token, units).await {
                Ok(stock) => return Ok(stock),
                Err(error) => error,
            };
            // as long as the lock is held nobody has ordered, so starting again changes nothing
            let is_held = tenure.as_ref().is_some_and(|tenure| !tenure.guard.is_lost());
            if !is_held || !error.is_retryable() || Instant::now() + START_PAUSE >= deadline {
                // silence outweighs a later refusal: the sale may have been started
                return Err(from_start(silence.unwrap_or(error), item));
            }
            if !error.nothing_written() {
                silence = Some(error);
            }
            sleep(START_PAUSE).await;
        }
    }
}
