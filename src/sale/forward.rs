//! Orders that go to the holder of the lock, where that is a peer, and those that come to this instance as the holder.
//!
//! An instance with peers stands by for the lock while it has orders: its claim carries its address, and asks for no turn.
//! Meanwhile it sends batches to the holder. It asks for a turn where it cannot: the holder has no address, cannot be reached,
//! or gave no answer.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{ClusterId, Mutex as Lock, ObservedClaim, Token};
use parking_lot::Mutex;
use redis::{ErrorKind, RedisError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep};

use super::batch::{Answered, BATCHES_IN_FLIGHT, Missing, WaitingOrder};
use super::{EtcdLock, SaleContext};
use crate::backoff::Backoff;
use crate::error_chain::ErrorChain;
use crate::inventory::{InventoryError, Order, Outcome};
use crate::peers::wire::{Done, Fate, Forwarded, Frame, NotDone, Tenure, Watermark};
use crate::peers::{LinkError, Outgoing, Peers, Received, Receiver, SendError};
use crate::safeguard::{PEER_PATIENCE, PEER_REMINDER, PEER_SILENCE, PEER_WATERMARK};

/// How long orders wait for a holder that takes them before this instance asks for a turn: as long as others keep the lock
/// where all take turns.
const ASK_AFTER: Duration = Duration::from_millis(50);

/// How long the answer of a holder may take once it has lost the lock.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// How the orders of one queue go to the holder.
pub(super) struct Forwarding {
    pub(super) peers: Arc<Peers>,
    /// One for each batch that may be on its way.
    places: Arc<Semaphore>,
    state: Mutex<State>,
    /// Whether the claim of this instance asks for a turn.
    asks: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    /// Nothing more goes to a holder under this token or an earlier one: no answer came. A later attempt could overtake a lost one.
    silent: Option<Token>,
    /// Until when nothing goes to the holder under this token, who did not carry out what was sent.
    rests: Option<(Token, Instant)>,
    pauses: Backoff,
    /// Since when orders wait for a holder that takes them.
    stuck_since: Option<Instant>,
    /// The label of the latest holder without an address behind whom this instance asked for a turn.
    takes_turns: Option<Arc<str>>,
}

impl State {
    fn silence(&mut self, token: Token) {
        if !self.is_silent(token) {
            self.silent = Some(token);
        }
    }

    fn is_silent(&self, token: Token) -> bool {
        self.silent.is_some_and(|silent| token <= silent)
    }
}

/// A holder that takes orders.
pub(super) struct Remote {
    forwarding: Arc<Forwarding>,
    address: Arc<str>,
    pub(super) tenure: Tenure,
    /// Shows the holder.
    holder: watch::Receiver<Option<ObservedClaim>>,
}

impl Forwarding {
    pub(super) fn new(peers: &Arc<Peers>) -> Arc<Self> {
        Arc::new(Self {
            peers: Arc::clone(peers),
            places: Arc::new(Semaphore::new(BATCHES_IN_FLIGHT)),
            state: Mutex::default(),
            asks: watch::Sender::new(false),
        })
    }

    /// Has the claims of this lock, which stand by, ask for a turn once orders cannot go to the holder. Never ends.
    pub(super) async fn ask_for_turn(&self, lock: &Lock) {
        // it fails only when `self` is gone
        if self.asks.subscribe().wait_for(|asks| *asks).await.is_ok() {
            lock.ask_for_turn();
        }
        pending::<()>().await;
    }

    /// Since when orders wait for a turn, or for a holder that takes them: else now.
    pub(super) fn waits_since(&self) -> Instant {
        self.state.lock().stuck_since.unwrap_or_else(Instant::now)
    }

    /// This instance has the lock: the claims that it makes next ask for nothing yet.
    pub(super) fn granted(&self) {
        self.state.lock().stuck_since = None;
        self.asks.send_replace(false);
    }

