//! One tenure of the lock for many orders.
//!
//! Each item has a queue of waiting orders. One task takes the lock for all of them and runs them in batches
//! through the store's script, under one token. So one commit in etcd pays for all waiting orders, and one
//! sync of Redis' file for a whole batch. Orders that arrive while two batches are in flight form the next one.
//! Within a process this is flat combining (Hendler et al. 2010), across processes lock cohorting (Dice et
//! al. 2012).
//!
//! The lock is kept while no other claim waits for it, and a batch then costs etcd nothing. When another
//! claim waits, the `hold_policy` ends the tenure. The release and the next claim are then one transaction; a
//! tenure without an order ends with the release alone.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::Guard;
use futures_util::StreamExt as _;
use futures_util::future::join;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{Instrument as _, Span};

use super::hold_policy::HoldPolicy;
use super::lock::{LOCK_PAUSE, STORE_PAUSE, is_refused, unavailable};
use super::order_queue::{Answer, OrderQueue, Unanswered, WaitingOrder};
use super::retry::until_known;
use super::{EtcdLock, SaleContext, SaleError, SaleOptions};
use crate::inventory::{Action, InventoryError, Order, Outcome};
use crate::process::spawn;

/// How long the task of an item runs, and keeps the lock, after the last order.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// How many batches may be on their way to the store at a time. While it runs one, the buyers that the other one answered
/// order again; more than two sell less, as they are smaller.
const BATCHES_IN_FLIGHT: usize = 2;

/// The pause before the next request for the lock after the lock service refused: only an operator can repair that.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// The pause before the lock is asked for again after it was lost.
const LOST_PAUSE: Duration = Duration::from_millis(10);

impl EtcdLock {
    /// Puts the order into the queue of its item, which is created and served from now on if necessary. The map is
    /// locked meanwhile: only a queue that is in the map gets orders, and its task removes it before it ends.
    pub(super) fn push(&self, order: Order) -> Result<oneshot::Receiver<Answer>, SaleError> {
        let mut queues = self.queues.lock();
        if let Some(queue) = queues.get(&order.item) {
            return queue.push(order);
        }
        let SaleOptions { queue_length, wait_timeout, .. } = self.context.options;
        let queue = Arc::new(OrderQueue::new(order.item.clone(), queue_length, wait_timeout));
        queues.insert(order.item.clone(), Arc::clone(&queue));
        let combiner =
            Combiner { lock: self.clone(), queue: Arc::clone(&queue), firsts: Mutex::default() };
        spawn(self.context.tasks.track_future(async move { combiner.run().await }));
        queue.push(order)
    }
}

/// Serves the queue of one item. When its task ends, also by a panic, the drop of this value answers the orders that
/// still wait, and the next order creates a new queue.
struct Combiner {
    lock: EtcdLock,
    queue: Arc<OrderQueue>,
    /// The orders that this instance sent again and gave their first answers, while others of their time wait.
    firsts: Mutex<HashSet<(String, Action)>>,
}

impl Combiner {
    /// Serves the queue until no order came for a while, or the sale stops. Orders that wait too long are answered
    /// meanwhile.
    async fn run(&self) {
        self.queue.while_expiring(self.serve(), |waiting| self.too_late(waiting)).await;
    }

    async fn serve(&self) {
        let Self { lock, queue, .. } = self;
        let stopping = &lock.context.stopping;
        let mut policy = HoldPolicy::new(lock.context.options.tenure);
        loop {
            tokio::select! {
                biased;
                () = stopping.cancelled() => return,
                () = queue.arrival() => {}
                () = sleep(IDLE_TIMEOUT) => {
                    let mut queues = lock.queues.lock();
                    if queue.len() == 0 {
                        queues.remove(&queue.item);
                        return;
                    }
                }
            }
            let asked_at = Instant::now();
            let pause = tokio::select! {
                biased;
                () = stopping.cancelled() => return,
                locked = lock.take(&queue.item) => match locked {
                    Ok(guard) => self.hold(guard, &mut policy, asked_at).await,
                    Err(error) => {
                        let pause = if is_refused(&error) { REFUSED_PAUSE } else { LOCK_PAUSE };
                        let error = Arc::new(error);
                        queue.fail_all(|_| unavailable(Arc::clone(&error)));
                        Some(pause)
                    }
                },
                () = queue.until_empty() => None,
            };
            if let Some(pause) = pause {
                sleep(pause).await;
            }
        }
    }

