//! Orders that wait for the lock.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::pin::pin;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep, timeout_at};
use tracing::Span;

use super::SaleError;
use super::batch::{Answer, Fate, Sent, WaitingOrder};
use crate::inventory::{Action, Item, Order};
use crate::process::random_id;
use crate::safeguard::{IN_FLIGHT, PUT_BACK_IN_ORDER};

/// How often the orders of disconnected buyers are removed: they take places in the queue, and a claim without orders
/// delays other instances.
const SWEEP_EVERY: Duration = Duration::from_millis(100);

/// One part in so many of the queue, and of what is taken, is kept for confirmations and cancellations, and one for other orders:
/// neither kind can shut the other one out.
const SHARE: usize = 5;

/// The orders.
#[derive(Default)]
struct Lines {
    /// In the order in which they are taken: those that were sent and put back; confirmations and cancellations; and others,
    /// with the confirmations and cancellations that wait behind one for the same order. Each line is in the order of arrival.
    deques: [VecDeque<WaitingOrder>; 3],
    tally: Tally,
    /// How many were taken from the line `FIRST` since one was taken from `OTHERS`.
    taken_first: usize,
    /// The [keys](Order::key) of the orders in batches.
    in_flight: HashSet<String>,
    /// The number of the next request. Requests at other instances have others: it begins at random.
    next_request: u32,
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
        self.follow_ups += usize::from(is_follow_up(&waiting.order));
        if line == OTHERS {
            *self.others.entry(waiting.order.key()).or_default() += 1;
        }
    }

    fn removed(&mut self, line: usize, waiting: &WaitingOrder) {
        self.follow_ups -= usize::from(is_follow_up(&waiting.order));
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
}

impl OrderQueue {
    pub(super) fn new(item: Item, limit: usize, wait_timeout: Duration) -> Self {
        let [a, b, c, d, ..] = random_id().into_bytes();
        let next_request = u32::from_le_bytes([a, b, c, d]);
        let lines = Mutex::new(Lines { next_request, ..Lines::default() });
        Self { item, limit, wait_timeout, lines, arrived: Notify::new() }
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
        let (reply, answer) = oneshot::channel();
        let waiting = WaitingOrder {
            order,
            request: lines.next_request,
            reply,
            deadline: Instant::now() + self.wait_timeout,
            span: Span::current(),
            sent: Sent::Unsent,
        };
        lines.next_request = lines.next_request.wrapping_add(1);
        lines.tally.added(line, &waiting);
        lines.deques[line].push_back(waiting);
        self.arrived.notify_one();
        Ok(answer)
    }

