//! Orders that wait for the lock.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use super::SaleError;
use crate::inventory::{InventoryError, Item, Order, Outcome};

/// How often to check that an order still waits for the lock: a claim without orders delays other
/// instances.
const SWEEP_EVERY: Duration = Duration::from_millis(100);

/// The answer to an order.
pub(super) type Answer = Result<Outcome, SaleError>;

/// An order that waits, or is in a batch.
pub(super) struct WaitingOrder {
    pub(super) order: Order,
    /// Closed when the buyer disconnected.
    reply: oneshot::Sender<Answer>,
    deadline: Instant,
    /// The error of an attempt that was sent and not answered: the order may have been accepted.
    pub(super) unknown: Option<Arc<InventoryError>>,
}

impl WaitingOrder {
    /// Whether its buyer disconnected.
    pub(super) fn is_disconnected(&self) -> bool {
        self.reply.is_closed()
    }

    pub(super) fn answer(self, answer: Answer) {
        // fails if the buyer disconnected
        drop(self.reply.send(answer));
    }

    /// Answers with an error. Once the order was sent and not answered, its outcome is unknown, whatever
    /// failed later.
    pub(super) fn fail(self, error: impl FnOnce(&Self) -> SaleError) {
        let error = match &self.unknown {
            Some(unknown) => SaleError::of_order(Arc::clone(unknown), &self.order),
            None => error(&self),
        };
        self.answer(Err(error));
    }
}

/// The waiting orders of one item at this instance, first in, first out. Bounded. All have the same time
/// limit, so the first order has the earliest deadline.
pub(super) struct OrderQueue {
    item: Item,
    limit: usize,
    wait_timeout: Duration,
    state: Mutex<State>,
    arrived: Notify,
    /// Why the latest batch failed in the store; `None` after a batch that succeeded.
    store_error: Mutex<Option<Arc<InventoryError>>>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<WaitingOrder>,
    /// When orders of disconnected buyers were last removed.
    swept_at: Option<Instant>,
}

impl State {
    /// Removes the orders of disconnected buyers; not again for each order that finds the queue full.
    fn sweep(&mut self, now: Instant) {
        if self.swept_at.is_none_or(|swept_at| now >= swept_at + SWEEP_EVERY) {
            self.swept_at = Some(now);
            self.waiting.retain(|waiting| !waiting.is_disconnected());
        }
    }
}

impl OrderQueue {
    pub(super) fn new(item: Item, limit: usize, wait_timeout: Duration) -> Self {
        Self {
            item,
            limit,
            wait_timeout,
            state: Mutex::default(),
            arrived: Notify::new(),
            store_error: Mutex::default(),
        }
    }

    pub(super) fn item(&self) -> &Item {
        &self.item
    }

    /// Puts the order at the end.
    ///
    /// # Errors
    /// [`SaleError::QueueFull`].
    pub(super) fn push(&self, order: Order) -> Result<oneshot::Receiver<Answer>, SaleError> {
        let mut state = self.state.lock();
        let now = Instant::now();
        if state.waiting.len() >= self.limit {
            state.sweep(now);
            if state.waiting.len() >= self.limit {
                return Err(SaleError::QueueFull { item: self.item.clone(), limit: self.limit });
            }
        }
        let (reply, answer) = oneshot::channel();
        let deadline = now + self.wait_timeout;
        state.waiting.push_back(WaitingOrder { order, reply, deadline, unknown: None });
        drop(state);
        self.arrived.notify_one();
        Ok(answer)
    }

    /// Takes up to `most` orders from the front, without those of disconnected buyers.
    pub(super) fn take(&self, most: usize) -> Vec<WaitingOrder> {
        let mut state = self.state.lock();
        let mut batch = Vec::with_capacity(most.min(state.waiting.len()));
        while batch.len() < most {
            match state.waiting.pop_front() {
                Some(waiting) if waiting.is_disconnected() => {}
                Some(waiting) => batch.push(waiting),
                None => break,
            }
        }
        batch
    }

