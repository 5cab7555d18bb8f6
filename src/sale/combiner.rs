//! One tenure of the lock for many orders.
//!
//! Each item has a queue of waiting orders. One task takes the lock for all of them and runs them in batches through
//! the store's script, under one token. One commit in etcd pays for all waiting orders, and one sync of Redis' file
//! pays for a whole batch. Orders that arrive while two batches are in flight form the next one. Within a process this
//! is flat combining (Hendler et al. 2010), across processes lock cohorting (Dice et al. 2012).
//!
//! A holder keeps the lock while no other claim waits, and a batch then costs etcd nothing. When another claim waits,
//! the `hold_policy` ends the tenure. One transaction then releases the lock and makes the next claim. A tenure without
//! an order ends with a release alone.

use std::future::{pending, ready};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{Guard, LockError, Mutex};
use futures_util::StreamExt as _;
use futures_util::future::join;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

use super::batch::{Answer, BATCHES_IN_FLIGHT, Batch, Ending, Sent, To, WaitingOrder};
use super::forward::Forwarding;
use super::hold_policy::HoldPolicy;
use super::lock::{LOCK_PAUSE, is_refused, unavailable};
use super::order_queue::OrderQueue;
use super::{EtcdLock, SaleContext, SaleError};
use crate::peers::FRAME_LIFE;
use crate::peers::wire::Tenure;
use crate::process::spawn;

/// How long the task of an item runs, and keeps the lock, after the last order.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

// `Forwarding` forgets silent holders when the queue ends: by then a lost frame must be too old to be taken
const _: () = assert!(IDLE_TIMEOUT.as_millis() > 2 * FRAME_LIFE.as_millis());

/// The pause before the next claim after the lock service refused one. Only an operator can repair that.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// Serves the queue of one item. When its task ends or panics, the drop of this value answers the orders that still
/// wait, and the next order creates a new queue.
pub(super) struct Combiner {
    lock: EtcdLock,
    queue: Arc<OrderQueue>,
    /// Sends orders to the holder, if this instance has peers.
    forwarding: Option<Arc<Forwarding>>,
    /// Cancelled when a batch on its way to the holder panics: the queue would count the batch's orders as in flight for ever.
    broken: CancellationToken,
}

impl Combiner {
    pub(super) fn new(lock: &EtcdLock, queue: &Arc<OrderQueue>) -> Self {
        let forwarding = lock.context.options.peers.as_ref().map(Forwarding::new);
        let (lock, queue, broken) = (lock.clone(), Arc::clone(queue), CancellationToken::new());
        Self { lock, queue, forwarding, broken }
    }

    /// Serves the queue until no order comes for a while or the sale stops. Fails orders that wait too long.
    pub(super) async fn run(self) {
        // boxed because it is large
        let serve = self.broken.run_until_cancelled(Box::pin(self.serve()));
        self.queue.while_expiring(serve, |waiting| too_late(&self.lock, waiting)).await;
    }

    async fn serve(&self) {
        let Self { lock, queue, forwarding, .. } = self;
        let stopping = &lock.context.stopping;
        let mut policy = HoldPolicy::new(lock.context.options.tenure);
        loop {
            tokio::select! {
                biased;
                () = stopping.cancelled() => return,
                () = queue.arrival() => {}
                () = sleep(IDLE_TIMEOUT) => {
                    let mut queues = lock.queues.lock();
                    if queue.is_unused() {
                        queues.remove(&queue.item);
                        return;
                    }
                }
            }
            let asked_at = Instant::now();
            let pause = tokio::select! {
                biased;
                () = stopping.cancelled() => return,
                locked = lock.take(&queue.item, forwarding.as_deref()) => match locked {
                    Ok((guard, mutex)) => self.hold(guard, &mutex, &mut policy, asked_at).await,
                    Err(error) => Some(self.refused(error).await),
                },
                () = self.forward() => None,
                () = self.until_useless() => None,
            };
            if let Some(pause) = pause {
                // `forward` never ends by itself
                let _ = timeout(pause, self.forward()).await;
            }
        }
    }

    /// Waits after the lock service refused a claim. If orders cannot go to the holder either, fails them. Returns the
    /// pause before the next claim.
    async fn refused(&self, error: LockError) -> Duration {
        let pause = if is_refused(&error) { REFUSED_PAUSE } else { LOCK_PAUSE };
        let error = Arc::new(error);
        let are_stuck = async {
            if let Some(forwarding) = &self.forwarding {
                forwarding.until_it_asks().await;
            }
        };
        tokio::select! {
            biased;
            () = self.forward() => {}
            () = are_stuck => self.queue.fail_all(|_| unavailable(Arc::clone(&error))),
            () = sleep(pause) => return Duration::ZERO,
        }
        pause
    }

