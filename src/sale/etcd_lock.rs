//! The lock that all instances share.

use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{LockError, QueueEntry, SessionKeeper};
use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep, timeout_at};

use super::combiner::Combiner;
use super::guard::{GuardStatus, SaleGuard};
use super::tenure::{self, lock_name};
use super::{QUESTION_TIMEOUT, SaleContext, SaleError, StockCheck};
use crate::inventory::{Item, Order, Outcome, Stock};

/// How many locks the readiness check tries.
const MAX_CHECKED_LOCKS: usize = 8;

/// The pause before a start that the store did not answer is repeated.
const START_PAUSE: Duration = Duration::from_millis(200);

/// The lock that all instances share. An instance takes it for all orders that wait there.
pub struct EtcdLock {
    context: Arc<SaleContext>,
    sessions: SessionKeeper,
    combiner: Arc<Combiner>,
}

impl EtcdLock {
    /// A guard that takes the lock in these sessions.
    pub fn new(context: &Arc<SaleContext>, sessions: SessionKeeper) -> Self {
        let combiner = Combiner::new(Arc::clone(context), sessions.clone());
        Self { context: Arc::clone(context), sessions, combiner }
    }

    /// As [`SaleGuard::reduce`], without its box. Reads the stock first, unless the last read had enough units.
    pub(super) async fn reduce_order(&self, order: Order) -> Result<Outcome, SaleError> {
        let known = self.combiner.known(&order.item);
        let queue = match known.filter(|queue| queue.was_seen_with(order.quantity.get())) {
            Some(queue) => queue,
            None => match self.context.check_stock(&order).await? {
                StockCheck::Answer(outcome) => return Ok(outcome),
                StockCheck::Available(units) => {
                    let queue = self.combiner.queue_of(&order.item);
                    queue.see(units);
                    queue
                }
            },
        };
        self.combiner.reduce(queue, order).await
    }

    fn name_for(&self, item: &Item) -> String {
        lock_name(&self.context.options.lock_name, item)
    }

    async fn start_sale(&self, item: &Item, units: u64) -> Result<Stock, SaleError> {
        let guard = self.combiner.take(&self.name_for(item)).await?;
        let deadline = Instant::now() + self.context.options.wait_timeout;
        let mut silence = None;
        loop {
            let token = Some(guard.token());
            let error = match self.context.inventory.start(item, token, units).await {
                Ok(stock) => return Ok(stock),
                Err(error) => error,
            };
            // while the lock is held no order can run, so repeating the start changes nothing
            let is_held = !guard.is_lost();
            if !is_held || !error.is_retryable() || Instant::now() + START_PAUSE >= deadline {
                // an attempt without an answer outweighs a later refusal: the sale may have been started
                return Err(SaleError::of_start(silence.unwrap_or(error), item));
            }
            if !error.nothing_written() {
                silence = Some(error);
            }
            sleep(START_PAUSE).await;
        }
    }

    async fn read_queue(&self, item: &Item) -> Result<Vec<QueueEntry>, SaleError> {
        let deadline = Instant::now() + QUESTION_TIMEOUT;
        let mutex = tenure::mutex_of(&self.sessions, &self.name_for(item), deadline).await?;
        let entries = timeout_at(deadline, mutex.queue()).await;
        let entries = entries.unwrap_or(Err(LockError::Timeout { waited: QUESTION_TIMEOUT }));
        entries.map_err(tenure::unavailable)
    }

    /// Whether the lock of some known item can be had.
    async fn probe(&self) -> Result<(), SaleError> {
        let deadline = Instant::now() + QUESTION_TIMEOUT;
        let mut first_error = None;
        for item in self.context.inventory.known_items(MAX_CHECKED_LOCKS) {
            let mutex = tenure::mutex_of(&self.sessions, &self.name_for(&item), deadline).await?;
            let error = match mutex.probe().await.map_err(tenure::unavailable) {
                Ok(Some(front)) if front.lease == 0 => {
                    SaleError::LockBlocked { item, key: front.key }
                }
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            first_error.get_or_insert(error);
        }
        first_error.map_or(Ok(()), Err)
    }
}

impl SaleGuard for EtcdLock {
    fn status(&self) -> GuardStatus {
        GuardStatus {
            name: "etcd",
            description: "the lock",
            without: Vec::new(),
            warnings: Vec::new(),
        }
    }

    fn reduce(&self, order: Order) -> BoxFuture<'_, Result<Outcome, SaleError>> {
        Box::pin(self.reduce_order(order))
    }

    fn start<'a>(&'a self, item: &'a Item, units: u64) -> BoxFuture<'a, Result<Stock, SaleError>> {
        Box::pin(self.start_sale(item, units))
    }

    fn queue<'a>(&'a self, item: &'a Item) -> BoxFuture<'a, Result<Vec<QueueEntry>, SaleError>> {
        Box::pin(self.read_queue(item))
    }

    fn lock_name(&self, item: &Item) -> Option<String> {
        Some(self.name_for(item))
    }

    fn check(&self) -> BoxFuture<'_, Result<(), SaleError>> {
        Box::pin(self.probe())
    }

    fn sessions(&self) -> Option<&SessionKeeper> {
        Some(&self.sessions)
    }

    fn waiting(&self) -> usize {
        self.combiner.waiting()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.sessions.close())
    }
}
