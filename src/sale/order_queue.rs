//! Orders that wait for the lock.

use std::collections::{HashSet, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::Token;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep, timeout_at};
use tracing::Span;

use super::SaleError;
use crate::inventory::{Action, InventoryError, Item, Order, Outcome};

/// How often the orders of disconnected buyers are removed: they take places in the queue, and a claim without orders
/// delays other instances.
const SWEEP_EVERY: Duration = Duration::from_millis(100);

/// The part of the queue that only confirmations and cancellations may take: buyers who have paid, or give units back, must not
/// find the queue full of others.
const RESERVE: usize = 5;

/// The waiting orders, in the order in which they are taken: those that were sent and put back; confirmations and cancellations;
/// and others. Each line is in the order of arrival.
type Lines = [VecDeque<WaitingOrder>; 3];

const PUT_BACK: usize = 0;
const FIRST: usize = 1;
const OTHERS: usize = 2;

/// The answer to an order.
pub(super) type Answer = Result<Outcome, SaleError>;

/// The error of an attempt that was sent and not answered, and its token.
pub(super) type Unanswered = (Arc<InventoryError>, Token);

/// An order that waits, or is in a batch.
pub(super) struct WaitingOrder {
    pub(super) order: Order,
    /// Closed when the buyer disconnected.
    reply: oneshot::Sender<Answer>,
    deadline: Instant,
    /// The span that it came from.
    pub(super) span: Span,
    /// The first attempt that was sent and not answered: the order may have been accepted.
    pub(super) unknown: Option<Unanswered>,
    /// The error of its latest batch, if that was stale.
    pub(super) stale: Option<Arc<InventoryError>>,
    /// How far the ledger was known here when the order was first sent, and under which token.
    pub(super) sent_behind: Option<(u64, Token)>,
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

    /// Whether this instance wrote what the outcome tells after the order was first sent. Nobody else was answered then.
    pub(super) fn was_done_for(&self, outcome: &Outcome, instance: &str) -> bool {
        let (Outcome::Repeated(entry) | Outcome::Changed { change: entry, .. }) = outcome else {
            return false;
        };
        // the name alone may also be that of an instance on another machine
        let is_since = |(known, token)| entry.position > known && entry.token >= Some(token);
        entry.instance == instance && self.sent_behind.is_some_and(is_since)
    }

    /// Answers with an error. Once the order was sent and not answered, its outcome is unknown, whatever
    /// failed later.
    pub(super) fn fail(self, error: impl FnOnce(&Self) -> SaleError) {
        let error = match &self.unknown {
            Some((unknown, _)) => SaleError::of_order(Arc::clone(unknown), &self.order),
            None => error(&self),
        };
        self.answer(Err(error));
    }
}

/// The waiting orders of one item at this instance: confirmations and cancellations before others, and else first in, first
/// out. Bounded. All have the same time limit, so the first order of a line has its earliest deadline.
pub(super) struct OrderQueue {
    pub(super) item: Item,
    limit: usize,
    wait_timeout: Duration,
    lines: Mutex<Lines>,
    /// Notified of each order.
    pub(super) arrived: Notify,
    /// Why the latest batch failed in the store, while the orders of its time wait; `None` after one that succeeded or was stale.
    pub(super) store_error: Mutex<Option<Arc<InventoryError>>>,
}

impl OrderQueue {
    pub(super) fn new(item: Item, limit: usize, wait_timeout: Duration) -> Self {
        let (lines, arrived, store_error) = (Mutex::default(), Notify::new(), Mutex::default());
        Self { item, limit, wait_timeout, lines, arrived, store_error }
    }

    /// Puts the order at the end of its line. A fifth of the queue is for confirmations and cancellations.
    ///
    /// # Errors
    /// [`SaleError::QueueFull`].
    pub(super) fn push(&self, order: Order) -> Result<oneshot::Receiver<Answer>, SaleError> {
        let lines = &mut *self.lines.lock();
        let goes_first = matches!(order.action, Action::Confirm | Action::Cancel);
        let limit = self.limit - if goes_first { 0 } else { self.limit / RESERVE };
        let waiting = count(lines);
        if waiting >= limit {
            return Err(SaleError::QueueFull { item: self.item.clone(), limit });
        }
        // not before an earlier call for the same order
        let is_same =
            |other: &WaitingOrder| other.order.id == order.id && other.order.user == order.user;
        let line = if goes_first && !lines[OTHERS].iter().any(is_same) { FIRST } else { OTHERS };
        if waiting == 0 {
            // what failed for earlier orders is no error of this one
            self.store_error.lock().take();
        }
        let (reply, answer) = oneshot::channel();
        lines[line].push_back(WaitingOrder {
            order,
            reply,
            deadline: Instant::now() + self.wait_timeout,
            span: Span::current(),
            unknown: None,
            stale: None,
            sent_behind: None,
        });
        self.arrived.notify_one();
        Ok(answer)
    }