    /// Puts a batch back to the front, in its order.
    pub(super) fn put_back(&self, batch: Vec<WaitingOrder>) {
        let mut state = self.state.lock();
        for waiting in batch.into_iter().rev() {
            state.waiting.push_front(waiting);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Waits for an order whose buyer is still connected.
    pub(super) async fn arrival(&self) {
        while !self.has_orders() {
            // an earlier notification is kept
            self.arrived.notified().await;
        }
    }

    /// [Fails](WaitingOrder::fail) all waiting orders.
    pub(super) fn fail_all(&self, error: impl Fn() -> SaleError) {
        for waiting in self.take(usize::MAX) {
            waiting.fail(|_| error());
        }
    }

    /// Waits for `future`, and meanwhile [fails](WaitingOrder::fail) the orders whose time is over.
    pub(super) async fn while_expiring<F: Future>(
        &self,
        future: F,
        error: impl Fn() -> SaleError,
    ) -> F::Output {
        let mut future = std::pin::pin!(future);
        loop {
            // an order that comes to an empty queue has a later deadline than this
            let expiry = self.first_deadline().unwrap_or(Instant::now() + self.wait_timeout);
            tokio::select! {
                biased;
                output = &mut future => return output,
                () = sleep_until(expiry) => self.expire(&error),
            }
        }
    }

    /// As [`while_expiring`](Self::while_expiring), but ends with `None` once no order waits.
    pub(super) async fn while_orders_wait<F: Future>(
        &self,
        future: F,
        error: impl Fn() -> SaleError,
    ) -> Option<F::Output> {
        let none_waits = async {
            while self.has_orders() {
                sleep(SWEEP_EVERY).await;
            }
        };
        let either = async {
            tokio::select! {
                biased;
                output = future => Some(output),
                () = none_waits => None,
            }
        };
        self.while_expiring(either, error).await
    }

    fn expire(&self, error: impl Fn() -> SaleError) {
        let now = Instant::now();
        loop {
            let expired = {
                let mut state = self.state.lock();
                let is_over =
                    |waiting: &WaitingOrder| waiting.deadline <= now || waiting.is_disconnected();
                if !state.waiting.front().is_some_and(is_over) {
                    return;
                }
                state.waiting.pop_front()
            };
            if let Some(waiting) = expired {
                waiting.fail(|_| error());
            }
        }
    }

    /// Drops the orders of disconnected buyers, and returns whether any is left.
    fn has_orders(&self) -> bool {
        let mut state = self.state.lock();
        state.waiting.retain(|waiting| !waiting.is_disconnected());
        !state.waiting.is_empty()
    }

    fn first_deadline(&self) -> Option<Instant> {
        self.state.lock().waiting.front().map(|waiting| waiting.deadline)
    }

    /// Notes why the latest batch failed, if it did.
    pub(super) fn set_store_error(&self, error: Option<Arc<InventoryError>>) {
        *self.store_error.lock() = error;
    }

    pub(super) fn store_error(&self) -> Option<Arc<InventoryError>> {
        self.store_error.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{OrderId, Quantity, User};

    fn order(id: &str) -> Order {
        Order {
            id: OrderId::new(id).expect("a valid id"),
            item: Item::DEFAULT,
            quantity: Quantity::new(1).expect("a valid quantity"),
            user: User::default(),
        }
    }

    /// Goal: an order that was sent and not answered stays unknown, whatever ends its wait; one that was not
    /// sent gets the error.
    #[tokio::test]
    async fn unknown_outweighs_every_later_error() {
        let queue = OrderQueue::new(Item::DEFAULT, 2, Duration::from_secs(1));
        let answers = ["sent", "not-sent"].map(|id| queue.push(order(id)).expect("room"));
        let mut batch = queue.take(2);
        batch[0].unknown = Some(Arc::new(InventoryError::NotReplicated { count: 0, wanted: 1 }));
        queue.put_back(batch);
        queue.fail_all(|| SaleError::Stopping);
        let [sent, not_sent] = answers.map(|mut answer| answer.try_recv().expect("an answer"));
        assert!(matches!(sent, Err(SaleError::OutcomeUnknown { .. })), "{sent:?}");
        assert!(matches!(not_sent, Err(SaleError::Stopping)), "{not_sent:?}");
    }
}