    /// The holder, and a place for a batch to it; or when to look again.
    pub(super) fn remote(
        self: &Arc<Self>,
        cluster: Option<ClusterId>,
        holder: &mut watch::Receiver<Option<ObservedClaim>>,
        has_orders: bool,
    ) -> Result<(Remote, OwnedSemaphorePermit), Option<Instant>> {
        let found = self.reachable(cluster, holder);
        let mut state = self.state.lock();
        let again_at = match found {
            Ok(remote) => {
                let is_silent = state.is_silent(remote.tenure.token) && PEER_SILENCE.is_on();
                let rests = state.rests.filter(|(token, _)| *token == remote.tenure.token);
                match rests {
                    None if !is_silent => {
                        state.stuck_since = None;
                        self.asks.send_if_modified(std::mem::take);
                        let place = Arc::clone(&self.places).try_acquire_owned();
                        return place.map(|place| (remote, place)).map_err(|_| None);
                    }
                    Some((_, until)) if until <= Instant::now() => {
                        state.rests = None;
                        Some(until)
                    }
                    rests => rests.map(|(_, until)| until),
                }
            }
            Err(until) => until,
        };
        if !has_orders {
            state.stuck_since = None;
            return Err(None);
        }
        let stuck_since = *state.stuck_since.get_or_insert_with(Instant::now);
        let alone = holder
            .borrow()
            .as_ref()
            .filter(|claim| claim.note.is_none())
            .and_then(|claim| claim.label.clone());
        let is_known = alone.is_some() && alone == state.takes_turns;
        let ask_at = if is_known { stuck_since } else { stuck_since + ASK_AFTER };
        if ask_at <= Instant::now() {
            state.takes_turns = alone;
            self.asks.send_if_modified(|asks| !std::mem::replace(asks, true));
            return Err(again_at);
        }
        Err(Some(again_at.map_or(ask_at, |again_at| again_at.min(ask_at))))
    }

    /// The holder, if its address is known and does not rest; else when that ends.
    fn reachable(
        self: &Arc<Self>,
        cluster: Option<ClusterId>,
        holder: &mut watch::Receiver<Option<ObservedClaim>>,
    ) -> Result<Remote, Option<Instant>> {
        let claim = holder.borrow_and_update().clone().ok_or(None)?;
        let address = claim.note.ok_or(None)?;
        let cluster = cluster.ok_or(None)?;
        if address == *self.peers.address() {
            return Err(None);
        }
        if let Some(until) = self.peers.rests_until(&address) {
            return Err(Some(until));
        }
        let key = String::from_utf8_lossy(&claim.key).into();
        let tenure = Tenure { key, token: Token::new(cluster, claim.revision) };
        let (forwarding, holder) = (Arc::clone(self), holder.clone());
        Ok(Remote { forwarding, address, tenure, holder })
    }
}

impl Remote {
    /// Sends these orders to the holder, once.
    pub(super) async fn send(
        &self,
        lock: &EtcdLock,
        orders: &[WaitingOrder],
    ) -> Result<Answered, InventoryError> {
        let SaleContext { inventory, options, metrics, .. } = &*lock.context;
        let item = &orders[0].order.item;
        let batch = Outgoing {
            address: &self.address,
            tenure: &self.tenure,
            item,
            instance: &options.instance,
            watermark: inventory.watermark(item),
            orders: orders.iter().map(WaitingOrder::forwarded).collect(),
            patience: if PEER_PATIENCE.is_on() { inventory.time_limit() } else { options.tenure },
        };
        let _on_its_way = metrics.forwards();
        let sent = self.forwarding.peers.send(batch, self.over()).await;
        let answered = self.read(sent, orders, |watermark| inventory.learn(item, watermark));
        let mut fates = [0; 3];
        match &answered {
            Ok(answered) => answered.iter().for_each(|answer| match answer {
                Ok(_) | Err(Missing::Refused(_)) => fates[0] += 1,
                Err(Missing::NotDone) => fates[1] += 1,
                Err(Missing::Unknown(_)) => fates[2] += 1,
            }),
            Err(error) => fates[if error.nothing_written() { 1 } else { 2 }] = orders.len(),
        }
        metrics.forwarded.add(fates);
        answered
    }

    /// What an answer, or none, means for the orders and for the next batch.
    fn read(
        &self,
        sent: Result<Done, SendError>,
        orders: &[WaitingOrder],
        learn: impl FnOnce(Watermark),
    ) -> Result<Answered, InventoryError> {
        let token = self.tenure.token;
        let Done { fates, watermark } = match sent {
            Ok(done) => done,
            Err(SendError::NotDone(reason)) => {
                // the clock that came with the answer is not too late
                self.rest(reason != NotDone::TooLate);
                tracing::debug!(?reason, "the holder did not carry out a batch");
                return Ok(orders.iter().map(|_| Err(Missing::NotDone)).collect());
            }
            Err(SendError::Link(LinkError::NotSent(error))) => {
                let source = io_error("the holder of the lock cannot be reached", &*error);
                return Err(InventoryError::Unreachable { source });
            }
            Err(SendError::Link(LinkError::NoAnswer(error))) => {
                self.forwarding.state.lock().silence(token);
                let source = io_error("the holder of the lock did not answer", &*error);
                return Err(InventoryError::Unanswered { source });
            }
        };
        // before a buyer has an answer that only the holder remembers
        if PEER_WATERMARK.is_on() {
            learn(watermark);
        }
        let unread = || io_error("the answer of the holder cannot be read", &std::fmt::Error);
        let answer = |(fate, waiting): (Fate, &WaitingOrder)| {
            let outcome = match fate {
                Fate::Final(text) => Outcome::parse(&waiting.order, Some(waiting.request), &text),
                Fate::Refused(refusal) => {
                    return match refusal.error() {
                        Some(error) => Err(Missing::Refused(Arc::new(error))),
                        None => Err(Missing::NotDone),
                    };
                }
                Fate::NotDone(_) => return Err(Missing::NotDone),
                Fate::Unknown => None,
            };
            outcome.map(|(outcome, _)| outcome).ok_or_else(|| {
                Missing::Unknown(Arc::new(InventoryError::Unanswered { source: unread() }))
            })
        };
        let answered: Answered = fates.into_iter().zip(orders).map(answer).collect();
        // these orders wait for another token
        if answered.iter().any(|answer| matches!(answer, Err(Missing::Unknown(_)))) {
            self.forwarding.state.lock().silence(token);
        }
        let is_done = |answer: &Result<_, _>| !matches!(answer, Err(Missing::NotDone));
        if answered.iter().all(is_done) {
            self.forwarding.state.lock().pauses = Backoff::default();
        } else {
            self.rest(true);
        }
        Ok(answered)
    }

