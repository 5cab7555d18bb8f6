//! Reads of an item that callers share.
//!
//! Calls share the next read of their item if they come while one is under way, or within a millisecond of its start.
//! The read that answers a call begins after the call, so the answer is as true as a separate read's: a client
//! reads what it wrote. If a read fails because the store is away, all waiting calls fail.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval};

use super::SaleError;
use crate::inventory::{Inventory, InventoryError, Item};
use crate::process::spawn;

/// The least time from one read of an item to the next. A further call adds next to nothing to the cost of a read, and
/// a further read costs Redis much: a crowd must not keep Redis busy with reads for a few calls each.
const PACE: Duration = Duration::from_millis(1);

type Seen<A> = Result<A, Arc<InventoryError>>;

/// The answers to these questions about an item, seen at one moment, or the reason for which there are none.
pub(super) type Answers<A> = Result<Vec<Result<A, InventoryError>>, InventoryError>;

type Read<Q, A> = dyn Fn(Item, Vec<Q>) -> BoxFuture<'static, Answers<A>> + Send + Sync;

type Waiting<Q, A> = Vec<(Q, oneshot::Sender<Seen<A>>)>;

/// One kind of read, with questions `Q` and answers `A`.
pub(super) struct SharedReads<Q, A> {
    read: Box<Read<Q, A>>,
    /// The calls that wait for the next read of their item. While a task reads an item, the item is in this map.
    waiting: Mutex<HashMap<Item, Waiting<Q, A>>>,
}

impl<Q: Send + 'static, A: Send + 'static> SharedReads<Q, A> {
    /// Reads by this function, with up to [`MAX_BATCH`](Inventory::MAX_BATCH) questions at a time.
    pub(super) fn by<F: Future<Output = Answers<A>> + Send + 'static>(
        read: impl Fn(Item, Vec<Q>) -> F + Send + Sync + 'static,
    ) -> Arc<Self> {
        let read = Box::new(move |item, questions| read(item, questions).boxed());
        Arc::new(Self { read, waiting: Mutex::default() })
    }

    /// The answer to a question about `item`.
    ///
    /// # Cancel safety
    /// A dropped call changes nothing for the others.
    pub(super) async fn read(self: &Arc<Self>, item: &Item, question: Q) -> Result<A, SaleError> {
        let (reply, answer) = oneshot::channel();
        let is_first = {
            let mut items = self.waiting.lock();
            let is_first = !items.contains_key(item);
            items.entry(item.clone()).or_default().push((question, reply));
            is_first
        };
        if is_first {
            spawn(Arc::clone(self).run(item.clone()));
        }
        // only a runtime that ends drops the reply
        let seen = answer.await.unwrap_or_else(|_| Err(Arc::new(InventoryError::too_late())));
        seen.map_err(|error| SaleError::of_read(error, item))
    }

    /// Reads one item while calls wait.
    async fn run(self: Arc<Self>, item: Item) {
        let mut pace = interval(PACE);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            pace.tick().await;
            let Some(calls) = self.next(&item) else { return };
            let (questions, replies): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
            // a panic does not end the later reads
            let read = AssertUnwindSafe((self.read)(item.clone(), questions)).catch_unwind().await;
            match read.unwrap_or_else(|_| Err(InventoryError::too_late())) {
                Ok(answers) => {
                    for (reply, answer) in replies.into_iter().zip(answers) {
                        // fails if the caller is gone
                        drop(reply.send(answer.map_err(Arc::new)));
                    }
                }
                Err(error) => {
                    // a store that is away would let these calls wait as long again
                    let is_away = error.is_retryable();
                    let behind =
                        self.waiting.lock().get_mut(&item).filter(|_| is_away).map(std::mem::take);
                    let error = Arc::new(error);
                    let behind = behind.into_iter().flatten().map(|(_, reply)| reply);
                    for reply in replies.into_iter().chain(behind) {
                        drop(reply.send(Err(Arc::clone(&error))));
                    }
                }
            }
        }
    }

    /// The calls of the next read, without those whose callers are gone. `None` ends the task.
    fn next(&self, item: &Item) -> Option<Waiting<Q, A>> {
        let mut items = self.waiting.lock();
        let waiting = items.get_mut(item)?;
        waiting.retain(|(_, reply)| !reply.is_closed());
        if waiting.is_empty() {
            items.remove(item);
            return None;
        }
        let most = waiting.len().min(Inventory::MAX_BATCH);
        Some(waiting.drain(..most).collect())
    }
}