    /// Sells until the lock is released or lost. Returns the pause before it is taken again, if there is one.
    async fn hold(
        &self,
        mut guard: Guard,
        policy: &mut HoldPolicy,
        mut asked_at: Instant,
    ) -> Option<Duration> {
        let Self { lock, queue, .. } = self;
        let SaleContext { metrics, stopping, .. } = &*lock.context;
        loop {
            let tenure = metrics.granted(asked_at, guard.token().revision());
            policy.granted(Instant::now(), guard.enqueued_in());
            let answers = match self.sell(&guard, policy, &tenure.span).await {
                Ok(answers) => answers,
                Err(pause) => return pause,
            };
            // no order came during the whole tenure: the next order takes the lock again
            if !policy.has_sold() {
                return None;
            }
            drop(tenure);
            metrics.handovers.add(1);
            asked_at = Instant::now();
            // The next claim is made even if no order waits: the buyers that were just answered may order again, and
            // this way release and claim are one transaction. It leaves before the answers: to send hundreds of them takes a
            // good part of a handover.
            let span = tracing::debug_span!("claim", item = %queue.item);
            let next = tokio::select! {
                biased;
                (next, ()) = join(guard.requeue().instrument(span), async { deliver(answers) }) => next,
                () = stopping.cancelled() => return None,
            };
            match next {
                Ok(next) => guard = next,
                Err(error) => {
                    tracing::debug!(?error, "the lock did not come back: asking for it anew");
                    return None;
                }
            }
        }
    }

    /// Runs batches until the lock is to be handed over, and returns the answers of the last one. Fails if the tenure ends in
    /// another way, with the pause before the lock is taken again, if there is one.
    async fn sell(
        &self,
        guard: &Guard,
        policy: &mut HoldPolicy,
        tenure: &Span,
    ) -> Result<Answers, Option<Duration>> {
        let Self { lock, queue, .. } = self;
        let SaleContext { inventory, metrics, stopping, options, .. } = &*lock.context;
        // a batch waits until the replicas have the one before it, and not longer than for one
        let in_flight = if inventory.replicas().is_some() { 1 } else { BATCHES_IN_FLIGHT };
        let (mut batches, mut sent) = (FuturesUnordered::new(), HashSet::new());
        let (mut answers, mut failure, mut ends) = (Vec::new(), None, false);
        loop {
            let is_contended = guard.is_contended();
            let is_idle = batches.is_empty() && queue.len() == 0;
            ends |= failure.is_some() || is_contended && policy.is_over(Instant::now(), is_idle);
            let can_send = !ends && batches.len() < in_flight;
            let most = if can_send { options.batch_size } else { 0 };
            let mut batch = queue.take(most, &sent);
            if !batch.is_empty() {
                policy.sends(batch.len());
                let span = tracing::debug_span!(parent: tenure, "batch", orders = batch.len());
                let known = inventory.known_position(&queue.item);
                for waiting in &mut batch {
                    span.follows_from(&waiting.span);
                    if waiting.unknown.is_none() {
                        waiting.sent_behind = Some((known, guard.token()));
                    }
                }
                let keys: Vec<_> = batch.iter().map(|waiting| waiting.order.key()).collect();
                sent.extend(keys.iter().cloned());
                let run = self.run_batch(guard, batch, policy.ends_at()).instrument(span);
                let sent_at = Instant::now();
                batches.push(async move { (keys, sent_at, run.await) });
                continue;
            }
            if ends && batches.is_empty() {
                let Some((is_lost, pause)) = failure else { return Ok(answers) };
                deliver(answers);
                metrics.lost_tenures.add(u64::from(is_lost));
                return Err(Some(pause));
            }
            deliver(std::mem::take(&mut answers));
            let at_rest = batches.is_empty();
            let give_up =
                if is_contended { policy.look_at() } else { Instant::now() + IDLE_TIMEOUT };
            tokio::select! {
                biased;
                Some((keys, sent_at, ran)) = batches.next() => {
                    for key in &keys {
                        sent.remove(key);
                    }
                    policy.ran(Instant::now(), sent_at.elapsed());
                    match ran {
                        Ok(ran) => answers = ran,
                        Err(latest) => failure = failure.max(Some(latest)),
                    }
                }
                () = queue.arrived.notified(), if can_send => {}
                () = stopping.cancelled(), if at_rest => return Err(None),
                () = guard.lost(), if at_rest => {
                    metrics.lost_tenures.add(1);
                    return Err(None);
                }
                () = guard.contended(), if at_rest && !is_contended => {}
                () = sleep_until(give_up), if at_rest => {
                    if !is_contended {
                        return Err(None);
                    }
                }
            }
        }
    }

