//! Orders that wait for the lock.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

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
    /// Whether its buyer has gone.
    pub(super) fn is_gone(&self) -> bool {
        self.reply.is_closed()
    }

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
    /// The stock when it was last seen, or `i64::MIN`. A hint: it decides what is tried first, never
    /// what is answered.
    remaining_hint: AtomicI64,
    /// Why the store did not take the latest batch, until it takes one.
    store_trouble: Mutex<Option<Arc<InventoryError>>>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<WaitingOrder>,
    /// When those whose buyers have gone were last looked for.
    swept_at: Option<Instant>,
    /// Nobody serves it any more.
    is_closed: bool,
}

impl State {
    /// Has those whose buyers have gone make room; not for each of many orders that find no room.
    fn sweep(&mut self, now: Instant) {
        if self.swept_at.is_none_or(|swept_at| now >= swept_at + LOOK_EVERY) {
            self.swept_at = Some(now);
            self.waiting.retain(|waiting| !waiting.is_gone());
        }
    }
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
            store_trouble: Mutex::default(),
        }
    }

    pub(super) fn item(&self) -> &Item {
        &self.item
    }

    /// Puts the order at the end.
    pub(super) fn push(&self, order: Order) -> Result<oneshot::Receiver<Answer>, NotQueued> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(NotQueued::Closed(order));
        }
        let now = Instant::now();
        if state.waiting.len() >= self.limit {
            state.sweep(now);
            if state.waiting.len() >= self.limit {
                let full = SaleError::QueueFull { item: self.item.clone(), limit: self.limit };
                return Err(NotQueued::Full(full));
            }
        }
        let (reply, answer) = oneshot::channel();
        let deadline = now + self.wait_timeout;
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
        let mut state = self.state.lock();
        let mut batch = Vec::with_capacity(most.min(state.waiting.len()));
        while batch.len() < most {
            match state.waiting.pop_front() {
                Some(waiting) if waiting.is_gone() => {}
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

    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().waiting.is_empty()
    }

    /// Waits until there is an order whose buyer has not gone.
    pub(super) async fn arrival(&self) {
        while !self.is_wanted() {
            // a notification that came before is kept
            self.arrived.notified().await;
        }
    }

    /// Closes the queue if nobody waits; `true` if it did.
    pub(super) fn close_if_empty(&self) -> bool {
        let mut state = self.state.lock();
        state.is_closed |= state.waiting.is_empty();
        state.is_closed
    }

    /// Closes the queue and answers all who wait; those who come are sent away.
    pub(super) fn close(&self, error: impl Fn(&WaitingOrder) -> SaleError) {
        self.state.lock().is_closed = true;
        self.fail_all(error);
    }

    /// Answers all who wait.
    pub(super) fn fail_all(&self, error: impl Fn(&WaitingOrder) -> SaleError) {
        for waiting in self.take(usize::MAX) {
            let error = error(&waiting);
            waiting.answer(Err(error));
        }
    }

    /// Waits for `future`, and meanwhile answers those whose time is over.
    pub(super) async fn while_expiring<F: Future>(
        &self,
        future: F,
        error: impl Fn(&WaitingOrder) -> SaleError,
    ) -> F::Output {
        let mut future = std::pin::pin!(future);
        loop {
            // one who comes while nobody waits has a later deadline than this
            let expiry = self.first_deadline().unwrap_or(Instant::now() + self.wait_timeout);
            tokio::select! {
                biased;
                output = &mut future => return output,
                () = sleep_until(expiry) => self.expire(&error),
            }
        }
    }

    /// As [`while_expiring`](Self::while_expiring), as long as anybody waits; `None` if nobody does.
    pub(super) async fn while_wanted<F: Future>(
        &self,
        future: F,
        error: impl Fn(&WaitingOrder) -> SaleError,
    ) -> Option<F::Output> {
        let unwanted = async {
            while self.is_wanted() {
                sleep(LOOK_EVERY).await;
            }
        };
        let either = async {
            tokio::select! {
                biased;
                output = future => Some(output),
                () = unwanted => None,
            }
        };
        self.while_expiring(either, error).await
    }

    fn expire(&self, error: impl Fn(&WaitingOrder) -> SaleError) {
        let now = Instant::now();
        loop {
            let expired = {
                let mut state = self.state.lock();
                let is_over = |waiting: &WaitingOrder| waiting.deadline <= now || waiting.is_gone();
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

    /// Forgets those whose buyers have gone, and tells whether anybody is left.
    fn is_wanted(&self) -> bool {
        let mut state = self.state.lock();
        state.waiting.retain(|waiting| !waiting.is_gone());
        !state.waiting.is_empty()
    }

    fn first_deadline(&self) -> Option<Instant> {
        self.state.lock().waiting.front().map(|waiting| waiting.deadline)
    }

    /// Whether so many units were there when the stock was last seen.
    pub(super) fn was_seen_with(&self, units: u32) -> bool {
        self.remaining_hint.load(Ordering::Relaxed) >= i64::from(units)
    }

    /// Notes how many units were seen.
    pub(super) fn see(&self, remaining: i64) {
        self.remaining_hint.store(remaining, Ordering::Relaxed);
    }

    /// Notes how the store took a batch. In trouble nothing is known of the stock, so the next orders
    /// look at it first, and find out soon that the store does not answer.
    pub(super) fn note_store(&self, trouble: Option<Arc<InventoryError>>) {
        if trouble.is_some() {
            self.see(i64::MIN);
        }
        *self.store_trouble.lock() = trouble;
    }

    pub(super) fn store_trouble(&self) -> Option<Arc<InventoryError>> {
        self.store_trouble.lock().clone()
    }
}
