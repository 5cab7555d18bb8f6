//! Orders that wait for the lock.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};

use super::SaleError;
use crate::inventory::{InventoryError, Item, Order, Outcome};

/// How often to look whether anybody still waits for the lock: a claim for nobody is in the way of
/// other instances.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The answer to an order.
pub(super) type Answer = Result<Outcome, SaleError>;

/// An order that waits, or is in a batch.
pub(super) struct WaitingOrder {
    pub(super) order: Order,
    /// Closed when its buyer has gone.
    reply: oneshot::Sender<Answer>,
    deadline: Instant,
    /// The store's silence, if the order was sent and not answered: it may stand.
    pub(super) silence: Option<Arc<InventoryError>>,
    /// Whether it was refused because a later holder had written.
    pub(super) is_stale: bool,
}

impl WaitingOrder {
    pub(super) fn answer(self, answer: Answer) {
        // a buyer who has gone does not want it
        drop(self.reply.send(answer));
    }
}

/// The orders of one item that wait at this instance, in the order in which they came. Bounded; and
/// all wait equally long at the most, so the first one's deadline is the next.
pub(super) struct OrderQueue {
    item: Item,
    limit: usize,
    wait_timeout: Duration,
    state: Mutex<State>,
    arrived: Notify,
    /// The stock after the latest batch, or `i64::MIN`. A hint: it decides what is tried first, never
    /// what is answered.
    remaining_hint: AtomicI64,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<WaitingOrder>,
    /// Nobody serves it any more.
    is_closed: bool,
}

/// Why an order cannot wait here.
pub(super) enum NotQueued {
    /// As many wait as may.
    Full(SaleError),
    /// Nobody serves this queue any more: here is the order, for another one.
    Closed(Order),
}

impl OrderQueue {
    pub(super) fn new(item: Item, limit: usize, wait_timeout: Duration) -> Self {
        Self {
            item,
            limit,
            wait_timeout,
            state: Mutex::default(),
            arrived: Notify::new(),
            remaining_hint: AtomicI64::new(i64::MIN),
        }
    }

    pub(super) fn item(&self) -> &Item {
        &self.item
    }

    /// Puts the order at the end.
    pub(super) fn push(&self, order: Order) -> Result<oneshot::Receiver<Answer>, NotQueued> {
        let mut state = self.state();
        if state.is_closed {
            return Err(NotQueued::Closed(order));
        }
        if state.waiting.len() >= self.limit {
            // those whose buyers have gone make room
            state.waiting.retain(|waiting| !waiting.reply.is_closed());
            if state.waiting.len() >= self.limit {
                let full = SaleError::QueueFull { item: self.item.clone(), limit: self.limit };
                return Err(NotQueued::Full(full));
            }
        }
        let (reply, answer) = oneshot::channel();
        let deadline = Instant::now() + self.wait_timeout;
        state.waiting.push_back(WaitingOrder {
            order,
            reply,
            deadline,
            silence: None,
            is_stale: false,
        });
        drop(state);
        self.arrived.notify_one();
        Ok(answer)
    }

    /// Takes up to `most` orders from the front, without those whose buyers have gone.
    pub(super) fn take(&self, most: usize) -> Vec<WaitingOrder> {
        let mut state = self.state();
        let mut batch = Vec::with_capacity(most.min(state.waiting.len()));
        while batch.len() < most {
            match state.waiting.pop_front() {
                Some(waiting) if waiting.reply.is_closed() => {}
                Some(waiting) => batch.push(waiting),
                None => break,
            }
        }
        batch
    }

    /// Puts a batch back to the front, in its order.
    pub(super) fn put_back(&self, batch: Vec<WaitingOrder>) {
        let mut state = self.state();
        for waiting in batch.into_iter().rev() {
            state.waiting.push_front(waiting);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state().waiting.is_empty()
    }

    /// Waits until there is an order.
    pub(super) async fn arrival(&self) {
        while self.is_empty() {
            // a notification that came before is kept
            self.arrived.notified().await;
        }
    }

    /// Closes the queue if nobody waits; `true` if it did.
    pub(super) fn close_if_empty(&self) -> bool {
        let mut state = self.state();
        state.is_closed |= state.waiting.is_empty();
        state.is_closed
    }

    /// Closes the queue and answers all who wait.
    pub(super) fn close(&self, error: impl Fn(&WaitingOrder) -> SaleError) {
        self.state().is_closed = true;
        self.fail_all(error);
    }

    /// Answers all who wait.
    pub(super) fn fail_all(&self, error: impl Fn(&WaitingOrder) -> SaleError) {
        for waiting in self.take(usize::MAX) {
            let error = error(&waiting);
            waiting.answer(Err(error));
        }
    }

    /// Waits for `future`, and meanwhile answers those whose time is over. `None` if nobody is left
    /// who waits for it, when it must be `needed`.
    pub(super) async fn while_expiring<F: Future>(
        &self,
        future: F,
        needed: bool,
        error: impl Fn(&WaitingOrder) -> SaleError,
    ) -> Option<F::Output> {
        let mut future = std::pin::pin!(future);
        loop {
            let now = Instant::now();
            // one who comes while nobody waits has a later deadline than this
            let expiry = self.first_deadline().unwrap_or(now + self.wait_timeout);
            let look_at = if needed { expiry.min(now + LOOK_EVERY) } else { expiry };
            tokio::select! {
                biased;
                output = &mut future => return Some(output),
                () = sleep_until(look_at) => {
                    self.expire(&error);
                    if needed && !self.is_wanted() {
                        return None;
                    }
                }
            }
        }
    }

    fn expire(&self, error: impl Fn(&WaitingOrder) -> SaleError) {
        let now = Instant::now();
        loop {
            let expired = {
                let mut state = self.state();
                let is_over =
                    |waiting: &WaitingOrder| waiting.deadline <= now || waiting.reply.is_closed();
                if !state.waiting.front().is_some_and(is_over) {
                    return;
                }
                state.waiting.pop_front()
            };
            if let Some(waiting) = expired {
                let error = error(&waiting);
                waiting.answer(Err(error));
            }
        }
    }

    /// Whether anybody waits who has not gone away.
    fn is_wanted(&self) -> bool {
        self.state().waiting.iter().any(|waiting| !waiting.reply.is_closed())
    }

    fn first_deadline(&self) -> Option<Instant> {
        self.state().waiting.front().map(|waiting| waiting.deadline)
    }

    /// Whether so many units may be left, as far as the latest batch told.
    pub(super) fn may_have(&self, units: u32) -> bool {
        self.remaining_hint.load(Ordering::Relaxed) >= i64::from(units)
    }

    pub(super) fn set_remaining_hint(&self, remaining: u64) {
        let remaining = i64::try_from(remaining).unwrap_or(i64::MAX);
        self.remaining_hint.store(remaining, Ordering::Relaxed);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