    /// Takes up to `most` orders from the front, without those of disconnected buyers. The same order as one that was `sent`,
    /// by its [key](Order::key), waits for its answer, and so do the orders behind it.
    pub(super) fn take(&self, most: usize, sent: &HashSet<String>) -> Vec<WaitingOrder> {
        let lines = &mut *self.lines.lock();
        let mut batch = Vec::with_capacity(most.min(count(lines)));
        for line in lines {
            while batch.len() < most
                && let Some(first) = line.pop_front_if(|first| !sent.contains(&first.order.key()))
            {
                if !first.is_disconnected() {
                    batch.push(first);
                }
            }
            if !line.is_empty() {
                break;
            }
        }
        batch
    }

    /// Puts a batch back to the front, in the order of arrival; behind a batch of earlier orders.
    pub(super) fn put_back(&self, batch: Vec<WaitingOrder>) {
        let waiting = &mut self.lines.lock()[PUT_BACK];
        for order in batch.into_iter().rev() {
            let place = waiting.partition_point(|other| other.deadline < order.deadline);
            waiting.insert(place, order);
        }
    }

    pub(super) fn len(&self) -> usize {
        count(&self.lines.lock())
    }

    /// How long the oldest order has waited; zero without one.
    pub(super) fn oldest(&self) -> Duration {
        let deadline = self.first_deadline();
        let left = deadline.map(|deadline| deadline - Instant::now());
        left.map_or(Duration::ZERO, |left| self.wait_timeout.saturating_sub(left))
    }

    /// Waits for an order whose buyer is still connected.
    pub(super) async fn arrival(&self) {
        while !self.has_orders() {
            // an earlier notification is kept
            self.arrived.notified().await;
        }
    }

    /// [Fails](WaitingOrder::fail) all waiting orders.
    pub(super) fn fail_all(&self, error: impl Fn(&WaitingOrder) -> SaleError) {
        for waiting in self.take(usize::MAX, &HashSet::new()) {
            waiting.fail(&error);
        }
    }

    /// Waits for `future`, and meanwhile [fails](WaitingOrder::fail) the orders whose time is over, and drops those of
    /// disconnected buyers.
    pub(super) async fn while_expiring<F: Future>(
        &self,
        future: F,
        error: impl Fn(&WaitingOrder) -> SaleError,
    ) -> F::Output {
        let mut future = pin!(future);
        let mut sweep_at = Instant::now();
        loop {
            let next = self.first_deadline().map_or(sweep_at, |deadline| deadline.min(sweep_at));
            if let Ok(output) = timeout_at(next, &mut future).await {
                return output;
            }
            let now = Instant::now();
            let is_swept = now >= sweep_at;
            if is_swept {
                sweep_at = now + SWEEP_EVERY;
            }
            let mut expired = Vec::new();
            for line in &mut *self.lines.lock() {
                if is_swept {
                    line.retain(|order| !order.is_disconnected());
                }
                let count = line.partition_point(|order| order.deadline <= now);
                expired.extend(line.drain(..count));
            }
            for order in expired {
                order.fail(&error);
            }
        }
    }

    /// Waits until no order waits.
    pub(super) async fn until_empty(&self) {
        while self.has_orders() {
            sleep(SWEEP_EVERY).await;
        }
    }

    /// Whether a connected buyer waits. Drops the orders of disconnected ones before that.
    fn has_orders(&self) -> bool {
        let lines = &mut *self.lines.lock();
        for line in &mut *lines {
            while line.pop_front_if(|order| order.is_disconnected()).is_some() {}
        }
        count(lines) > 0
    }

    fn first_deadline(&self) -> Option<Instant> {
        self.lines.lock().iter().filter_map(|line| Some(line.front()?.deadline)).min()
    }
}

fn count(lines: &Lines) -> usize {
    lines.iter().map(VecDeque::len).sum()
}

#[cfg(test)]
mod tests {
    use fenced_lock::ClusterId;

