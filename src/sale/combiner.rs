//! One tenure of the lock for many orders.
//!
//! Orders wait in a queue for each item; one task takes the lock for all of them and runs them in
//! batches through the store's script, under one token. So one commit in etcd pays for as many orders
//! as there are, and one sync of Redis' file for a whole batch. Orders that arrive while a batch is
//! in flight are the next batch. Within a process this is flat combining (Hendler et al. 2010), and
//! across processes lock cohorting (Dice et al. 2012).
//!
//! While nobody else waits for the lock it is kept, and a batch costs etcd nothing. When somebody
//! does, the tenure ends after its time, or as soon as no order waits here; with orders still waiting,
//! the release and the next claim are one transaction.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::error::from_store;
use super::order_queue::{Answer, NotQueued, OrderQueue, WaitingOrder};
use super::tenure::{lock_name, unavailable};
use super::{SaleError, SaleOptions};
use crate::inventory::{Inventory, InventoryError, Item, Order, Outcome};
use crate::lock::{Guard, LockError, LostReason, SessionKeeper};

/// How long an item's task and its hold outlive the last order.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long to wait before the lock is asked for again after a failure.
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// How long to wait before a batch is sent again.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The queues of all items and the tasks that serve them.
pub(super) struct Combiner {
    inventory: Inventory,
    sessions: SessionKeeper,
    options: SaleOptions,
    stopping: CancellationToken,
    tasks: TaskTracker,
    queues: Mutex<HashMap<Item, Arc<OrderQueue>>>,
}

impl Combiner {
    pub(super) fn new(
        inventory: Inventory,
        sessions: SessionKeeper,
        options: SaleOptions,
        stopping: CancellationToken,
        tasks: TaskTracker,
    ) -> Arc<Self> {
        let queues = Mutex::default();
        Arc::new(Self { inventory, sessions, options, stopping, tasks, queues })
    }

    /// Whether so many units of `item` may be left, as far as this instance's latest batch told.
    pub(super) fn may_have(&self, item: &Item, units: u32) -> bool {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.get(item).is_some_and(|queue| queue.may_have(units))
    }

    /// Has the order run in a batch.
    ///
    /// # Cancel safety
    /// A future that is dropped before its order is in a batch takes nothing.
    pub(super) async fn reduce(self: &Arc<Self>, mut order: Order) -> Answer {
        let answer = loop {
            match self.queue_of(&order.item).push(order) {
                Ok(answer) => break answer,
                Err(NotQueued::Full(error)) => return Err(error),
                Err(NotQueued::Closed(_)) if self.stopping.is_cancelled() => {
                    return Err(SaleError::Stopping);
                }
                // its task has just ended, and removes it: the next one is a new queue
                Err(NotQueued::Closed(back)) => {
                    order = back;
                    tokio::task::yield_now().await;
                }
            }
        };
        // a task that ended early, by a panic, has answered nothing
        answer.await.unwrap_or(Err(SaleError::Stopping))
    }

