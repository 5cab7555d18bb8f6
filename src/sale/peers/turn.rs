//! One order's turn under a peer's lock.

use fenced_lock::Token;
use tokio::sync::oneshot;

use super::limit::Limit;
use super::{Hold, Kind, Peer};
use crate::inventory::{Inventory, Item, Order, Outcome, Stock, naive};
use crate::sale::error::{from_start, from_store};
use crate::sale::waiting_room::WaitingPlace;
use crate::sale::{Inner, Sale, SaleError};

impl Sale {
    /// Takes the order's units as `peer` does. The `place` is kept until nothing of the order is left
    /// in etcd either.
    pub(in crate::sale) async fn reduce_with_peer(
        &self,
        peer: &Peer,
        order: Order,
        place: WaitingPlace,
    ) -> Result<Outcome, SaleError> {
        let (inventory, instance) = (self.0.inventory.clone(), self.0.options.instance.clone());
        if let Kind::Unguarded = peer.0 {
            return reduce(&inventory, None, &instance, &order).await;
        }
        let (id, item, is_naive) = (order.id.clone(), order.item.clone(), peer.is_naive());
        let work = move |token| async move {
            if is_naive {
                let reduced = naive::reduce(&inventory, &order, &instance).await;
                return reduced.map_err(|error| from_store(error.into(), &order));
            }
            reduce(&inventory, token, &instance, &order).await
        };
        let reduced = self.under_peer(peer, &item, place, work).await;
        reduced.unwrap_or_else(|ended| {
            Err(SaleError::OutcomeUnknown { order: id, source: ended.into() })
        })
    }

    /// Starts a sale of `item` afresh under the lock of `peer`.
    pub(in crate::sale) async fn start_with_peer(
        &self,
        peer: &Peer,
        item: &Item,
        units: u64,
    ) -> Result<Stock, SaleError> {
        let (inventory, sold) = (self.0.inventory.clone(), item.clone());
        let work = move |token| async move {
            let started = inventory.start(&sold, token, units).await;
            started.map_err(|error| from_start(error, &sold))
        };
        let started = self.under_peer(peer, item, (), work).await;
        started.unwrap_or_else(|ended| {
            Err(SaleError::StartUnknown { item: item.clone(), source: ended.into() })
        })
    }

    /// Does `work` under the lock of `item`, in a task of its own, which withdraws the claim if the
    /// caller goes away while it waits, and goes on to its end if it goes later. `kept` is dropped when
    /// the lock is released.
    ///
    /// # Errors
    /// The task ended without an answer.
    async fn under_peer<T, F>(
        &self,
        peer: &Peer,
        item: &Item,
        kept: impl Send + 'static,
        work: impl FnOnce(Option<Token>) -> F + Send + 'static,
    ) -> Result<Result<T, SaleError>, oneshot::error::RecvError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, SaleError>> + Send,
    {
        let Inner { options, stopping, tasks, .. } = &*self.0;
        let gone = stopping.child_token();
        let limit = Limit::new(options.wait_timeout, gone.clone());
        let name = peer.lock_name(&options.lock_name, item).unwrap_or_default();
        let peer = peer.clone();
        let (answer, answered) = oneshot::channel();
        tasks.spawn(async move {
            // nobody may be there any more to read the answer
            match peer.take(&name, &limit).await {
                Ok(hold) => {
                    drop(answer.send(work(hold.as_ref().and_then(Hold::token)).await));
                    if let Some(hold) = hold {
                        peer.release(hold).await;
                    }
                }
                Err(error) => drop(answer.send(Err(error))),
            }
            drop(kept);
        });
        let _gone = gone.drop_guard();
        answered.await
    }
}

/// One order by the script that is the only writer.
async fn reduce(
    inventory: &Inventory,
    token: Option<Token>,
    instance: &str,
    order: &Order,
) -> Result<Outcome, SaleError> {
    let batch = std::slice::from_ref(order);
    let reduced = inventory.reduce(&order.item, token, instance, batch).await;
    let mut outcomes = reduced.map_err(|error| from_store(error.into(), order))?;
    let missing = || SaleError::StoreUnavailable { source: "one order, and no outcome".into() };
    outcomes.pop().ok_or_else(missing)
}