    use super::*;
    use crate::inventory::{OrderId, Quantity, User};

    fn order(id: &str) -> Order {
        Order {
            id: OrderId::new(id).expect("a valid id"),
            item: Item::DEFAULT,
            quantity: Quantity::new(1).expect("a valid quantity"),
            user: User::default(),
            action: Action::Reserve,
        }
    }

    /// Goal: an order that is asked for again while it is in a batch goes into no other batch, and orders that were put back
    /// come before later ones, whichever batch failed first.
    #[tokio::test]
    async fn an_order_is_in_one_batch_at_a_time() {
        let queue = OrderQueue::new(Item::DEFAULT, 9, Duration::from_secs(1));
        let push = |id| queue.push(order(id)).expect("room");
        let ids = |batch: &[WaitingOrder]| {
            batch.iter().map(|waiting| waiting.order.id.as_str().to_owned()).collect::<Vec<_>>()
        };
        let _answers = ["a", "b", "c", "a", "d"].map(push);
        let first = queue.take(2, &HashSet::new());
        let sent = first.iter().map(|waiting| waiting.order.key()).collect();
        let second = queue.take(9, &sent);
        assert_eq!([ids(&first), ids(&second)], [vec!["a", "b"], vec!["c"]]);
        queue.put_back(first);
        queue.put_back(second);
        assert_eq!(ids(&queue.take(9, &HashSet::new())), ["a", "b", "c", "a", "d"]);
    }

    /// Goal: a fifth of the queue is for confirmations and cancellations. They go first in a batch, but not before an earlier
    /// call for the same order, whether that waits or was put back.
    #[tokio::test]
    async fn who_has_paid_goes_first() {
        use Action::{Cancel, Confirm, Reserve};
        let queue = OrderQueue::new(Item::DEFAULT, 10, Duration::from_secs(1));
        let push = |(id, action)| queue.push(Order { action, ..order(id) });
        let taken = |most| {
            let batch = queue.take(most, &HashSet::new());
            let of = |one: &WaitingOrder| (one.order.id.as_str().to_owned(), one.order.action);
            (batch.iter().map(of).collect::<Vec<_>>(), batch)
        };
        let mut answers: Vec<_> =
            ["a", "b", "c", "d", "e", "f", "g", "h"].map(|id| push((id, Reserve))).into();
        assert!(matches!(push(("i", Reserve)), Err(SaleError::QueueFull { limit: 8, .. })));
        answers.extend([("x", Confirm), ("b", Cancel)].map(push));
        assert!(matches!(push(("y", Confirm)), Err(SaleError::QueueFull { limit: 10, .. })));
        assert!(answers.iter().all(Result::is_ok));

        let named = |orders: &[(&str, Action)]| {
            orders.iter().map(|(id, action)| ((*id).to_owned(), *action)).collect::<Vec<_>>()
        };
        let (first, batch) = taken(2);
        assert_eq!(first, named(&[("x", Confirm), ("a", Reserve)]));
        // while its order is on its way
        answers.push(push(("a", Confirm)));
        queue.put_back(batch);
        let (all, _batch) = taken(9);
        let early = [("a", Reserve), ("x", Confirm), ("a", Confirm), ("b", Reserve)];
        assert_eq!(all[..4], named(&early));
        assert_eq!(all.len(), 9);
        assert_eq!(taken(9).0, named(&[("h", Reserve), ("b", Cancel)]));
    }

    /// Goal: an order that was sent and not answered stays unknown, whatever ends its wait; one that was not
    /// sent gets the error.
    #[tokio::test]
    async fn unknown_outweighs_every_later_error() {
        let queue = OrderQueue::new(Item::DEFAULT, 2, Duration::from_secs(1));
        let answers = ["sent", "not-sent"].map(|id| queue.push(order(id)).expect("room"));
        let mut batch = queue.take(2, &HashSet::new());
        let error = Arc::new(InventoryError::NotReplicated { count: 0, wanted: 1 });
        batch[0].unknown = Some((error, Token::new(ClusterId(1), 1)));
        queue.put_back(batch);
        queue.fail_all(|_| SaleError::Stopping);
        let [sent, not_sent] = answers.map(|mut answer| answer.try_recv().expect("an answer"));
        assert!(matches!(sent, Err(SaleError::OutcomeUnknown { .. })), "{sent:?}");
        assert!(matches!(not_sent, Err(SaleError::Stopping)), "{not_sent:?}");
    }
}