    fn queue_of(self: &Arc<Self>, item: &Item) -> Arc<OrderQueue> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = queues.get(item) {
            return Arc::clone(queue);
        }
        let SaleOptions { queue_length, wait_timeout, .. } = self.options;
        let queue = Arc::new(OrderQueue::new(item.clone(), queue_length, wait_timeout));
        queues.insert(item.clone(), Arc::clone(&queue));
        let (combiner, served) = (Arc::clone(self), Arc::clone(&queue));
        self.tasks.spawn(async move { combiner.serve(&served).await });
        queue
    }

    /// Serves an item's queue until nobody has ordered for a while, or the sale stops.
    async fn serve(&self, queue: &OrderQueue) {
        let name = lock_name(&self.options.lock_name, queue.item());
        loop {
            tokio::select! {
                () = queue.arrival() => {}
                () = sleep(IDLE_TIMEOUT) => if queue.close_if_empty() { break },
                () = self.stopping.cancelled() => {
                    queue.close(|_| SaleError::Stopping);
                    break;
                }
            }
            if queue.is_empty() {
                continue;
            }
            let locked = queue.while_expiring(self.lock(&name), true, |o| self.too_late(o)).await;
            match locked {
                Some(Ok(guard)) => self.hold(queue, guard).await,
                Some(Err(error)) => {
                    let error = Arc::new(error);
                    queue.fail_all(|waiting| without_lock(waiting, Arc::clone(&error)));
                    sleep(LOCK_PAUSE).await;
                }
                // everybody has given up
                None => {}
            }
        }
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.remove(queue.item());
    }

    /// Takes the lock, however long it takes; fails where waiting mends nothing.
    async fn lock(&self, name: &str) -> Result<Guard, LockError> {
        loop {
            let session = self.sessions.session().await?;
            match session.mutex(name)?.lock().await {
                // another session will be opened, or another claim made
                Err(LockError::Lost) => {}
                Err(LockError::SessionLost { reason }) if reason != LostReason::Closed => {}
                locked => return locked,
            }
            sleep(LOCK_PAUSE).await;
        }
    }

    /// Runs batches until the lock is given up or lost.
    async fn hold(&self, queue: &OrderQueue, mut guard: Guard) {
        let mut ends_at = Instant::now() + self.options.tenure;
        loop {
            let batch = queue.take(self.options.batch_size);
            if batch.is_empty() {
                tokio::select! {
                    biased;
                    () = queue.arrival() => continue,
                    () = guard.contended() => {}
                    () = guard.lost() => {}
                    () = sleep(IDLE_TIMEOUT) => {}
                    () = self.stopping.cancelled() => {}
                }
                return;
            }
            if !self.run(queue, &guard, batch).await {
                return;
            }
            if guard.is_contended() && Instant::now() >= ends_at {
                if queue.is_empty() {
                    return;
                }
                let turn = queue.while_expiring(guard.hand_over(), true, |o| self.too_late(o));
                match turn.await {
                    Some(Ok(next)) => guard = next,
                    Some(Err(error)) => {
                        tracing::debug!(%error, "the lock did not come back: asking for it anew");
                        return;
                    }
                    None => return,
                }
                ends_at = Instant::now() + self.options.tenure;
            }
        }
    }

    /// Runs one batch under the guard's token and answers its orders; `false` if the lock is lost, and
    /// the orders wait again.
    async fn run(&self, queue: &OrderQueue, guard: &Guard, mut batch: Vec<WaitingOrder>) -> bool {
        // the step that touches the stock takes the lock itself, which costs nothing where it is held
        let Ok(entry) = guard.reenter() else {
            queue.put_back(batch);
            return false;
        };
        let deadline = Instant::now() + self.options.wait_timeout;
        let mut pause = SHORTEST_PAUSE;
        loop {
            let orders: Vec<&Order> = batch.iter().map(|waiting| &waiting.order).collect();
            let Self { inventory, options, .. } = self;
            let run =
                inventory.reduce(queue.item(), Some(entry.token()), &options.instance, &orders);
            let late = |waiting: &WaitingOrder| self.too_late(waiting);
            let Some(ran) = queue.while_expiring(run, false, late).await else { return false };
            let error = match ran {
                Ok(outcomes) => {
                    answer_all(queue, batch, outcomes);
                    return true;
                }
                Err(InventoryError::StaleToken { .. }) => {
                    for waiting in &mut batch {
                        waiting.is_stale = true;
                    }
                    queue.put_back(batch);
                    sleep(pause).await;
                    return false;
                }
                Err(error) => Arc::new(error),
            };
            let can_repeat = error.is_retryable() && Instant::now() + pause < deadline;
            tracing::warn!(orders = batch.len(), ?error, can_repeat, "the store did not reduce");
            if !error.nothing_written() {
                for waiting in &mut batch {
                    waiting.silence.get_or_insert_with(|| Arc::clone(&error));
                }
            }
            if !can_repeat {
                for waiting in batch {
                    let failure = waiting.silence.clone().unwrap_or_else(|| Arc::clone(&error));
                    let failure = from_store(failure, &waiting.order);
                    waiting.answer(Err(failure));
                }
                return true;
            }
            if entry.is_lost() {
                queue.put_back(batch);
                return false;
            }
            queue.while_expiring(sleep(pause), false, late).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// What an order is told whose time is over.
    fn too_late(&self, waiting: &WaitingOrder) -> SaleError {
        let waited = self.options.wait_timeout;
        match self.sessions.current() {
            _ if waiting.silence.is_some() => without_lock(waiting, Arc::new(LockError::Lost)),
            _ if waiting.is_stale => SaleError::StaleToken,
            Some(session) if session.is_answered() => SaleError::WaitTooLong { waited },
            _ => unavailable(LockError::Timeout { waited }),
        }
    }
}

/// What an order is told when the lock cannot be had. Once it was sent and not answered, its outcome
/// is unknown, whatever failed later.
fn without_lock(waiting: &WaitingOrder, error: Arc<LockError>) -> SaleError {
    match &waiting.silence {
        Some(silence) => from_store(Arc::clone(silence), &waiting.order),
        None => SaleError::LockUnavailable { source: error.into() },
    }
}

fn answer_all(queue: &OrderQueue, batch: Vec<WaitingOrder>, outcomes: Vec<Outcome>) {
    let remaining = outcomes.iter().filter_map(|outcome| match outcome {
        Outcome::Reserved(accepted) => Some(accepted.remaining),
        Outcome::SoldOut { remaining } => Some(*remaining),
        Outcome::Conflict => None,
    });
    if let Some(remaining) = remaining.min() {
        queue.set_remaining_hint(remaining);
    }
    for (waiting, outcome) in batch.into_iter().zip(outcomes) {
        waiting.answer(Ok(outcome));
    }
}
