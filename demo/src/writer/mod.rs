//! Other ways to write a batch: without some [safeguards](Safeguard), and with faults at points around the write. The inventory
//! uses this as its [`BatchWriter`]; the lock is decorated with it, to learn of releases.

mod by_flags;
pub(crate) mod tenures;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use fenced_lock::{Claim, ClaimStatus, Ticket, Token};
use flash_sale::inventory::{
    Action, Attempt, Batch, BatchWriter, Inventory, InventoryError, Order, OrderId, Outcome,
};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{OnceCell, watch};

use self::tenures::{Tenures, now_ms};
use crate::decorated::Decoration;
use crate::fault::{self, Point};
use crate::safeguard::Safeguard;

/// Writes batches as the service does, except for the safeguards that are off.
#[derive(Debug, Default)]
pub struct Writer {
    /// The safeguards that are off.
    off: Mutex<BTreeSet<Safeguard>>,
    /// Held for a write without safeguards: the write may have several steps, and the next batch of this instance waits for them.
    turn: tokio::sync::Mutex<()>,
    /// Whether batches have no tokens, because their lock excludes no other instance.
    pub(crate) without_tokens: bool,
    /// Without `careful-retry`: how many times each order was sent without an answer.
    unanswered: Mutex<HashMap<OrderId, u32>>,
    /// Without `script-reload`: the digest of the script, once it is loaded.
    digest: OnceCell<String>,
    /// The tenures in which this instance sold.
    pub(crate) tenures: Tenures,
    /// The status of each claim that was not yet released.
    claims: Mutex<HashMap<Claim, watch::Receiver<ClaimStatus>>>,
}

impl Writer {
    /// Whether this safeguard is on.
    pub fn has(&self, safeguard: Safeguard) -> bool {
        !self.off.lock().contains(&safeguard)
    }

    pub fn set(&self, safeguard: Safeguard, on: bool) {
        let mut off = self.off.lock();
        let _was = if on { off.remove(&safeguard) } else { off.insert(safeguard) };
    }

    /// The names of the safeguards that are off.
    pub fn without(&self) -> Vec<String> {
        self.off.lock().iter().map(ToString::to_string).collect()
    }

    async fn write(
        &self,
        inventory: &Inventory,
        batch: Batch<'_>,
    ) -> Result<Vec<Outcome>, InventoryError> {
        if batch.token.is_some_and(|token| self.tenures.begin(batch.item, token)) {
            fault::at(Point::AfterGrant).await;
        }
        let seen = match batch.token {
            Some(_) if !self.has(Safeguard::Fence) => {
                let keys: Vec<_> = batch.attempts.iter().map(|one| one.order.key()).collect();
                Some(inventory.look_up(batch.item, &keys).await?)
            }
            _ => None,
        };
        let before = now_ms();
        if fault::at(Point::BeforeWrite).await
            && let Some(token) = batch.token
        {
            self.tenures.note(token, |tenure, now| tenure.stopped = Some((before, now)));
        }
        let others = [Safeguard::OrderIds, Safeguard::AtomicLedger, Safeguard::ScriptReload];
        // only the script can change holds
        let has_changes = batch.attempts.iter().any(|one| one.order.action != Action::Reserve);
        let is_whole = seen.is_none() && others.iter().all(|safeguard| self.has(*safeguard));
        let outcomes = if is_whole || has_changes {
            let outcomes = fault::once_sent(inventory.reduce_by_script(batch)).await?;
            if !self.has(Safeguard::CancelOnce) {
                by_flags::give_back_again(inventory, batch, &outcomes).await?;
            }
            outcomes
        } else {
            by_flags::reduce(self, inventory, batch, seen).await?
        };
        fault::at(Point::AfterAnswer).await;
        Ok(outcomes)
    }

    /// The same as [`write`](Self::write), but an order that was sent without an answer is sent under a new id.
    async fn write_under_new_ids(
        &self,
        inventory: &Inventory,
        batch: Batch<'_>,
    ) -> Result<Vec<Outcome>, InventoryError> {
        let rename = |attempt: &Attempt<'_>| {
            let mut order = attempt.order.clone();
            if let Some(times) = self.unanswered.lock().get(&order.id) {
                let id = OrderId::new(&format!("{}~{}", order.id.as_str(), times + 1));
                // a long id has no room for a number
                order.id = id.unwrap_or_else(|_| OrderId::random());
            }
            order
        };
        let renamed: Vec<Order> = batch.attempts.iter().map(rename).collect();
        let attempts = batch.attempts.iter().zip(&renamed);
        let attempts: Vec<_> = attempts.map(|(one, order)| Attempt { order, ..*one }).collect();
        let written = self.write(inventory, Batch { attempts: &attempts, ..batch }).await;
        for Attempt { order, .. } in batch.attempts {
            match &written {
                Ok(_) => drop(self.unanswered.lock().remove(&order.id)),
                Err(error) if error.nothing_written() => {}
                Err(_) => *self.unanswered.lock().entry(order.id.clone()).or_default() += 1,
            }
        }
        written
    }
}

impl BatchWriter for Writer {
    fn reduce<'a>(
        &'a self,
        inventory: &'a Inventory,
        mut batch: Batch<'a>,
    ) -> BoxFuture<'a, Result<Vec<Outcome>, InventoryError>> {
        batch.token.take_if(|_| self.without_tokens);
        Box::pin(async move {
            let is_safe = self.off.lock().is_empty();
            let _turn = if is_safe { None } else { Some(self.turn.lock().await) };
            let written = if self.has(Safeguard::CarefulRetry) {
                self.write(inventory, batch).await
            } else {
                self.write_under_new_ids(inventory, batch).await
            };
            if let Some(token) = batch.token {
                self.tenures.note(token, |tenure, now| {
                    tenure.to_ms = Some(now);
                    if let Err(InventoryError::StaleToken { fence, .. }) = &written {
                        tenure.refused = Some((now, fence.revision()));
                    }
                });
            }
            written
        })
    }
}

/// Adds [`Point::BeforeRelease`] before a claim is released or handed over. Only claims under which this writer wrote count: not
/// those of waiters, nor the one that starts a sale.
impl Decoration<Token> for Arc<Writer> {
    fn ticket(&self, claim: &Claim, ticket: Ticket) -> Ticket {
        self.claims.lock().insert(claim.clone(), ticket.status.clone());
        ticket
    }

    fn before_release<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let status = self.claims.lock().remove(claim);
            let status = status.map(|status| *status.borrow());
            if let Some(ClaimStatus::Granted(token)) = status
                && self.tenures.note(token, |tenure, now| tenure.to_ms = Some(now))
            {
                fault::at(Point::BeforeRelease).await;
            }
        })
    }
}