    /// Takes a batch of up to `most` orders from the front, without those of disconnected buyers. The same order as one in
    /// another batch, by its [key](Order::key), waits for its answer, and so do the orders behind it in its line. Those that were
    /// put back come before all others.
    pub(super) fn take(&self, most: usize) -> Vec<WaitingOrder> {
        let lines = &mut *self.lines.lock();
        let in_flight = std::mem::take(&mut lines.in_flight);
        let is_free = |first: &WaitingOrder| {
            in_flight.is_empty() || !in_flight.contains(&first.order.key()) || !IN_FLIGHT.is_on()
        };
        let mut batch = Vec::with_capacity(most.min(lines.len()));
        while batch.len() < most {
            let order: &[usize] = if !lines.deques[PUT_BACK].is_empty() {
                &[PUT_BACK]
            } else if lines.taken_first < SHARE - 1 {
                &[FIRST, OTHERS]
            } else {
                &[OTHERS, FIRST]
            };
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
        lines.in_flight = in_flight;
        lines.in_flight.extend(batch.iter().map(|waiting| waiting.order.key()));
        batch
    }

    /// Ends a batch: returns the answers, and puts the other orders back to the front, in the order of arrival, behind those of
    /// a batch of earlier orders.
    pub(super) fn settle(&self, batch: Vec<(WaitingOrder, Fate)>) -> Vec<(WaitingOrder, Answer)> {
        let Lines { deques, tally, in_flight, .. } = &mut *self.lines.lock();
        let put_back = &mut deques[PUT_BACK];
        let mut answers = Vec::with_capacity(batch.len());
        for (waiting, fate) in batch {
            in_flight.remove(&waiting.order.key());
            match fate {
                Fate::Answered(outcome) => answers.push((waiting, Ok(outcome))),
                Fate::Failed(error) => answers.push((waiting, Err(error))),
                Fate::Again | Fate::AgainUnderALargerToken => {
                    tally.added(PUT_BACK, &waiting);
                    let arrival = |order: &WaitingOrder| (order.deadline, order.request);
                    let place = put_back.partition_point(|other| {
                        arrival(other) < arrival(&waiting) || !PUT_BACK_IN_ORDER.is_on()
                    });
                    put_back.insert(place, waiting);
                }
            }
        }
        answers
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
        let Lines { deques, tally, .. } = &mut *self.lines.lock();
        *tally = Tally::default();
        for waiting in deques.iter_mut().flat_map(|line| line.drain(..)) {
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
                let due = |line: &VecDeque<WaitingOrder>| {
                    line.iter().filter(|order| order.deadline <= now).count()
                };
                assert!(!cfg!(fenced_lock_chaos) || due(line) == count, "the line is in order");
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
    use std::sync::Arc;

    use fenced_lock::{ClusterId, Token};

    use super::*;
    use crate::inventory::{InventoryError, OrderId, Quantity, User};

    fn order(id: &str) -> Order {
        Order {
            id: OrderId::new(id).expect("a valid id"),
            item: Item::DEFAULT,
            quantity: Quantity::new(1).expect("a valid quantity"),
            user: User::default(),
            action: Action::Reserve,
        }
    }

    fn put_back(queue: &OrderQueue, batch: Vec<WaitingOrder>) {
        let again = |order| (order, Fate::AgainUnderALargerToken);
        assert!(queue.settle(batch.into_iter().map(again).collect()).is_empty());
    }

    fn end(queue: &OrderQueue, batch: Vec<WaitingOrder>) {
        let failed = |order| (order, Fate::Failed(SaleError::Stopping));
        drop(queue.settle(batch.into_iter().map(failed).collect()));
    }

    /// Goal: an order that is asked for again while it is in a batch goes into no other batch, and orders that were put back
    /// come before later ones, whichever batch failed first.
    #[tokio::test(start_paused = true)]
    async fn an_order_is_in_one_batch_at_a_time() {
        let queue = OrderQueue::new(Item::DEFAULT, 9, Duration::from_secs(1));
        let push = |id| queue.push(order(id)).expect("room");
        let ids = |batch: &[WaitingOrder]| {
            batch.iter().map(|waiting| waiting.order.id.as_str().to_owned()).collect::<Vec<_>>()
        };
        let _answers = ["a", "b", "c", "a", "d"].map(push);
        let first = queue.take(2);
        let second = queue.take(9);
        assert_eq!([ids(&first), ids(&second)], [vec!["a", "b"], vec!["c"]]);
        put_back(&queue, second);
        put_back(&queue, first);
        assert_eq!(ids(&queue.take(9)), ["a", "b", "c", "a", "d"]);
    }

    /// Goal: a fifth of the queue is for confirmations and cancellations. They go first in a batch, but not before an earlier
    /// call for the same order, whether that waits or was put back.
    #[tokio::test]
    async fn who_has_paid_goes_first() {
        use Action::{Cancel, Confirm, Reserve};
        let queue = OrderQueue::new(Item::DEFAULT, 10, Duration::from_secs(1));
        let push = |(id, action)| queue.push(Order { action, ..order(id) });
        let taken = |most| {
            let batch = queue.take(most);
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
        put_back(&queue, batch);
        let (all, batch) = taken(9);
        let early = [("a", Reserve), ("x", Confirm), ("a", Confirm), ("b", Reserve)];
        assert_eq!(all[..4], named(&early));
        assert_eq!(all.len(), 9);
        end(&queue, batch);
        assert_eq!(taken(9).0, named(&[("h", Reserve), ("b", Cancel)]));
    }

    /// Goal: neither buyers who have paid nor others can shut the other ones out, however many they are: both can wait, and both
    /// get ahead, also with batches of one order.
    #[tokio::test]
    async fn neither_kind_shuts_the_other_out() {
        use Action::{Cancel, Reserve};
        let queue = OrderQueue::new(Item::DEFAULT, 10, Duration::from_secs(1));
        let push = |id: &str, action| queue.push(Order { action, ..order(id) });
        let taken = |most| {
            let batch = queue.take(most);
            (batch.iter().map(|one| one.order.id.as_str().to_owned()).collect::<Vec<_>>(), batch)
        };
        let mut answers = vec![push("0", Cancel)];
        let in_flight = taken(1).1;
        answers.extend(["0", "1", "2", "3", "4", "5", "6", "7"].map(|id| push(id, Cancel)));
        assert!(matches!(push("8", Cancel), Err(SaleError::QueueFull { limit: 8, .. })));
        answers.extend([push("a", Reserve), push("b", Reserve)]);
        assert!(matches!(push("c", Reserve), Err(SaleError::QueueFull { limit: 10, .. })));
        assert_eq!(taken(1).0, ["a"], "an order in flight blocks its own line");
        end(&queue, in_flight);
        assert_eq!(taken(4).0, ["0", "1", "2", "3"]);
        assert_eq!([(); 3].map(|()| taken(1).0.concat()), ["b", "4", "5"]);
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
                "taken" => end(&queue, queue.take(1)),
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
            let first = queue.take(1).remove(0);
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
        let mut batch = queue.take(2);
        let error = Arc::new(InventoryError::NotReplicated { count: 0, wanted: 1 });
        let token = Token::new(ClusterId(1), 1);
        batch[0].sent = Sent::Unknown { first: token, last: token, error };
        put_back(&queue, batch);
        queue.fail_all(|_| SaleError::Stopping);
        let [sent, not_sent] = answers.map(|mut answer| answer.try_recv().expect("an answer"));
        assert!(matches!(sent, Err(SaleError::OutcomeUnknown { .. })), "{sent:?}");
        assert!(matches!(not_sent, Err(SaleError::Stopping)), "{not_sent:?}");
    }
}
