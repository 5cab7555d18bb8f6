//! The orders of an item that wait for the lock.

use std::collections::{HashMap, HashSet, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::{Instant, sleep, timeout_at};
use tracing::Span;

use super::SaleError;
use super::batch::{Answer, BATCHES_IN_FLIGHT, Bound, Fate, Sent, WaitingOrder};
use crate::inventory::{Action, Item, Order};
use crate::peers::MAX_PEERS;
use crate::peers::wire::{Forwarded, Frame, NotDone, Tenure};
use crate::process::random_id;
use crate::safeguard::{IN_FLIGHT, PEER_IN_ORDER, PEER_TENURE, PUT_BACK_IN_ORDER};

/// How often the orders of disconnected buyers are removed. They take places in the queue, and a claim without orders
/// delays other instances.
const SWEEP_EVERY: Duration = Duration::from_millis(100);

/// A fifth of the queue, and of the orders that are taken, is kept for confirmations and cancellations, and a fifth for
/// other orders: neither kind shuts the other out.
const SHARE: usize = 5;

struct Lines {
    /// The line `PUT_BACK`: orders that were sent and put back. `FIRST`: confirmations and cancellations. From `OTHERS`
    /// on: other orders, one line for this instance and one for each peer. A confirmation or cancellation waits in one
    /// of these if it follows a waiting call for the same order. Each line is in the order of arrival.
    deques: Vec<VecDeque<WaitingOrder>>,
    tally: Tally,
    /// How many orders in a row were taken from the line `FIRST`.
    taken_first: usize,
    /// The source of the next order: its line, counted from `OTHERS`.
    next_source: usize,
    /// The [keys](Order::key) of the orders in batches.
    in_flight: HashSet<String>,
    /// The number of the next request. It begins at random, so that instances use different numbers.
    next_request: u32,
    /// The tenure for which peers may send orders, if there is one.
    serving: Option<Serving>,
    /// Whether the queue has ended: orders that are put back fail.
    is_closed: bool,
}

/// A tenure of this process, and the peers that have sent orders for it.
struct Serving {
    tenure: Arc<Tenure>,
    /// By the ids of their processes.
    sources: HashMap<Box<str>, Source>,
    /// When the store answered last, or the tenure began.
    store_answered_at: Instant,
}

struct Source {
    line: usize,
    /// One permit for each batch that may be under way. The orders of a batch share it.
    places: Arc<Semaphore>,
}

impl Source {
    fn new(line: usize) -> Self {
        Self { line, places: Arc::new(Semaphore::new(BATCHES_IN_FLIGHT)) }
    }

    fn is_idle(&self) -> bool {
        self.places.available_permits() == BATCHES_IN_FLIGHT
    }
}

/// Counts of the orders in the lines, so that nothing has to search the lines.
#[derive(Default)]
struct Tally {
    /// For each [key](Order::key), how many of its orders are in the lines from `OTHERS` on, and in which line.
    others: HashMap<String, (usize, usize)>,
    /// The confirmations and cancellations of this instance in all lines.
    follow_ups: usize,
    /// The orders of peers in all lines.
    bound: usize,
}

impl Tally {
    /// Counts this order in, or out.
    fn count(&mut self, line: usize, waiting: &WaitingOrder, is_in: bool) {
        let step = |count: &mut usize| *count = if is_in { *count + 1 } else { *count - 1 };
        match waiting.bound {
            Some(_) => step(&mut self.bound),
            None if is_follow_up(&waiting.order) => step(&mut self.follow_ups),
            None => {}
        }
        if line >= OTHERS {
            let (count, _) = self.others.entry(waiting.order.key()).or_insert((0, line));
            step(count);
            if *count == 0 {
                self.others.remove(&waiting.order.key());
            }
        }
    }
}

impl Lines {
    fn new(next_request: u32) -> Self {
        Self {
            deques: (0..=OTHERS).map(|_| VecDeque::new()).collect(),
            tally: Tally::default(),
            taken_first: 0,
            next_source: 0,
            in_flight: HashSet::new(),
            next_request,
            serving: None,
            is_closed: false,
        }
    }

    fn len(&self) -> usize {
        self.deques.iter().map(VecDeque::len).sum()
    }

    /// Puts an order into a line: the one in which an earlier call for the same order waits, from any source; else
    /// `FIRST` for a confirmation or cancellation; else the line of its source.
    fn add(&mut self, of_source: usize, waiting: WaitingOrder) {
        let line = match self.tally.others.get(&waiting.order.key()) {
            Some((_, line)) if PEER_IN_ORDER.is_on() => *line,
            _ if is_follow_up(&waiting.order) => FIRST,
            _ => of_source,
        };
        self.tally.count(line, &waiting, true);
        self.deques[line].push_back(waiting);
    }

    /// The next order of one of the sources, which take turns.
    fn pop_from_a_source(
        &mut self,
        allows: impl Fn(&WaitingOrder) -> bool,
    ) -> Option<(usize, WaitingOrder)> {
        let sources = self.deques.len() - OTHERS;
        (0..sources).find_map(|step| {
            let source = (self.next_source + step) % sources;
            let line = OTHERS + source;
            let first = self.pop_if(line, &allows)?;
            self.next_source = (source + 1) % sources;
            Some((line, first))
        })
    }

    /// Moves up to `most` orders that were put back into the batch. Returns the keys of the others: later calls for the
    /// same orders must wait, too.
    fn take_put_back(
        &mut self,
        most: usize,
        under: &Tenure,
        in_flight: &HashSet<String>,
        batch: &mut Vec<WaitingOrder>,
    ) -> HashSet<String> {
        let mut held_back = HashSet::new();
        for _ in 0..self.deques[PUT_BACK].len() {
            let Some(waiting) = self.pop_if(PUT_BACK, |_| true) else { break };
            if waiting.is_disconnected() {
                continue;
            }
            let key = waiting.order.key();
            let is_sendable = batch.len() < most
                && !(in_flight.contains(&key) && IN_FLIGHT.is_on())
                && !held_back.contains(&key);
            if is_sendable {
                batch.extend(waiting.unless_bound_to_another(under));
            } else {
                self.tally.count(PUT_BACK, &waiting, true);
                self.deques[PUT_BACK].push_back(waiting);
                held_back.insert(key);
            }
        }
        held_back
    }

    /// Inserts an order that was taken before by its time of arrival.
    fn put_back(&mut self, line: usize, waiting: WaitingOrder) {
        let arrival = |order: &WaitingOrder| (order.deadline, order.request);
        let deque = &mut self.deques[line];
        let place = deque.partition_point(|other| {
            arrival(other) < arrival(&waiting) || !PUT_BACK_IN_ORDER.is_on()
        });
        self.tally.count(line, &waiting, true);
        deque.insert(place, waiting);
    }

    fn pop_if(
        &mut self,
        line: usize,
        allows: impl FnOnce(&WaitingOrder) -> bool,
    ) -> Option<WaitingOrder> {
        let first = self.deques[line].pop_front_if(|first| allows(first))?;
        self.tally.count(line, &first, false);
        Some(first)
    }
}

const PUT_BACK: usize = 0;
const FIRST: usize = 1;
const OTHERS: usize = 2;

/// Whether it is about an order that was accepted before. Buyers who have paid, or who give units back, go first.
fn is_follow_up(order: &Order) -> bool {
    matches!(order.action, Action::Confirm | Action::Cancel)
}

/// The waiting orders of one item at this instance. Up to four confirmations and cancellations go before each other
/// order; apart from that, first in, first out. All orders have the same time limit, so the first order of a line has
/// the earliest deadline of that line.
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
        let lines = Mutex::new(Lines::new(next_request));
        Self { item, limit, wait_timeout, lines, arrived: Notify::new() }
    }

    /// Puts the order at the end of its line. Confirmations and cancellations may fill four fifths of the queue, and so
    /// may other orders. The last tenth is for confirmations: everybody can send the other calls.
    ///
    /// # Errors
    /// [`SaleError::QueueFull`].
    pub(super) fn push(&self, order: Order) -> Result<oneshot::Receiver<Answer>, SaleError> {
        let lines = &mut *self.lines.lock();
        // the orders of peers have bounds of their own
        let (is_follow_up, waiting) = (is_follow_up(&order), lines.len() - lines.tally.bound);
        let follow_ups = lines.tally.follow_ups;
        let of_its_kind = if is_follow_up { follow_ups } else { waiting - follow_ups };
        let most = self.limit - self.limit / SHARE;
        let kept = if order.action == Action::Confirm { 0 } else { self.limit / (2 * SHARE) };
        let in_all = self.limit - kept;
        if waiting >= in_all || of_its_kind >= most {
            let limit = if waiting >= in_all { in_all } else { most };
            return Err(SaleError::QueueFull { item: self.item.clone(), limit });
        }
        let request = lines.next_request;
        let (waiting, answer) = self.waiting(order, request, None);
        lines.next_request = lines.next_request.wrapping_add(1);
        lines.add(OTHERS, waiting);
        self.arrived.notify_one();
        Ok(answer)
    }

    fn waiting(
        &self,
        order: Order,
        request: u32,
        bound: Option<Bound>,
    ) -> (WaitingOrder, oneshot::Receiver<Answer>) {
        let (reply, answer) = oneshot::channel();
        let (deadline, span) = (Instant::now() + self.wait_timeout, Span::current());
        let sent = Sent::Unsent;
        (WaitingOrder { order, request, reply, deadline, span, sent, bound }, answer)
    }

    /// From now until [`end`](Self::end), peers may send orders for this tenure.
    pub(super) fn begin(&self, tenure: &Arc<Tenure>) {
        let (tenure, sources) = (Arc::clone(tenure), HashMap::new());
        let serving = Serving { tenure, sources, store_answered_at: Instant::now() };
        self.lines.lock().serving = Some(serving);
    }

    /// Ends the tenure: the waiting orders of peers are not done.
    pub(super) fn end(&self) {
        let mut guard = self.lines.lock();
        let lines = &mut *guard;
        if lines.serving.take().is_none() || !PEER_TENURE.is_on() {
            return;
        }
        let mut own = Vec::new();
        for (number, line) in lines.deques.iter_mut().enumerate() {
            if number <= OTHERS && line.iter().all(|waiting| waiting.bound.is_none()) {
                continue;
            }
            for waiting in line.drain(..) {
                lines.tally.count(number, &waiting, false);
                match waiting.bound {
                    Some(_) => waiting.fail(|_| SaleError::tenure_over()),
                    // an own order can wait in a peer's line behind a call for the same order
                    None => own.push((number.min(OTHERS), waiting)),
                }
            }
        }
        lines.deques.truncate(OTHERS + 1);
        for (line, waiting) in own {
            lines.put_back(line, waiting);
        }
    }

    /// Whether peers may send orders for this tenure.
    pub(super) fn serves(&self, tenure: &Tenure) -> bool {
        self.lines.lock().serving.as_ref().is_some_and(|serving| *serving.tenure == *tenure)
    }

    pub(super) fn has_peers(&self) -> bool {
        self.lines.lock().serving.as_ref().is_some_and(|serving| !serving.sources.is_empty())
    }

    pub(super) fn store_answered(&self) {
        if let Some(serving) = &mut self.lines.lock().serving {
            serving.store_answered_at = Instant::now();
        }
    }

    /// When the store answered last, or the tenure began, if there is one.
    pub(super) fn store_answered_at(&self) -> Option<Instant> {
        Some(self.lines.lock().serving.as_ref()?.store_answered_at)
    }

    /// Queues the orders of a peer's frame for its tenure. They are [answered](WaitingOrder::answer) as others are, and
    /// never put back for another tenure.
    ///
    /// # Errors
    /// The reason for which nothing is done for any of them.
    pub(super) fn receive(
        &self,
        frame: &Frame,
        orders: Vec<Order>,
    ) -> Result<Vec<oneshot::Receiver<Answer>>, NotDone> {
        let lines = &mut *self.lines.lock();
        let serving = lines.serving.as_mut().filter(|serving| *serving.tenure == frame.tenure);
        let Serving { tenure, sources, .. } = serving.ok_or(NotDone::NotTheHolder)?;
        if !sources.contains_key(&frame.sender) {
            let line = if sources.len() < MAX_PEERS {
                lines.deques.push(VecDeque::new());
                lines.deques.len() - 1
            } else {
                let idle = sources.iter().find(|(_, source)| source.is_idle());
                let idle = idle.map(|(name, _)| name.clone()).ok_or(NotDone::TooMany)?;
                sources.remove(&idle).ok_or(NotDone::TooMany)?.line
            };
            sources.insert(frame.sender.clone(), Source::new(line));
        }
        let source = sources.get_mut(&frame.sender).ok_or(NotDone::TooMany)?;
        let place = Arc::clone(&source.places).try_acquire_owned();
        let place = Arc::new(place.map_err(|_| NotDone::TooMany)?);
        let (line, tenure) = (source.line, Arc::clone(tenure));
        let mut answers = Vec::with_capacity(orders.len());
        for (order, Forwarded { request, sent_under, .. }) in orders.into_iter().zip(&frame.orders)
        {
            let bound = Bound {
                tenure: Arc::clone(&tenure),
                instance: Arc::clone(&frame.instance),
                sent_under: *sent_under,
                _place: Arc::clone(&place),
            };
            let (waiting, answer) = self.waiting(order, *request, Some(bound));
            lines.add(line, waiting);
            answers.push(answer);
        }
        self.arrived.notify_one();
        Ok(answers)
    }

    /// Takes a batch of up to `most` orders, to send it under the token of this tenure, and drops the orders of
    /// disconnected buyers. Orders that were put back come first. If the same order, by its [key](Order::key), is in
    /// another batch, the order waits for the end of that batch, and so does its line. An order of a peer is taken in
    /// the tenure that it was sent for, or not done: this method decides that.
    pub(super) fn take(&self, most: usize, under: &Tenure) -> Vec<WaitingOrder> {
        let lines = &mut *self.lines.lock();
        let in_flight = std::mem::take(&mut lines.in_flight);
        let mut batch = Vec::with_capacity(most.min(lines.len()));
        let held_back = lines.take_put_back(most, under, &in_flight, &mut batch);
        let is_free = |first: &WaitingOrder| {
            if in_flight.is_empty() && held_back.is_empty() {
                return true;
            }
            let key = first.order.key();
            let is_in_flight = in_flight.contains(&key) && IN_FLIGHT.is_on();
            !is_in_flight && !held_back.contains(&key)
        };
        while batch.len() < most {
            let first_goes = lines.taken_first < SHARE - 1;
            let first = |lines: &mut Lines| Some((FIRST, lines.pop_if(FIRST, is_free)?));
            let next = if first_goes {
                first(lines).or_else(|| lines.pop_from_a_source(is_free))
            } else {
                lines.pop_from_a_source(is_free).or_else(|| first(lines))
            };
            let Some((line, next)) = next else { break };
            if next.is_disconnected() {
                continue;
            }
            lines.taken_first = if line == FIRST { lines.taken_first + 1 } else { 0 };
            batch.extend(next.unless_bound_to_another(under));
        }
        lines.in_flight = in_flight;
        lines.in_flight.extend(batch.iter().map(|waiting| waiting.order.key()));
        batch
    }

    /// Ends a batch. Returns the answers, and puts the other orders back, in the order of arrival. An order whose time
    /// is over [fails](WaitingOrder::fail). An order of a peer is put back only for the same tenure.
    pub(super) fn settle(
        &self,
        batch: Vec<(WaitingOrder, Fate)>,
        too_late: impl Fn(&WaitingOrder) -> SaleError,
    ) -> Vec<(WaitingOrder, Answer)> {
        let lines = &mut *self.lines.lock();
        let mut answers = Vec::with_capacity(batch.len());
        for (waiting, fate) in batch {
            lines.in_flight.remove(&waiting.order.key());
            let is_over = waiting.bound.is_some()
                && matches!(fate, Fate::AgainUnderALargerToken)
                && PEER_TENURE.is_on();
            match fate {
                Fate::Answered(answer) => answers.push((waiting, Ok(answer))),
                Fate::Failed(error) => answers.push((waiting, Err(error))),
                _ if is_over || lines.is_closed => {
                    let over = |waiting: &WaitingOrder| match waiting.bound {
                        Some(_) => SaleError::tenure_over(),
                        None => SaleError::Stopping,
                    };
                    let error = waiting.failure(over);
                    answers.push((waiting, Err(error)));
                }
                _ if waiting.deadline <= Instant::now() => {
                    let error = waiting.failure(&too_late);
                    answers.push((waiting, Err(error)));
                }
                Fate::Again | Fate::AgainUnderALargerToken => lines.put_back(PUT_BACK, waiting),
            }
        }
        answers
    }

    pub(super) fn len(&self) -> usize {
        self.lines.lock().len()
    }

    /// Whether no order waits or is in a batch.
    pub(super) fn is_unused(&self) -> bool {
        let lines = self.lines.lock();
        lines.len() == 0 && lines.in_flight.is_empty()
    }

    /// Fails all waiting orders, and from now on every order that is put back.
    pub(super) fn close(&self) {
        self.end();
        self.lines.lock().is_closed = true;
        self.fail_all(|_| SaleError::Stopping);
    }

    /// How long the oldest order has waited; zero without one.
    pub(super) fn oldest(&self) -> Duration {
        let deadline = self.first_deadline();
        let left = deadline.map(|deadline| deadline - Instant::now());
        left.map_or(Duration::ZERO, |left| self.wait_timeout.saturating_sub(left))
    }

    /// Waits for an order whose buyer is connected.
    pub(super) async fn arrival(&self) {
        while !self.has_orders() {
            // `notify_one` is kept if nobody waits for it yet
            self.arrived.notified().await;
        }
    }

    pub(super) fn fail_all(&self, error: impl Fn(&WaitingOrder) -> SaleError) {
        let Lines { deques, tally, .. } = &mut *self.lines.lock();
        *tally = Tally::default();
        for waiting in deques.iter_mut().flat_map(|line| line.drain(..)) {
            waiting.fail(&error);
        }
    }

    /// Waits for `future`. Meanwhile [fails](WaitingOrder::fail) orders whose time is over, and drops those of
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
                            tally.count(number, order, false);
                        }
                        stays
                    });
                }
                let count = line.partition_point(|order| order.deadline <= now);
                let due = |line: &VecDeque<WaitingOrder>| {
                    line.iter().filter(|order| order.deadline <= now).count()
                };
                assert!(!cfg!(fenced_lock_chaos) || due(line) == count, "the line is in order");
                expired
                    .extend(line.drain(..count).inspect(|order| tally.count(number, order, false)));
            }
            drop(guard);
            for order in expired {
                order.fail(&error);
            }
        }
    }

    /// Waits until the queue has been [unused](Self::is_unused) for this time.
    pub(super) async fn until_unused_for(&self, time: Duration) {
        let mut used_at = Instant::now();
        while used_at.elapsed() < time {
            sleep(SWEEP_EVERY).await;
            if self.has_orders() || !self.is_unused() {
                used_at = Instant::now();
            }
        }
    }

    /// Waits until no connected buyer waits.
    pub(super) async fn until_empty(&self) {
        while self.has_orders() {
            sleep(SWEEP_EVERY).await;
        }
    }

    /// Whether a connected buyer waits. Drops orders of disconnected buyers on the way.
    fn has_orders(&self) -> bool {
        let lines = &mut *self.lines.lock();
        for line in 0..lines.deques.len() {
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
    use tokio::time::timeout;

    use super::*;
    use crate::inventory::{InventoryError, OrderId, Quantity, User};
    use crate::peers::wire::Fate as Answered;

    fn order(id: &str) -> Order {
        Order {
            id: OrderId::new(id).expect("a valid id"),
            item: Item::DEFAULT,
            quantity: Quantity::new(1).expect("a valid quantity"),
            user: User::default(),
            action: Action::Reserve,
        }
    }

    fn token(revision: i64) -> Token {
        Token::new(ClusterId(1), revision)
    }

    fn tenure(revision: i64) -> Tenure {
        Tenure { key: format!("lock/1-{revision}").into(), token: token(revision) }
    }

    fn ids(batch: &[WaitingOrder]) -> Vec<&str> {
        batch.iter().map(|waiting| waiting.order.id.as_str()).collect()
    }

    fn settle(
        queue: &OrderQueue,
        batch: Vec<WaitingOrder>,
        fate: impl Fn() -> Fate,
    ) -> Vec<(WaitingOrder, Answer)> {
        let fates = batch.into_iter().map(|order| (order, fate())).collect();
        queue.settle(fates, |_| SaleError::Stopping)
    }

    fn put_back(queue: &OrderQueue, batch: Vec<WaitingOrder>) {
        assert!(settle(queue, batch, || Fate::AgainUnderALargerToken).is_empty());
    }

    fn end(queue: &OrderQueue, batch: Vec<WaitingOrder>) {
        drop(settle(queue, batch, || Fate::Failed(SaleError::Stopping)));
    }

    /// Goal: an order that is asked for again while it is in a batch goes into no other batch, and an order of a disconnected
    /// buyer goes into none. Orders that were put back come before later ones, whichever batch failed first.
    #[tokio::test(start_paused = true)]
    async fn an_order_is_in_one_batch_at_a_time() {
        let queue = OrderQueue::new(Item::DEFAULT, 9, Duration::from_secs(1));
        let push = |id| queue.push(order(id)).expect("room");
        drop(push("disconnected"));
        let _answers = ["a", "b", "c", "a", "d"].map(push);
        let first = queue.take(2, &tenure(1));
        let second = queue.take(9, &tenure(1));
        assert_eq!([ids(&first), ids(&second)], [vec!["a", "b"], vec!["c"]]);
        put_back(&queue, second);
        put_back(&queue, first);
        let all = queue.take(9, &tenure(1));
        assert_eq!(ids(&all), ["a", "b", "c", "a", "d"]);
        put_back(&queue, all);
        assert_eq!(ids(&queue.take(1, &tenure(1))), ["a"]);
        let _again = push("a");
        assert_eq!(ids(&queue.take(9, &tenure(1))), ["b", "c", "d"]);
    }

    /// Goal: reports about a queue are true, and a wait for it ends when it should.
    #[tokio::test(start_paused = true)]
    async fn what_a_queue_tells() {
        const SECOND: Duration = Duration::from_secs(1);
        let queue = OrderQueue::new(Item::DEFAULT, 9, 100 * SECOND);
        let is_unused =
            async || timeout(3 * SECOND, queue.until_unused_for(2 * SECOND)).await.is_ok();
        let (now, has_peers, serves) =
            (Instant::now, || queue.has_peers(), |revision| queue.serves(&tenure(revision)));
        assert!(queue.is_unused() && is_unused().await);
        assert!(timeout_at(now() + SECOND, queue.arrival()).await.is_err());
        let _answer = queue.push(order("a")).expect("room");
        assert!(timeout_at(now() + SECOND, queue.arrival()).await.is_ok());
        assert!(timeout_at(now() + SECOND, queue.until_empty()).await.is_err());
        assert_eq!((queue.len(), queue.is_unused(), is_unused().await), (1, false, false));
        let batch = queue.take(9, &tenure(1));
        assert!(timeout_at(now() + SECOND, queue.until_empty()).await.is_ok());
        assert_eq!((queue.len(), queue.is_unused(), is_unused().await), (0, false, false));
        end(&queue, batch);
        assert!(queue.is_unused());

        assert_eq!(queue.store_answered_at(), None);
        queue.begin(&Arc::new(tenure(5)));
        assert_eq!((serves(5), serves(4), has_peers()), (true, false, false));
        assert_eq!(queue.store_answered_at(), Some(now()));
        sleep(SECOND).await;
        queue.store_answered();
        assert_eq!(queue.store_answered_at(), Some(now()));
        let _sent = receive(&queue, "a", 5, &["1", "2"].map(order)).expect("it holds");
        assert!(has_peers());
        assert_eq!(queue.take(9, &tenure(5)).len(), 2);
        assert!(queue.push(order("b")).is_ok(), "there is room");
        queue.end();
        assert_eq!((serves(5), has_peers()), (false, false));
    }

    /// Goal: the end of a tenure ends the orders of peers, wherever they wait, and no other one.
    #[tokio::test]
    async fn a_tenure_ends_with_the_orders_of_its_peers() {
        let queue = began(5);
        let cancel = Order { action: Action::Cancel, ..order("9") };
        let sent = receive(&queue, "a", 5, &[order("1"), cancel]).expect("it holds");
        let own = ["1", "2"].map(|id| queue.push(order(id)).expect("room"));
        let taken = ["9", "2", "1"].map(|id| {
            let one = queue.take(1, &tenure(5)).remove(0);
            assert_eq!(one.order.id.as_str(), id);
            one
        });
        end(&queue, taken.into());
        queue.end();
        assert_eq!(ids(&queue.take(9, &tenure(6))), ["1"], "it waited behind one of the peer");

        queue.begin(&Arc::new(tenure(7)));
        let more = receive(&queue, "a", 7, &[Order { action: Action::Cancel, ..order("8") }]);
        let _own = queue.push(order("3")).expect("room");
        queue.end();
        assert_eq!(queue.len(), 1);
        assert_eq!(ids(&queue.take(9, &tenure(8))), ["3"]);
        drop((sent, own, more));
    }

    /// Goal: a fifth of the queue is for confirmations and cancellations, half of it for confirmations alone. They go first in a
    /// batch, but not before an earlier call for the same order, which may wait or have been put back.
    #[tokio::test]
    async fn who_has_paid_goes_first() {
        use Action::{Cancel, Confirm, Reserve};
        let queue = OrderQueue::new(Item::DEFAULT, 10, Duration::from_secs(1));
        let push = |(id, action)| queue.push(Order { action, ..order(id) });
        let taken = |most| {
            let batch = queue.take(most, &tenure(1));
            let of = |one: &WaitingOrder| (one.order.id.as_str().to_owned(), one.order.action);
            (batch.iter().map(of).collect::<Vec<_>>(), batch)
        };
        let mut answers: Vec<_> =
            ["a", "b", "c", "d", "e", "f", "g", "h"].map(|id| push((id, Reserve))).into();
        assert!(matches!(push(("i", Reserve)), Err(SaleError::QueueFull { limit: 8, .. })));
        answers.push(push(("b", Cancel)));
        // anybody can send cancellations, and only the shop confirmations
        assert!(matches!(push(("c", Cancel)), Err(SaleError::QueueFull { limit: 9, .. })));
        answers.push(push(("x", Confirm)));
        assert!(matches!(push(("y", Confirm)), Err(SaleError::QueueFull { limit: 10, .. })));
        assert!(answers.iter().all(Result::is_ok));

        let named = |orders: &[(&str, Action)]| {
            orders.iter().map(|(id, action)| ((*id).to_owned(), *action)).collect::<Vec<_>>()
        };
        let (first, batch) = taken(2);
        assert_eq!(first, named(&[("x", Confirm), ("a", Reserve)]));
        answers.push(push(("a", Confirm)));
        put_back(&queue, batch);
        let (all, batch) = taken(9);
        let early = [("a", Reserve), ("x", Confirm), ("a", Confirm), ("b", Reserve)];
        assert_eq!(all[..4], named(&early));
        assert_eq!(all.len(), 9);
        end(&queue, batch);
        assert_eq!(taken(9).0, named(&[("h", Reserve), ("b", Cancel)]));
    }

    /// Goal: however many they are, buyers who have paid do not shut others out, nor the reverse: both kinds can wait,
    /// and both are served, also with batches of one order.
    #[tokio::test]
    async fn neither_kind_shuts_the_other_out() {
        use Action::{Cancel, Reserve};
        let queue = OrderQueue::new(Item::DEFAULT, 20, Duration::from_secs(1));
        let push = |id: &str, action| queue.push(Order { action, ..order(id) });
        let taken = |most| {
            let batch = queue.take(most, &tenure(1));
            (batch.iter().map(|one| one.order.id.as_str().to_owned()).collect::<Vec<_>>(), batch)
        };
        let mut answers = vec![push("0", Cancel)];
        let in_flight = taken(1).1;
        answers.extend((0..16).map(|id| push(&id.to_string(), Cancel)));
        assert!(matches!(push("16", Cancel), Err(SaleError::QueueFull { limit: 16, .. })));
        answers.extend([push("a", Reserve), push("b", Reserve)]);
        assert!(matches!(push("c", Reserve), Err(SaleError::QueueFull { limit: 18, .. })));
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
                "taken" => end(&queue, queue.take(1, &tenure(1))),
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
            let first = queue.take(1, &tenure(1)).remove(0);
            assert_eq!(first.order.action, Action::Confirm, "{way}");
            drop(gone);
        }
    }

    /// Goal: an order that was sent and not answered stays unknown, whatever ends its wait; one that was not sent gets
    /// the error. An order whose time or whose queue ended while its batch ran goes into no other batch.
    #[tokio::test(start_paused = true)]
    async fn unknown_outweighs_every_later_error() {
        let time = Duration::from_secs(1);
        for ends in ["waiting", "in its batch", "in its batch, with the queue"] {
            let queue = OrderQueue::new(Item::DEFAULT, 2, time);
            let answers = ["sent", "not-sent"].map(|id| queue.push(order(id)).expect("room"));
            let mut batch = queue.take(2, &tenure(1));
            let error = Arc::new(InventoryError::NotReplicated { count: 0, wanted: 1 });
            let token = Token::new(ClusterId(1), 1);
            batch[0].sent = Sent::Unknown { first: token, last: token, error };
            if ends == "waiting" {
                put_back(&queue, batch);
                queue.fail_all(|_| SaleError::Stopping);
            } else {
                if ends == "in its batch" {
                    sleep(time).await;
                } else {
                    queue.close();
                }
                for (waiting, answer) in settle(&queue, batch, || Fate::Again) {
                    waiting.answer(answer);
                }
                assert!(queue.take(2, &tenure(1)).is_empty());
            }
            let [sent, not_sent] = answers.map(|mut answer| answer.try_recv().expect("an answer"));
            assert!(matches!(sent, Err(SaleError::OutcomeUnknown { .. })), "{sent:?}");
            assert!(matches!(not_sent, Err(SaleError::Stopping)), "{not_sent:?}");
        }
    }

    fn frame(sender: &str, revision: i64, orders: &[Order]) -> Frame {
        let orders = orders.iter().map(|order| Forwarded::new(order, 7, None)).collect();
        let frame = Frame::new(&Item::DEFAULT, &tenure(revision), orders);
        Frame { sender: sender.into(), ..frame }
    }

    type Answers = Vec<oneshot::Receiver<Answer>>;

    fn receive(
        queue: &OrderQueue,
        sender: &str,
        revision: i64,
        orders: &[Order],
    ) -> Result<Answers, NotDone> {
        queue.receive(&frame(sender, revision, orders), orders.to_vec())
    }

    fn began(revision: i64) -> OrderQueue {
        let queue = OrderQueue::new(Item::DEFAULT, 9, Duration::from_secs(1));
        queue.begin(&Arc::new(tenure(revision)));
        queue
    }

    /// Goal: an order of a peer is carried out in the tenure that it was sent for, or not at all: it is neither taken
    /// nor put back for the holder's next tenure.
    #[tokio::test]
    async fn an_order_of_a_peer_belongs_to_one_tenure() {
        let not_done = |answer: &mut oneshot::Receiver<Answer>| {
            let answer = answer.try_recv().expect("an answer");
            matches!(Answered::of(answer), Answered::NotDone(_))
        };
        let queue = began(5);
        for (revision, key) in [(4, 4), (6, 6), (5, 4)] {
            let other = Frame {
                tenure: Tenure { token: token(revision), ..tenure(key) },
                ..frame("a", 5, &[order("x")])
            };
            let refused = queue.receive(&other, vec![order("x")]);
            assert_eq!(refused.err(), Some(NotDone::NotTheHolder));
        }
        let mut answers =
            receive(&queue, "a", 5, &["1", "2", "3", "4"].map(order)).expect("it holds");
        let own = queue.push(order("own")).expect("room");
        // `take` decides this, whatever other code let in
        let mut first = queue.take(1, &tenure(5));
        first.extend(queue.take(1, &tenure(5)));
        assert_eq!(ids(&first), ["own", "1"]);
        let again = |waiting, fate: fn() -> Fate| (waiting, fate());
        let (own_order, bound) = (first.remove(0), first.remove(0));
        let settled = vec![
            again(own_order, || Fate::AgainUnderALargerToken),
            again(bound, || Fate::AgainUnderALargerToken),
        ];
        let answered = queue.settle(settled, |_| SaleError::Stopping);
        assert_eq!(answered.len(), 1, "the own order is put back");
        for (waiting, answer) in answered {
            waiting.answer(answer);
        }
        assert!(not_done(&mut answers[0]));
        let two = queue.take(2, &tenure(5));
        assert_eq!(ids(&two), ["own", "2"]);
        let mut batch = two;
        // as when holds are due: the order goes into the next batch of the same tenure
        let held = batch.remove(1);
        assert!(settle(&queue, vec![held], || Fate::Again).is_empty());
        let next = queue.take(1, &tenure(5));
        assert_eq!(ids(&next), ["2"]);
        assert!(settle(&queue, next, || Fate::Again).is_empty());
        queue.end();
        assert!(answers[1..].iter_mut().all(not_done), "also without another batch");
        let late = receive(&queue, "a", 5, &[order("late")]);
        assert_eq!(late.err(), Some(NotDone::NotTheHolder));
        queue.begin(&Arc::new(tenure(9)));
        assert!(queue.take(9, &tenure(9)).is_empty());
        drop((own, batch));

        let queue = began(5);
        let mut answers = receive(&queue, "a", 5, &[order("1")]).expect("it holds");
        assert!(queue.take(9, &tenure(9)).is_empty(), "the last look before the store");
        assert!(not_done(&mut answers[0]));
    }

    /// Goal: a peer that gives up its orders and sends more has at most two batches here.
    #[tokio::test(start_paused = true)]
    async fn a_batch_has_its_place_until_its_end() {
        let queue = began(1);
        let take = |sender: &str| receive(&queue, sender, 1, &[order("1"), order("2")]);
        drop(["a", "a"].map(take));
        assert_eq!(take("a").err(), Some(NotDone::TooMany), "they wait still");
        for sender in 1..MAX_PEERS {
            assert!(take(&sender.to_string()).is_ok(), "each peer has places of its own");
        }
        assert_eq!(take("one more").err(), Some(NotDone::TooMany));
        queue.while_expiring(sleep(SWEEP_EVERY / 2), |_| SaleError::Stopping).await;
        let under_way = ["1", "2"].map(|id| {
            let answers = receive(&queue, "one more", 1, &[order(id)]);
            let batch = queue.take(9, &tenure(1));
            assert!(answers.is_ok(), "nobody waits for the others");
            batch
        });
        assert_eq!(take("one more").err(), Some(NotDone::TooMany), "they are under way");
        for batch in under_way {
            end(&queue, batch);
        }
        assert!(take("one more").is_ok());
    }

    /// Goal: each source gets its turn, even if others send more, and an operation stays behind an earlier one for the
    /// same order, from any source.
    #[tokio::test]
    async fn sources_take_turns() {
        let queue = began(1);
        let _own = ["1", "2", "3", "4"].map(|id| queue.push(order(id)).expect("room"));
        let _a = receive(&queue, "a", 1, &["5", "6", "7"].map(order)).expect("it holds");
        let cancel = |id| Order { action: Action::Cancel, ..order(id) };
        let _b = receive(&queue, "b", 1, &[order("8"), cancel("6"), cancel("9")]).expect("so");
        let batch = queue.take(20, &tenure(1));
        assert_eq!(ids(&batch), ["9", "1", "5", "8", "2", "6", "3", "7", "4", "6"]);
        assert_eq!(batch[9].order.action, Action::Cancel);
    }
}