    /// Runs one batch under the guard's token. Returns the answers; or, if the tenure is over, answers the orders or puts
    /// them back into the queue, and returns whether the lock was lost, and the pause before it is taken again.
    ///
    /// A lost answer is not a failure: the batch is sent again, under the same token, while the lock is held, and no longer
    /// than the tenure may last if another instance waits. A store that does not answer this instance may answer that one.
    async fn run_batch(
        &self,
        guard: &Guard,
        mut batch: Vec<WaitingOrder>,
        ends_at: Instant,
    ) -> Result<Answers, (bool, Duration)> {
        let Self { lock, queue, .. } = self;
        let SaleContext { inventory, options, metrics, stock_reads, .. } = &*lock.context;
        let put_back_for_another_tenure = |batch| {
            queue.put_back(batch);
            Err((true, LOST_PAUSE))
        };
        // the step that changes the stock takes the lock itself; re-entry costs nothing
        let Ok(entry) = guard.reenter() else { return put_back_for_another_tenure(batch) };
        let deadline = Instant::now() + options.wait_timeout;
        let sent_before = batch.iter().filter_map(|waiting| waiting.unknown.as_ref());
        let sent_under = sent_before.map(|(_, token)| *token).min_by_key(|token| token.revision());
        let token = Some(entry.token());
        let send = || async {
            let orders: Vec<&Order> = batch.iter().map(|waiting| &waiting.order).collect();
            let sent_at = Instant::now();
            let (item, instance) = (&queue.item, &*options.instance);
            let ran = inventory.reduce_again(item, token, sent_under, instance, &orders).await;
            metrics.batch(orders.len(), sent_at, &ran);
            ran
        };
        let may_repeat = |error: &Arc<InventoryError>| {
            if !is_stale(error) {
                tracing::warn!(orders = batch.len(), ?error, "the store did not reduce");
                // the next orders read the stock first, and soon notice that the store does not answer
                stock_reads.forget(&queue.item);
            }
            *queue.store_error.lock() =
                Some(Arc::clone(error)).filter(|error| error.is_retryable());
            self.can_repeat(error, &batch, deadline)
                && !entry.is_lost()
                && !(entry.is_contended() && Instant::now() >= ends_at)
        };
        let (ran, unanswered) = until_known(send, may_repeat).await;
        let unanswered = unanswered.map(|error| (error, entry.token()));
        lock.note_answer(&queue.item, ran.as_ref().err(), entry.is_contended());
        let latest = match ran {
            Ok(outcomes) => {
                let (answers, is_decided) = self.answers(batch, outcomes, unanswered.as_ref());
                if is_decided {
                    return Ok(answers);
                }
                deliver(answers);
                return Err((false, LOST_PAUSE));
            }
            Err(latest) => latest,
        };
        // refused, since a sale began in which what was sent before must not be carried out again
        let is_replaced = matches!(*latest, InventoryError::SaleRefused { .. });
        let unanswered = unanswered.filter(|_| !is_replaced);
        let can_repeat = self.can_repeat(&latest, &batch, deadline);
        for waiting in &mut batch {
            waiting.unknown = waiting.unknown.take().or_else(|| unanswered.clone());
            waiting.stale = Some(Arc::clone(&latest)).filter(|error| is_stale(error));
        }
        if is_stale(&latest) || can_repeat && entry.is_lost() {
            return put_back_for_another_tenure(batch);
        }
        if can_repeat {
            queue.put_back(batch);
        } else {
            // what was sent first stays unknown; the others are for the sale that runs
            let token = |order: &WaitingOrder| order.unknown.as_ref().map(|(_, token)| *token);
            let (batch, others): (Vec<_>, _) =
                batch.into_iter().partition(|order| !is_replaced || token(order) == sent_under);
            queue.put_back(others);
            for waiting in batch {
                waiting.fail(|waiting| SaleError::of_order(Arc::clone(&latest), &waiting.order));
            }
        }
        // the next claim waits for an answer of a silent store
        Err((false, if latest.is_silence() { LOST_PAUSE } else { STORE_PAUSE }))
    }

