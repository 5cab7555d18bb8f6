//! Orders that wait for the lock.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
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

/// One part in so many of the queue, and of what is taken, is kept for confirmations and cancellations, and one for other orders:
/// neither kind can shut the other one out.
const SHARE: usize = 5;

/// The waiting orders.
#[derive(Default)]
struct Lines {
    /// In the order in which they are taken: those that were sent and put back; confirmations and cancellations; and others,
    /// with the confirmations and cancellations that wait behind one for the same order. Each line is in the order of arrival.
    deques: [VecDeque<WaitingOrder>; 3],
    tally: Tally,
    /// How many were taken from the line `FIRST` since one was taken from `OTHERS`.
    taken_first: usize,
}

/// What the lines hold, so that no order has to look through them.
#[derive(Default)]
struct Tally {
    /// How many orders of each [key](Order::key) are in the line `OTHERS`.
    others: HashMap<String, usize>,
    /// How many confirmations and cancellations are in all lines.
    follow_ups: usize,
}

impl Tally {
    fn added(&mut self, line: usize, waiting: &WaitingOrder) {
        self.follow_ups += usize::from(waiting.is_follow_up());
        if line == OTHERS {
            *self.others.entry(waiting.order.key()).or_default() += 1;
        }
    }

    fn removed(&mut self, line: usize, waiting: &WaitingOrder) {
        self.follow_ups -= usize::from(waiting.is_follow_up());
        if line == OTHERS
            && let Entry::Occupied(mut count) = self.others.entry(waiting.order.key())
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

impl Lines {
    fn len(&self) -> usize {
        self.deques.iter().map(VecDeque::len).sum()
    }

    fn pop_if(
        &mut self,
        line: usize,
        allows: impl FnOnce(&WaitingOrder) -> bool,
    ) -> Option<WaitingOrder> {
        let first = self.deques[line].pop_front_if(|first| allows(first))?;
        self.tally.removed(line, &first);
        Some(first)
    }
}

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
    fn is_follow_up(&self) -> bool {
        is_follow_up(&self.order)
    }

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

/// Whether it is about an order that was accepted before. Buyers who have paid, or give units back, go first.
fn is_follow_up(order: &Order) -> bool {
    matches!(order.action, Action::Confirm | Action::Cancel)
}

/// The waiting orders of one item at this instance: up to four confirmations and cancellations before each other order, and else
/// first in, first out. Bounded. All have the same time limit, so the first order of a line has its earliest deadline.
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

    /// Puts the order at the end of its line. Confirmations and cancellations may take four fifths of the queue, and so may other
    /// orders.
    ///
    /// # Errors
    /// [`SaleError::QueueFull`].
    pub(super) fn push(&self, order: Order) -> Result<oneshot::Receiver<Answer>, SaleError> {
        let lines = &mut *self.lines.lock();
        let (is_follow_up, waiting) = (is_follow_up(&order), lines.len());
        let follow_ups = lines.tally.follow_ups;
        let of_its_kind = if is_follow_up { follow_ups } else { waiting - follow_ups };
        let most = self.limit - self.limit / SHARE;
        if waiting >= self.limit || of_its_kind >= most {
            let limit = if waiting >= self.limit { self.limit } else { most };
            return Err(SaleError::QueueFull { item: self.item.clone(), limit });
        }
        // not before an earlier call for the same order
        let goes_first = is_follow_up && !lines.tally.others.contains_key(&order.key());
        let line = if goes_first { FIRST } else { OTHERS };
        if waiting == 0 {
            // what failed for earlier orders is no error of this one
            self.store_error.lock().take();
        }
        let (reply, answer) = oneshot::channel();
        let waiting = WaitingOrder {
            order,
            reply,
            deadline: Instant::now() + self.wait_timeout,
            span: Span::current(),
            unknown: None,
            stale: None,
            sent_behind: None,
        };
        lines.tally.added(line, &waiting);
        lines.deques[line].push_back(waiting);
        self.arrived.notify_one();
        Ok(answer)
    }

    /// Takes up to `most` orders from the front, without those of disconnected buyers. The same order as one that was `sent`,
    /// by its [key](Order::key), waits for its answer, and so do the orders behind it in its line. Those that were put back come
    /// before all others.
    pub(super) fn take(&self, most: usize, sent: &HashSet<String>) -> Vec<WaitingOrder> {
        let lines = &mut *self.lines.lock();
        let mut batch = Vec::with_capacity(most.min(lines.len()));
        while batch.len() < most {
            let order: &[usize] = if !lines.deques[PUT_BACK].is_empty() {
                &[PUT_BACK]
            } else if lines.taken_first < SHARE - 1 {
                &[FIRST, OTHERS]
            } else {
                &[OTHERS, FIRST]
            };
            let is_free = |first: &WaitingOrder| !sent.contains(&first.order.key());
            let next = order.iter().find_map(|line| Some((*line, lines.pop_if(*line, is_free)?)));
            let Some((line, first)) = next else { break };
            if first.is_disconnected() {
                continue;
            }
            match line {
                FIRST => lines.taken_first += 1,
                OTHERS => lines.taken_first = 0,
                _ => {}
            }
            batch.push(first);
        }
        batch
    }

    /// Puts a batch back to the front, in the order of arrival; behind a batch of earlier orders.
    pub(super) fn put_back(&self, batch: Vec<WaitingOrder>) {
        let Lines { deques, tally, .. } = &mut *self.lines.lock();
        let waiting = &mut deques[PUT_BACK];
        for order in batch.into_iter().rev() {
            tally.added(PUT_BACK, &order);
            let place = waiting.partition_point(|other| other.deadline < order.deadline);
            waiting.insert(place, order);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.lines.lock().len()
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
            let mut guard = self.lines.lock();
            let Lines { deques, tally, .. } = &mut *guard;
            for (number, line) in deques.iter_mut().enumerate() {
                if is_swept {
                    line.retain(|order| {
                        let stays = !order.is_disconnected();
                        if !stays {
                            tally.removed(number, order);
                        }
                        stays
                    });
                }
                let count = line.partition_point(|order| order.deadline <= now);
                expired.extend(line.drain(..count).inspect(|order| tally.removed(number, order)));
            }
            drop(guard);
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
        for line in [PUT_BACK, FIRST, OTHERS] {
            while lines.pop_if(line, WaitingOrder::is_disconnected).is_some() {}
        }
        lines.len() > 0
    }

    fn first_deadline(&self) -> Option<Instant> {
        self.lines.lock().deques.iter().filter_map(|line| Some(line.front()?.deadline)).min()
    }
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

    /// Goal: neither buyers who have paid nor others can shut the other ones out, however many they are: both can wait, and both
    /// get ahead, also with batches of one order.
    #[tokio::test]
    async fn neither_kind_shuts_the_other_out() {
        use Action::{Cancel, Reserve};
        let queue = OrderQueue::new(Item::DEFAULT, 10, Duration::from_secs(1));
        let push = |id: &str, action| queue.push(Order { action, ..order(id) });
        let ids = ["0", "1", "2", "3", "4", "5", "6", "7"];
        let mut answers: Vec<_> = ids.map(|id| push(id, Cancel)).into();
        assert!(matches!(push("8", Cancel), Err(SaleError::QueueFull { limit: 8, .. })));
        answers.extend([push("a", Reserve), push("b", Reserve)]);
        assert!(matches!(push("c", Reserve), Err(SaleError::QueueFull { limit: 10, .. })));
        let sent = ["0"].map(str::to_owned);
        let taken = |most, sent: &[String]| {
            let sent = &sent.iter().cloned().collect();
            let batch = queue.take(most, sent);
            batch.iter().map(|one| one.order.id.as_str().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(taken(1, &sent), ["a"], "an order in flight blocks its own line");
        assert_eq!(taken(4, &[]), ["0", "1", "2", "3"]);
        assert_eq!([(); 3].map(|()| taken(1, &[]).concat()), ["b", "4", "5"]);
        answers.push(push("d", Reserve));
        assert!(answers.iter().all(Result::is_ok));
    }

    /// Goal: a confirmation goes first once no call for the same order waits before it, however that call left the queue.
    #[tokio::test(start_paused = true)]
    async fn a_confirmation_waits_only_for_its_own_order() {
        for way in ["taken", "arrival", "swept", "late"] {
            let queue = OrderQueue::new(Item::DEFAULT, 10, Duration::from_secs(1));
            let push = |id, action| queue.push(Order { action, ..order(id) }).expect("room");
            let mut gone = Some(push("a", Action::Reserve));
            match way {
                "taken" => drop(queue.take(1, &HashSet::new())),
                "arrival" => {
                    gone = None;
                    assert!(!queue.has_orders());
                }
                _ => {
                    gone = gone.filter(|_| way == "late");
                    let time = Duration::from_secs(if way == "late" { 2 } else { 0 });
                    let pause = async { sleep(time + SWEEP_EVERY / 2).await };
                    queue.while_expiring(pause, |_| SaleError::Stopping).await;
                }
            }
            assert_eq!(queue.len(), 0, "{way}");
            let _answers = [("b", Action::Reserve), ("a", Action::Confirm)]
                .map(|(id, action)| push(id, action));
            let first = queue.take(1, &HashSet::new()).remove(0);
            assert_eq!(first.order.action, Action::Confirm, "{way}");
            drop(gone);
        }
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