    /// Has the holder rest for a growing pause, which is none if the first attempt need not.
    fn rest(&self, pauses: bool) {
        let state = &mut *self.forwarding.state.lock();
        let pause = state.pauses.next();
        if pauses || !state.pauses.is_first() {
            state.rests = Some((self.tenure.token, Instant::now() + pause));
        }
    }

    /// Ends soon after the tenure of this holder.
    async fn over(&self) {
        let mut holder = self.holder.clone();
        let is_over = |claim: &Option<ObservedClaim>| {
            claim.as_ref().is_none_or(|claim| *claim.key != *self.tenure.key.as_bytes())
        };
        if holder.wait_for(is_over).await.is_err() {
            pending::<()>().await;
        }
        sleep(LAST_WORDS).await;
    }
}

fn io_error(what: &'static str, error: &(dyn std::error::Error + 'static)) -> RedisError {
    RedisError::from((ErrorKind::Io, what, ErrorChain(error).to_string()))
}

impl Receiver for EtcdLock {
    fn receive(&self, frame: Frame) -> Result<Received, NotDone> {
        let SaleContext { inventory, stopping, .. } = &*self.context;
        if stopping.is_cancelled() {
            return Err(NotDone::Stopping);
        }
        let order = |order: &Forwarded| order.order(&frame.item).map_err(|_| NotDone::Format);
        let orders: Vec<Order> = frame.orders.iter().map(order).collect::<Result<_, _>>()?;
        let queue = self.queues.lock().get(&frame.item).cloned();
        let queue =
            queue.filter(|queue| queue.serves(&frame.tenure)).ok_or(NotDone::NotTheHolder)?;
        // before any of it is in a batch
        if PEER_REMINDER.is_on() {
            inventory.learn(&frame.item, frame.watermark.clone());
        }
        let answers = queue.receive(&frame, orders.clone())?;
        let (context, item) = (Arc::clone(&self.context), frame.item);
        let done = async move {
            let mut fates = Vec::with_capacity(answers.len());
            let mut counts = [0; 3];
            for (answer, order) in answers.into_iter().zip(&orders) {
                // only a task that panicked drops the reply, and its effect is unknown
                let fate = answer.await.map_or(Fate::Unknown, |answer| Fate::of(order, &answer));
                counts[match fate {
                    Fate::Final(_) | Fate::Refused(_) => 0,
                    Fate::NotDone(_) => 1,
                    Fate::Unknown => 2,
                }] += 1;
                fates.push(fate);
            }
            context.metrics.received.add(counts);
            Done { fates, watermark: context.inventory.watermark(&item) }
        };
        let began_at = Instant::now();
        let store_answered_at = Box::new(move || queue.store_answered_at().unwrap_or(began_at));
        Ok(Received { done: Box::pin(done), store_answered_at })
    }
}

#[cfg(test)]
mod tests {
    use fenced_lock::Claim;

    use super::super::order_queue::OrderQueue;
    use super::*;
    use crate::inventory::{Action, Item, OrderId, Quantity, User};
    use crate::peers::HttpLink;

    /// What an instance with peers sees.
    struct Sees {
        forwarding: Arc<Forwarding>,
        shown: watch::Sender<Option<ObservedClaim>>,
    }

    impl Sees {
        fn new() -> Self {
            let peers = Arc::new(Peers::new("here:1", Arc::new(HttpLink::new(None))));
            Self { forwarding: Forwarding::new(&peers), shown: watch::Sender::new(None) }
        }

