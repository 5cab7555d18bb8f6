//! Other ways to write a batch: without some [safeguards](Safeguard), and with faults at points around the write. The inventory
//! uses this as its [`BatchWriter`]; the lock is decorated with it, to learn of releases.

use std::collections::HashMap;
use std::sync::Arc;

use demo::instance::rig::Rig;
use demo::instance::write_what_was_seen;
use fenced_lock::{Claim, ClaimStatus, Ticket, Token};
use flash_sale::inventory::{
    Action, Answer, Attempt, Batch, BatchWriter, Inventory, InventoryError, Order, OrderId,
};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{OnceCell, watch};

use super::by_flags;
use super::fault::{self, Point};
use super::safeguard::Safeguard;
use crate::locks::Decoration;

/// Writes batches as the service does, except for the safeguards that are off.
#[derive(Debug, Default)]
pub(super) struct Writer {
    /// Knows the safeguards that are off, and the tenures in which this instance sold.
    pub(super) rig: Arc<Rig>,
    /// Held for a write without safeguards: the write may have several steps, and the next batch of this instance waits for them.
    turn: tokio::sync::Mutex<()>,
    /// Whether the batches have no tokens: their lock does not exclude other instances.
    without_tokens: bool,
    /// Without `careful-retry`: how many times each order was sent without an answer.
    unanswered: Mutex<HashMap<OrderId, u32>>,
    /// Without `script-reload`: the digest of the script, once it is loaded.
    pub(super) digest: OnceCell<String>,
    /// The status of each claim that was not yet released.
    claims: Mutex<HashMap<Claim, watch::Receiver<ClaimStatus>>>,
}

impl Writer {
    pub(super) fn new(rig: Arc<Rig>, without_tokens: bool) -> Self {
        Self { rig, without_tokens, ..Self::default() }
    }

    pub(super) fn has(&self, safeguard: Safeguard) -> bool {
        self.rig.has(&safeguard.to_string())
    }

    async fn write(
        &self,
        inventory: &Inventory,
        batch: Batch<'_>,
    ) -> Result<Vec<Answer>, InventoryError> {
        if batch.token.is_some_and(|token| self.rig.begin(batch.item, token)) {
            fault::at(Point::AfterGrant).await;
        }
        if batch.token.is_some() && !self.has(Safeguard::Fence) {
            return write_what_was_seen(&self.rig, inventory, batch).await;
        }
        self.rig.about_to_write(batch.token).await;
        let others = [Safeguard::OrderIds, Safeguard::AtomicLedger, Safeguard::ScriptReload];
        // only the script can change holds
        let has_changes = batch.attempts.iter().any(|one| one.order.action != Action::Reserve);
        let is_whole = others.iter().all(|safeguard| self.has(*safeguard));
        let answers = if is_whole || has_changes {
            let answers = fault::once_sent(inventory.reduce_by_script(batch)).await?;
            if !self.has(Safeguard::CancelOnce) {
                by_flags::give_back_again(inventory, batch, &answers).await?;
            }
            answers
        } else {
            by_flags::reduce(self, inventory, batch).await?
        };
        fault::at(Point::AfterAnswer).await;
        Ok(answers)
    }

    /// The same as [`write`](Self::write), but an order that was sent without an answer is sent under a new id.
    async fn write_under_new_ids(
        &self,
        inventory: &Inventory,
        batch: Batch<'_>,
    ) -> Result<Vec<Answer>, InventoryError> {
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
    ) -> BoxFuture<'a, Result<Vec<Answer>, InventoryError>> {
        batch.token.take_if(|_| self.without_tokens);
        Box::pin(async move {
            let is_safe = self.rig.without().is_empty();
            let _turn = if is_safe { None } else { Some(self.turn.lock().await) };
            if self.has(Safeguard::CarefulRetry) {
                self.write(inventory, batch).await
            } else {
                self.write_under_new_ids(inventory, batch).await
            }
        })
    }
}

/// Adds `Point::BeforeRelease` before a claim is released or handed over, if this writer wrote under the claim. It
/// wrote under no claim of a waiter, and not under the claim that starts a sale.
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
                && self.rig.has_written(token)
            {
                fault::at(Point::BeforeRelease).await;
            }
        })
    }
}