    /// Waits until the waiting claim is of no use.
    async fn until_useless(&self) {
        match self.forwarding {
            // batches to the holder empty the queue, and further orders come
            Some(_) => self.queue.until_unused_for(IDLE_TIMEOUT).await,
            None => self.queue.until_empty().await,
        }
    }

    /// Sends batches to the holder of the lock, if that is a peer within reach. Each batch is a task of its own, which
    /// outlives this future. Never ends.
    async fn forward(&self) {
        let Self { lock, queue, forwarding, broken } = self;
        let Some(forwarding) = forwarding else { return pending().await };
        let watched = lock.sessions.watch_holder(&lock.name_of(&queue.item));
        let Some(mut holder) = watched else { return pending().await };
        loop {
            let has_orders = queue.len() > 0;
            let metrics = &lock.context.metrics;
            let look_at = match forwarding.remote(&mut holder, has_orders, metrics) {
                Ok((remote, place)) => {
                    let orders = queue.take(lock.context.options.batch_size, &remote.tenure);
                    if !orders.is_empty() {
                        let (lock, queue) = (lock.clone(), Arc::clone(queue));
                        let tasks = lock.context.tasks.clone();
                        let panics = broken.clone().drop_guard();
                        spawn(tasks.track_future(async move {
                            let to = To::Holder(&remote);
                            let ran = Batch { lock: &lock, to, orders }.run(&Span::none()).await;
                            deliver(queue.settle(ran.fates, |waiting| too_late(&lock, waiting)));
                            drop(place);
                            queue.arrived.notify_one();
                            panics.disarm();
                        }));
                        continue;
                    }
                    None
                }
                Err(look_at) => look_at,
            };
            let look = async {
                match look_at {
                    Some(look_at) => sleep_until(look_at).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                biased;
                Ok(()) = holder.changed() => {}
                () = queue.arrived.notified() => {}
                () = look => {}
            }
        }
    }

    /// Sells until the lock is released or lost. Returns the pause before the next claim, if there is one.
    async fn hold(
        &self,
        mut guard: Guard,
        mutex: &Mutex,
        policy: &mut HoldPolicy,
        mut asked_at: Instant,
    ) -> Option<Duration> {
        let Self { lock, queue, forwarding, .. } = self;
        let SaleContext { metrics, stopping, .. } = &*lock.context;
        let asking = async || match forwarding {
            Some(forwarding) => forwarding.ask_for_turn(mutex).await,
            None => pending().await,
        };
        loop {
            // a standby claim asks for no turn, so its wait does not count
            let waits_since = forwarding.as_ref().map_or(asked_at, |it| it.waits_since());
            let tenure = metrics.granted(waits_since, guard.token().revision());
            policy.granted(Instant::now(), guard.enqueued_in());
            let named = Tenure { key: guard.key().into(), token: guard.token() };
            let sold = self.sell(&guard, &Arc::new(named), policy, &tenure.span).await;
            queue.end();
            let answers = match sold {
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
            // The next claim is made even if no order waits: the buyers that get these answers may order again, and one
            // transaction then releases the lock and makes the claim. The claim is sent before the answers: sending
            // hundreds of answers takes a good part of a handover.
            let span = tracing::debug_span!("claim", item = %queue.item);
            let next = tokio::select! {
                biased;
                (next, ()) = join(guard.requeue().instrument(span), async { deliver(answers) }) => next,
                () = stopping.cancelled() => return None,
                () = self.forward() => return None,
                () = asking() => return None,
            };
            match next {
                Ok(next) if lock.must_give_way(&queue.item, &next) => return None,
                Ok(next) => guard = next,
                Err(error) => {
                    tracing::debug!(?error, "the lock did not come back: asking for it anew");
                    return None;
                }
            }
        }
    }

    /// Runs batches until the lock is to be handed over, and returns the answers of the last one. If the tenure ends in
    /// another way, fails with the pause before the next claim, if there is one.
    async fn sell(
        &self,
        guard: &Guard,
        named: &Arc<Tenure>,
        policy: &mut HoldPolicy,
        tenure: &Span,
    ) -> Result<Answers, Option<Duration>> {
        let Self { lock, queue, forwarding, .. } = self;
        if let Some(forwarding) = forwarding {
            forwarding.granted();
            queue.begin(named);
        }
        let SaleContext { inventory, metrics, stopping, options, .. } = &*lock.context;
        // each batch waits for the replicas: a second one would only wait behind it
        let in_flight = if inventory.replicas().is_some() { 1 } else { BATCHES_IN_FLIGHT };
        let mut batches = FuturesUnordered::new();
        let (mut answers, mut ending, mut gives_way) = (Answers::new(), None, false);
        // whether no waiting order can be taken: the same order is still on its way to the last holder
        let mut all_wait = false;
        loop {
            let is_contended = guard.is_contended();
            let is_idle = batches.is_empty() && (all_wait || queue.len() == 0);
            gives_way |= is_contended && policy.is_over(Instant::now(), is_idle);
            let is_over = gives_way || ending.is_some();
            let can_send = !is_over && batches.len() < in_flight;
            // re-entry costs nothing, and gives each batch a hold of its own
            if can_send && let Ok(hold) = guard.reenter() {
                let orders = queue.take(options.batch_size, named);
                if !orders.is_empty() {
                    policy.sends(orders.len());
                    let to = To::Store { hold, ends_at: policy.ends_at(), queue };
                    batches.push(Batch { lock, to, orders }.run(tenure));
                    continue;
                }
                if !all_wait && queue.len() > 0 {
                    all_wait = true;
                    continue;
                }
            }
            let at_rest = batches.is_empty();
            if is_over && at_rest {
                let Some(Ending { is_lost, pause }) = ending else { return Ok(answers) };
                deliver(answers);
                metrics.lost_tenures.add(u64::from(is_lost));
                return Err(Some(pause));
            }
            let give_up =
                if is_contended { policy.look_at() } else { Instant::now() + IDLE_TIMEOUT };
            tokio::select! {
                biased;
                // polling this also sends the latest batch
                Some(ran) = batches.next() => {
                    all_wait = false;
                    policy.ran(Instant::now(), ran.took);
                    if ran.ending.is_none() {
                        queue.store_answered();
                    }
                    ending = ending.max(ran.ending);
                    let settled = queue.settle(ran.fates, |waiting| too_late(lock, waiting));
                    deliver(mem::replace(&mut answers, settled));
                }
                // the next batch is on its way meanwhile
                () = ready(()), if !answers.is_empty() => deliver(mem::take(&mut answers)),
                () = queue.arrived.notified(), if can_send => all_wait = false,
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
}

/// The error of an order whose time is over.
fn too_late(lock: &EtcdLock, waiting: &WaitingOrder) -> SaleError {
    match &waiting.sent {
        Sent::Stale(error) => SaleError::of_read(Arc::clone(error), &waiting.order.item),
        _ => lock.not_granted(&waiting.order.item),
    }
}

type Answers = Vec<(WaitingOrder, Answer)>;

fn deliver(answers: Answers) {
    for (waiting, answer) in answers {
        waiting.answer(answer);
    }
}

impl Drop for Combiner {
    fn drop(&mut self) {
        let Self { lock, queue, .. } = self;
        lock.context.stock_reads.forget(&queue.item);
        // the task may have removed its queue already, and an order may have created the next one
        lock.queues.lock().retain(|_, other| !Arc::ptr_eq(other, queue));
        queue.close();
    }
}

#[cfg(test)]
mod tests {
    use fenced_lock::{ClusterId, Token};

    use super::*;
    use crate::inventory::{InventoryError, Item, Order};
    use crate::sale::lock::tests::{SECOND, lock};

    /// Goal: when the task of an item ends too early, as by a panic, the waiting orders are answered, and the next
    /// order gets another queue.
    #[tokio::test]
    async fn a_queue_ends_with_its_task() {
        let (lock, _service) = lock();
        let queue = Arc::new(OrderQueue::new(Item::DEFAULT, 9, 10 * SECOND));
        lock.queues.lock().insert(Item::DEFAULT, Arc::clone(&queue));
        let mut answer = queue.push(Order::expiring(Item::DEFAULT)).expect("room");
        drop(Combiner::new(&lock, &queue));
        assert!(matches!(answer.try_recv(), Ok(Err(SaleError::Stopping))));
        assert!(lock.queues.lock().is_empty());
    }

    /// Goal: an order that waited too long, and was refused at last since its token was stale, is told that and not of the lock.
    #[tokio::test]
    async fn a_stale_order_is_told_so() {
        let (lock, _service) = lock();
        let queue = OrderQueue::new(Item::DEFAULT, 9, 10 * SECOND);
        let _answer = queue.push(Order::expiring(Item::DEFAULT)).expect("room");
        let token = Token::new(ClusterId(1), 1);
        let mut waiting = queue.take(1, &Tenure { key: "a".into(), token }).remove(0);
        assert!(!matches!(too_late(&lock, &waiting), SaleError::Store { .. }));
        let stale = InventoryError::StaleToken { token, fence: token };
        waiting.sent = Sent::Stale(Arc::new(stale));
        assert!(matches!(too_late(&lock, &waiting), SaleError::Store { .. }));
    }
}