        /// A holder under this token, with orders that wait.
        fn holder(
            &self,
            revision: i64,
            label: &str,
            address: Option<&str>,
        ) -> Result<Remote, Option<Instant>> {
            let mut claim = Claim::new("lock", 1, revision.unsigned_abs());
            claim.label = label.into();
            claim.standby = address.map(Into::into);
            let claim = ObservedClaim::of(&claim, revision);
            self.shown.send_replace(Some(claim));
            let mut holder = self.shown.subscribe();
            self.forwarding.remote(Some(ClusterId(1)), &mut holder, true).map(|(remote, _)| remote)
        }

        fn peer(&self, revision: i64) -> Option<Remote> {
            self.holder(revision, "there", Some("there:1")).ok()
        }

        fn asks(&self) -> bool {
            *self.forwarding.asks.borrow()
        }
    }

    fn waiting() -> Vec<WaitingOrder> {
        let queue = OrderQueue::new(Item::DEFAULT, 9, Duration::from_secs(1));
        let order = Order {
            id: OrderId::new("a").expect("an id"),
            item: Item::DEFAULT,
            quantity: Quantity::ONE,
            user: User::default(),
            action: Action::Reserve,
        };
        let tenure = Tenure { key: "lock/1-1".into(), token: Token::new(ClusterId(1), 1) };
        let _answer = queue.push(order).expect("room");
        queue.take(1, &tenure)
    }

    /// Goal: after one silence under a token, nothing more goes to that token, nor to an earlier one, in whatever order silences
    /// are noticed.
    #[tokio::test(start_paused = true)]
    async fn nothing_goes_to_a_token_that_was_silent() {
        for order in [[1, 2], [2, 1]] {
            let sees = Sees::new();
            let silent = |revision: &i64| sees.peer(*revision).expect("it was not silent");
            let remotes: Vec<_> = [1, 2].iter().map(silent).collect();
            for revision in order {
                let lost = Err(SendError::Link(LinkError::NoAnswer("lost".into())));
                assert!(remotes[revision - 1].read(lost, &waiting(), drop).is_err());
            }
            let goes: Vec<_> = [1, 2, 3].map(|revision| sees.peer(revision).is_some()).into();
            assert_eq!(goes, [false, false, true], "silences in the order {order:?}");
        }
    }

    /// Goal: where the holder does not say what became of an order, or says it in words that this version does not know, the order
    /// needs a larger token, and this instance asks for one. It learns what the holder's store acknowledged in any case.
    #[tokio::test(start_paused = true)]
    async fn an_unknown_fate_is_a_silence() {
        let orders = &waiting();
        let sold_out = Outcome::SoldOut { remaining: 0 }.answer(&orders[0].order);
        for (fate, means) in [
            (Fate::Final(sold_out.into()), "final, goes on"),
            (Fate::Final("of-a-later-version".into()), "unknown, asks"),
            (Fate::Unknown, "unknown, asks"),
            (Fate::NotDone("stopping".into()), "not done, goes on"),
        ] {
            let sees = Sees::new();
            let remote = sees.peer(1).expect("a holder");
            let case = format!("{fate:?}");
            let mut learned = None;
            let done = Done { fates: vec![fate], watermark: Watermark::default() };
            let answered = remote.read(Ok(done), orders, |watermark| learned = Some(watermark));
            let fate = match answered.expect("an answer").remove(0) {
                Ok(_) => "final",
                Err(Missing::NotDone) => "not done",
                Err(Missing::Unknown(_)) => "unknown",
                Err(Missing::Refused(_)) => "refused",
            };
            for _ in 0..9 {
                let _ = sees.peer(1);
                tokio::time::advance(ASK_AFTER).await;
            }
            let next = if sees.asks() { "asks" } else { "goes on" };
            assert_eq!(format!("{fate}, {next}"), means, "{case}");
            assert_eq!(learned, Some(Watermark::default()));
        }
    }

    /// Goal: orders wait for a while for a holder that takes them; behind an instance that took none in its last tenure either,
    /// this one asks for a turn at once.
    #[tokio::test(start_paused = true)]
    async fn it_asks_at_once_behind_who_takes_turns() {
        let sees = Sees::new();
        let mut asks = Vec::new();
        for (revision, label) in (1..).zip(["old", "old", "start", "old"]) {
            sees.forwarding.granted();
            let _ = sees.holder(revision, label, None);
            asks.push(sees.asks());
            if label == "old" {
                tokio::time::advance(ASK_AFTER).await;
                let _ = sees.holder(revision, label, None);
                assert!(sees.asks());
            }
        }
        assert_eq!(asks, [false, true, false, true]);
    }
}