    /// The answers to the orders of a batch, and whether no order is left. With `unanswered`, an earlier attempt to send the
    /// batch may still arrive at the store. Orders that it could then change wait for another tenure, whose token makes that
    /// attempt stale.
    fn answers(
        &self,
        batch: Vec<WaitingOrder>,
        outcomes: Vec<Outcome>,
        unanswered: Option<&Unanswered>,
    ) -> (Answers, bool) {
        let Self { lock, queue, .. } = self;
        let left = outcomes.iter().filter_map(|outcome| match outcome {
            Outcome::Reserved(accepted) => Some(accepted.remaining),
            Outcome::Changed { change, is_repeated: false } => Some(change.remaining),
            Outcome::SoldOut { remaining } => Some(*remaining),
            _ => None,
        });
        if let Some(left) = left.min() {
            lock.context.stock_reads.note(&queue.item, i64::try_from(left).unwrap_or(i64::MAX));
        }
        queue.store_error.lock().take();
        let with_holds = || lock.context.inventory.items_with_holds();
        let has_holds = unanswered.is_some() && with_holds().contains(&queue.item);
        let (mut answers, mut undecided, mut firsts) = (Vec::new(), Vec::new(), self.firsts.lock());
        // orders that were put back are the first ones of a batch
        if unanswered.is_none() && batch.iter().all(|waiting| waiting.unknown.is_none()) {
            firsts.clear();
        }
        for (mut waiting, outcome) in batch.into_iter().zip(outcomes) {
            if unanswered.is_some() && outcome.may_change(has_holds) || outcome == Outcome::HoldsDue
            {
                waiting.unknown = waiting.unknown.or_else(|| unanswered.cloned());
                undecided.push(waiting);
                continue;
            }
            // this instance sent the order again by itself: its buyer asked once, and gets a first answer; for an order that
            // comes twice only once, also if the first of both was accepted now
            let is_own = unanswered.is_some() || waiting.unknown.is_some();
            let is_done = matches!(
                outcome,
                Outcome::Reserved(_) | Outcome::Repeated(_) | Outcome::Changed { .. }
            );
            let is_first = is_own
                && is_done
                && firsts.insert((waiting.order.key(), waiting.order.action))
                && waiting.was_done_for(&outcome, &lock.context.options.instance);
            answers.push((waiting, if is_first { outcome.into_first() } else { outcome }));
        }
        // an answer that can come late is the only reason for another tenure
        let is_decided = unanswered.is_none() || undecided.is_empty();
        queue.put_back(undecided);
        (answers, is_decided)
    }

    /// Whether to send the batch again: yes if it got no answer, no if the store refused it, since it would refuse again.
    fn can_repeat(
        &self,
        error: &InventoryError,
        batch: &[WaitingOrder],
        deadline: Instant,
    ) -> bool {
        let is_refused = matches!(error, InventoryError::Refused { .. });
        error.is_retryable()
            && !is_refused
            && Instant::now() < deadline
            && !self.lock.context.stopping.is_cancelled()
            && !batch.iter().all(WaitingOrder::is_disconnected)
    }

    /// The error of an order that has waited too long.
    fn too_late(&self, waiting: &WaitingOrder) -> SaleError {
        match self.queue.store_error.lock().as_ref().or(waiting.stale.as_ref()) {
            Some(error) => SaleError::of_read(Arc::clone(error), &self.queue.item),
            None => self.lock.not_granted(&self.queue.item),
        }
    }
}

/// Orders with their outcomes.
type Answers = Vec<(WaitingOrder, Outcome)>;

fn deliver(answers: Answers) {
    for (waiting, outcome) in answers {
        waiting.answer(Ok(outcome));
    }
}

fn is_stale(error: &InventoryError) -> bool {
    matches!(error, InventoryError::StaleToken { .. })
}

impl Drop for Combiner {
    fn drop(&mut self) {
        let Self { lock, queue, .. } = self;
        lock.context.stock_reads.forget(&queue.item);
        // its task may have removed it already, and an order may have created the next one
        lock.queues.lock().retain(|_, other| !Arc::ptr_eq(other, queue));
        queue.fail_all(|_| SaleError::Stopping);
    }
}
