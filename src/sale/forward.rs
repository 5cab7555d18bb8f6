//! Orders that this instance sends to the holder of the lock, if that is a peer, and orders that it gets as the holder.
//!
//! An instance with peers has a standby claim while it has orders. The claim carries the instance's address, and asks for no
//! turn. Meanwhile the instance sends batches to the holder. It asks for a turn if that is impossible: the holder has no address,
//! is out of reach, or gave no answer.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{Mutex as Lock, ObservedClaim, Token};
use parking_lot::Mutex;
use redis::{ErrorKind, RedisError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep};

use super::batch::{Answered, BATCHES_IN_FLIGHT, Missing, WaitingOrder};
use super::metrics::{Known, Metrics};
use super::{EtcdLock, SaleContext};
use crate::backoff::Backoff;
use crate::error_chain::ErrorChain;
use crate::inventory::{InventoryError, Order, Outcome};
use crate::peers::wire::{Done, Fate, Forwarded, Frame, NotDone, Tenure, Watermark};
use crate::peers::{LinkError, Outgoing, Peers, Received, Receiver, SendError};
use crate::safeguard::{PEER_COMPARED, PEER_PATIENCE, PEER_SILENCE, PEER_WATERMARK};

/// How long orders wait behind a holder that is out of reach or takes no orders before this instance asks for a turn:
/// as long as a holder keeps the lock when instances take turns.
const ASK_AFTER: Duration = Duration::from_millis(50);

/// The same behind a peer that answers, or while nobody holds the lock. During a handover no peer takes orders, and
/// with a slow etcd a handover takes longer than [`ASK_AFTER`]. If each instance then asked for a turn, there would be
/// a handover for each, during which nobody sells.
const ASK_AFTER_REFUSALS: Duration = Duration::from_secs(1);

/// How long this instance waits for a holder's answer after the holder lost the lock.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Sends the orders of one queue to the holder.
pub(super) struct Forwarding {
    pub(super) peers: Arc<Peers>,
    /// One permit for each batch that may be on its way.
    places: Arc<Semaphore>,
    state: Mutex<State>,
    /// Whether the claim of this instance asks for a turn.
    asks: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    /// The largest token under which a holder gave no answer. Nothing more goes to a holder under it or under an
    /// earlier one: a lost attempt could arrive after a later one.
    silent: Option<Token>,
    /// A token whose holder did not carry out a batch, and the time until which nothing goes to that holder.
    rests: Option<(Token, Instant)>,
    pauses: Backoff,
    /// Since when orders wait for a holder that takes them.
    stuck_since: Option<Instant>,
    /// The token of the holder behind which orders wait (`None`: nobody holds the lock), and since when.
    behind: Option<(Option<Token>, Instant)>,
    /// The label of the latest holder without an address behind which this instance asked for a turn.
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

    /// Sends nothing to the holder under this token for a pause, which grows. Without `pauses`, the first failure
    /// brings no pause.
    fn rest(&mut self, token: Token, pauses: bool) {
        let pause = self.pauses.next();
        if pauses || !self.pauses.is_first() {
            self.rests = Some((token, Instant::now() + pause));
        }
    }
}

/// A holder that takes orders.
pub(super) struct Remote {
    forwarding: Arc<Forwarding>,
    address: Arc<str>,
    pub(super) tenure: Tenure,
    /// The current holder, to notice that it changed.
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

    /// Waits until orders cannot go to the holder.
    pub(super) async fn until_it_asks(&self) {
        // fails only when `self` is gone
        let _ = self.asks.subscribe().wait_for(|asks| *asks).await;
    }

    /// Makes the standby claims of this lock ask for a turn once orders cannot go to the holder. Never ends.
    pub(super) async fn ask_for_turn(&self, lock: &Lock) {
        self.until_it_asks().await;
        lock.ask_for_turn();
        pending::<()>().await;
    }

    /// Since when orders wait for a turn, or for a holder that takes them; the current time if none waits.
    pub(super) fn waits_since(&self) -> Instant {
        self.state.lock().stuck_since.unwrap_or_else(Instant::now)
    }

    /// This instance has the lock: its next claims ask for no turn at first.
    pub(super) fn granted(&self) {
        let state = &mut *self.state.lock();
        (state.stuck_since, state.behind) = (None, None);
        self.asks.send_replace(false);
    }

    /// The holder and a place for a batch to it, or the time of the next look.
    pub(super) fn remote(
        self: &Arc<Self>,
        holder: &mut watch::Receiver<Option<ObservedClaim>>,
        has_orders: bool,
        metrics: &Metrics,
    ) -> Result<(Remote, OwnedSemaphorePermit), Option<Instant>> {
        let claim = holder.borrow_and_update().clone();
        let now = Instant::now();
        let state = &mut *self.state.lock();
        let again_at = match self.reachable(state, claim.as_ref()) {
            Ok(address) => {
                state.stuck_since = None;
                self.asks.send_if_modified(std::mem::take);
                let place = Arc::clone(&self.places).try_acquire_owned();
                let (Ok(place), Some(claim)) = (place, claim) else { return Err(None) };
                let key = String::from_utf8_lossy(&claim.key).into();
                let tenure = Tenure { key, token: claim.token() };
                let (forwarding, holder) = (Arc::clone(self), holder.clone());
                return Ok((Remote { forwarding, address, tenure, holder }, place));
            }
            Err(until) => until,
        };
        if !has_orders {
            (state.stuck_since, state.behind) = (None, None);
            return Err(None);
        }
        state.stuck_since.get_or_insert(now);
        let token = claim.as_ref().map(ObservedClaim::token);
        let (_, since) = *match &mut state.behind {
            Some(behind) if behind.0 == token => behind,
            behind => behind.insert((token, now)),
        };
        let ask_at = since + self.patience(state, claim.as_ref());
        if ask_at <= now {
            let alone = claim.filter(|claim| claim.note.is_none());
            state.takes_turns = alone.and_then(|claim| claim.label);
            if self.asks.send_if_modified(|asks| !std::mem::replace(asks, true)) {
                metrics.turns_asked.add(1);
            }
            return Err(again_at);
        }
        Err(Some(again_at.map_or(ask_at, |again_at| again_at.min(ask_at))))
    }

    /// How long orders wait behind this holder, or behind nobody, before this instance asks for a turn.
    fn patience(&self, state: &State, claim: Option<&ObservedClaim>) -> Duration {
        let Some(claim) = claim else { return ASK_AFTER_REFUSALS };
        match &claim.note {
            Some(address) => {
                let is_out_of_reach = self.peers.rests_until(address).is_some();
                // another instance may have this address by mistake
                let is_own = *address == *self.peers.address();
                let cannot = state.is_silent(claim.token()) || is_out_of_reach || is_own;
                if cannot { ASK_AFTER } else { ASK_AFTER_REFUSALS }
            }
            None if claim.label.is_some() && claim.label == state.takes_turns => Duration::ZERO,
            None => ASK_AFTER,
        }
    }

    /// The address of the holder, if orders can go there; else the time when that may be possible, if it is known.
    fn reachable(
        &self,
        state: &State,
        claim: Option<&ObservedClaim>,
    ) -> Result<Arc<str>, Option<Instant>> {
        let claim = claim.ok_or(None)?;
        let address = claim.note.clone().ok_or(None)?;
        let token = claim.token();
        if address == *self.peers.address() || state.is_silent(token) && PEER_SILENCE.is_on() {
            return Err(None);
        }
        let rests = state.rests.filter(|(of, until)| *of == token && *until > Instant::now());
        let until = self.peers.rests_until(&address).max(rests.map(|(_, until)| until));
        if until.is_some() { Err(until) } else { Ok(address) }
    }
}

impl Remote {
    /// Sends these orders to the holder, once.
    pub(super) async fn send(&self, lock: &EtcdLock, orders: &[WaitingOrder]) -> Answered {
        let SaleContext { inventory, options, metrics, stock_reads, .. } = &*lock.context;
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
        let on_its_way = metrics.forwarding.begins();
        let sent = self.forwarding.peers.send(batch, self.over()).await;
        drop(on_its_way);
        let answered = self.read(sent, orders, |watermark| {
            inventory.learn(item, watermark, false);
        });
        for answer in &answered {
            metrics.forwarded.note(match answer {
                Ok(_) | Err(Missing::Refused(_)) => Known::Final,
                Err(Missing::NotDone) => Known::NotDone,
                Err(Missing::Unknown(_)) => {
                    stock_reads.forget(item);
                    Known::Unknown
                }
            });
        }
        answered
    }

    /// Reads the fates of the orders from the holder's answer, and decides whether the next batch waits.
    fn read(
        &self,
        sent: Result<Done, SendError>,
        orders: &[WaitingOrder],
        learn: impl FnOnce(Watermark),
    ) -> Answered {
        let token = self.tenure.token;
        let mut why = "its answer cannot be read".to_owned();
        let all = |fate: Fate| vec![fate; orders.len()];
        let none = || all(Fate::NotDone("not-taken".into()));
        // whether the next batch waits for a while
        let mut rests = true;
        let fates = match sent {
            Ok(Done { fates, watermark }) => {
                // Learn this before a buyer gets an answer that only the holder remembers. An answer of the holder's
                // store shows that the store has what this instance remembers.
                let is_compared = fates.iter().any(|fate| matches!(fate, Fate::Final(_)));
                if is_compared && PEER_WATERMARK.is_on() {
                    learn(watermark);
                }
                fates
            }
            Err(SendError::NotDone(reason)) => {
                tracing::debug!(?reason, "the holder did not carry out a batch");
                // this answer has brought the holder's clock, so that the next batch is not too late
                rests = reason != NotDone::TooLate;
                none()
            }
            Err(SendError::Link(LinkError::NotSent(error))) => {
                if let Some(suppressed) = self.forwarding.peers.unreached.pass() {
                    let (error, to) = (ErrorChain(&*error), &self.address);
                    tracing::warn!(%error, %to, suppressed, "the holder cannot be reached");
                }
                // the address has a pause of its own
                rests = false;
                none()
            }
            Err(SendError::Link(LinkError::NoAnswer(error))) => {
                why = ErrorChain(&*error).to_string();
                tracing::warn!(orders = orders.len(), error = why, "the holder did not answer");
                all(Fate::Unknown)
            }
        };
        let source = || RedisError::from((ErrorKind::Io, "the holder of the lock", why.clone()));
        let unknown =
            || Missing::Unknown(Arc::new(InventoryError::Unanswered { source: source() }));
        let answer = |(fate, waiting): (Fate, &WaitingOrder)| match fate {
            Fate::Final(text) => Outcome::parse(&waiting.order, Some(waiting.request), &text)
                .map(|(outcome, _)| (outcome, text))
                .ok_or_else(unknown),
            Fate::Refused(refusal) => Err(Missing::Refused(Arc::new(refusal.error()))),
            Fate::NotDone(_) => Err(Missing::NotDone),
            Fate::Unknown => Err(unknown()),
        };
        let answered: Answered = fates.into_iter().zip(orders).map(answer).collect();
        let any = |is: fn(&Missing) -> bool| answered.iter().any(|it| it.as_ref().is_err_and(is));
        let state = &mut *self.forwarding.state.lock();
        // later batches wait for another holder
        if any(|missing| matches!(missing, Missing::Unknown(_))) {
            state.silence(token);
        }
        if any(|missing| matches!(missing, Missing::NotDone)) {
            state.rest(token, rests);
        } else {
            (state.pauses, state.behind) = (Backoff::default(), None);
        }
        answered
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
        // before any of these orders is in a batch
        inventory.learn(&frame.item, frame.watermark.clone(), PEER_COMPARED.is_on());
        let answers = queue.receive(&frame, orders)?;
        let (context, item) = (Arc::clone(&self.context), frame.item);
        let done = async move {
            let mut fates = Vec::with_capacity(answers.len());
            for answer in answers {
                // only a task that panicked drops the reply, and its effect is unknown
                let fate = answer.await.map_or(Fate::Unknown, Fate::of);
                context.metrics.received.note(match fate {
                    Fate::Final(_) | Fate::Refused(_) => Known::Final,
                    Fate::NotDone(_) => Known::NotDone,
                    Fate::Unknown => Known::Unknown,
                });
                fates.push(fate);
            }
            Done { fates, watermark: context.inventory.watermark(&item) }
        };
        let began_at = Instant::now();
        let store_answered_at = Box::new(move || queue.store_answered_at().unwrap_or(began_at));
        Ok(Received { done: Box::pin(done), store_answered_at })
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::sync::atomic::{AtomicBool, Ordering};

    use fenced_lock::{
        Claim, ClusterId, Guard, MemoryBackend, Session, SessionKeeper, SessionOptions,
    };
    use futures_util::stream::{self, StreamExt as _};

    use super::super::SaleError;
    use super::super::order_queue::OrderQueue;
    use super::*;
    use crate::inventory::{Action, Item, OrderId, Quantity, User};
    use crate::peers::wire::{Clock, Line};
    use crate::peers::{Credentials, HttpLink, Link, Pieces, Text};

    /// The view of an instance with peers: the holder that it is shown.
    struct Sees {
        forwarding: Arc<Forwarding>,
        shown: watch::Sender<Option<ObservedClaim>>,
        metrics: Metrics,
    }

    impl Sees {
        fn new() -> Self {
            let peers =
                Arc::new(Peers::new("here:1", Arc::new(HttpLink::new(Credentials::default()))));
            let (forwarding, shown) = (Forwarding::new(&peers), watch::Sender::new(None));
            Self { forwarding, shown, metrics: Metrics::default() }
        }

        /// Shows a holder under this token, while orders wait.
        fn holder(
            &self,
            revision: i64,
            label: &str,
            address: Option<&str>,
        ) -> Result<Remote, Option<Instant>> {
            let mut claim = Claim::new("lock", 1, revision.unsigned_abs());
            claim.label = label.into();
            claim.standby = address.map(Into::into);
            let claim = ObservedClaim::of(&claim, Token::new(ClusterId(1), revision));
            self.shown.send_replace(Some(claim));
            let mut holder = self.shown.subscribe();
            let remote = self.forwarding.remote(&mut holder, true, &self.metrics);
            remote.map(|(remote, _)| remote)
        }

        fn peer(&self, revision: i64) -> Option<Remote> {
            self.holder(revision, "there", Some("there:1")).ok()
        }

        fn asks(&self) -> bool {
            *self.forwarding.asks.borrow()
        }
    }

    fn order() -> Order {
        Order {
            id: OrderId::new("a").expect("an id"),
            item: Item::DEFAULT,
            quantity: Quantity::ONE,
            user: User::default(),
            action: Action::Reserve,
        }
    }

    fn waiting() -> Vec<WaitingOrder> {
        let queue = OrderQueue::new(Item::DEFAULT, 9, Duration::from_secs(1));
        let tenure = Tenure { key: "lock/1-1".into(), token: Token::new(ClusterId(1), 1) };
        let _answer = queue.push(order()).expect("room");
        queue.take(1, &tenure)
    }

    /// A holder that answers each frame after `takes`, and panics at the first frame if `panics` is set.
    struct SoldOut {
        takes: Duration,
        panics: AtomicBool,
    }

    #[async_trait::async_trait]
    impl Link for SoldOut {
        async fn send(&self, _: &str, frame: Text<'_>) -> Result<Pieces, LinkError> {
            let frame: Frame = serde_json::from_slice(&frame()).expect("a frame");
            assert!(
                !self.panics.swap(false, Ordering::Relaxed),
                "as a fault of this program would"
            );
            let fates = frame.orders.iter().map(|_| Fate::Final("sold-out\t0".into())).collect();
            let done = Some(Done { fates, watermark: Watermark::default() });
            let clock = Clock { of: "there".into(), ms: 0 };
            let line = Line { clock, store_ms: 0, not_done: None, done };
            let text = serde_json::to_string(&line).expect("a line") + "\n";
            sleep(self.takes).await;
            Ok(stream::once(ready(Ok(text.into()))).boxed())
        }
    }

    /// A lock that a peer holds. The instance has no session: the lock service is silent from the start.
    async fn held_by_a_peer(
        takes: Duration,
        case: &str,
    ) -> (EtcdLock, MemoryBackend, Session, Guard) {
        let (service, time) = (MemoryBackend::new(), Duration::from_secs(10));
        let session = Session::open(Arc::new(service.clone()), SessionOptions::new(time));
        let session = session.await.expect("a session");
        let mutex = session.mutex("a").and_then(|mutex| mutex.standby("there:1"));
        let held = mutex.expect("a name").lock().await.expect("the lock is free");
        service.set_silent(case != "refused");
        let link = Arc::new(SoldOut { takes, panics: (case == "panics").into() });
        // no claim can have this note
        let address = if case == "refused" { " " } else { "here:1" };
        let context = SaleContext::without_a_store(Some(Arc::new(Peers::new(address, link))));
        let keeper = SessionKeeper::start(Arc::new(service.clone()), SessionOptions::new(time));
        (EtcdLock::new(&context, keeper), service, session, held)
    }

    /// Goal: an instance asks for a turn soon behind another one that has its address by mistake: it can send that one nothing.
    #[tokio::test(start_paused = true)]
    async fn another_one_has_its_address() {
        let sees = Sees::new();
        for asks in [false, true] {
            assert!(sees.holder(1, "there", Some("here:1")).is_err());
            assert_eq!(sees.asks(), asks);
            sleep(ASK_AFTER).await;
        }
    }

    /// Goal: an instance that never had a session sends its orders to the holder, and so does an instance whose claims are
    /// refused for good. A panic of such a batch leaves no order in flight for ever: the same order, sent again, is answered.
    #[tokio::test(start_paused = true)]
    async fn it_forwards_without_claims_and_after_a_panic() {
        for case in ["silent", "refused", "panics"] {
            let (lock, _, _session, _held) = held_by_a_peer(Duration::ZERO, case).await;
            let first = lock.push(order()).expect("room").await;
            assert_eq!(first.is_err(), case == "panics", "{case}: {first:?}");
            // the lock service refuses at once from now on
            sleep(Duration::from_secs(1)).await;
            let mut answered = lock.push(order()).expect("room").await;
            if matches!(answered, Ok(Err(SaleError::Stopping))) {
                // the queue that got the order has ended
                answered = lock.push(order()).expect("room").await;
            }
            assert!(
                matches!(answered, Ok(Ok((Outcome::SoldOut { .. }, _)))),
                "{case}: {answered:?}"
            );
        }
    }

    /// Goal: a holder takes orders in its tenure until it is told to stop. Otherwise its peers could keep it from stopping.
    #[tokio::test(start_paused = true)]
    async fn who_stops_takes_no_orders() {
        let (lock, ..) = held_by_a_peer(Duration::ZERO, "silent").await;
        let tenure = Tenure { key: "a/1-1".into(), token: Token::new(ClusterId(1), 1) };
        let queue = Arc::new(OrderQueue::new(Item::DEFAULT, 9, Duration::from_secs(1)));
        queue.begin(&Arc::new(tenure.clone()));
        lock.queues.lock().insert(Item::DEFAULT, queue);
        let frame = || {
            Frame::new(
                &Item::DEFAULT,
                &tenure,
                waiting().iter().map(WaitingOrder::forwarded).collect(),
            )
        };
        assert!(lock.receive(frame()).is_ok());
        lock.context.stopping.cancel();
        assert!(matches!(lock.receive(frame()), Err(NotDone::Stopping)));
    }

    /// Goal: a sender waits a little, and not longer, for the answer of a holder that lost the lock.
    #[tokio::test(start_paused = true)]
    async fn who_has_lost_the_lock_has_last_words() {
        let instant = Duration::from_millis(10);
        for (takes, fates) in [(LAST_WORDS, [1, 0, 0]), (2 * LAST_WORDS, [0, 0, 1])] {
            let (lock, service, _session, held) = held_by_a_peer(takes, "silent").await;
            let _answer = lock.push(order()).expect("room");
            sleep(instant).await;
            service.delete(&held.key());
            sleep(LAST_WORDS + instant).await;
            let forwarded = &lock.context.metrics.forwarded;
            assert!(forwarded.each().map(|(_, count)| count).eq(fates), "{takes:?}: {forwarded:?}");
        }
    }

    /// Goal: after a silence under a token, nothing more goes to that token or to an earlier one, in whatever order
    /// silences are noticed.
    #[tokio::test(start_paused = true)]
    async fn nothing_goes_to_a_token_that_was_silent() {
        for order in [[1, 2], [2, 1]] {
            let sees = Sees::new();
            let silent = |revision: &i64| sees.peer(*revision).expect("it was not silent");
            let remotes: Vec<_> = [1, 2].iter().map(silent).collect();
            for revision in order {
                let lost = Err(SendError::Link(LinkError::NoAnswer("lost".into())));
                let read = remotes[revision - 1].read(lost, &waiting(), drop);
                assert!(matches!(read[0], Err(Missing::Unknown(_))));
            }
            let goes: Vec<_> = [1, 2, 3].map(|revision| sees.peer(revision).is_some()).into();
            assert_eq!(goes, [false, false, true], "silences in the order {order:?}");
        }
    }

    /// Goal: if the holder does not say what became of an order, or says it in unknown words, the order needs a larger
    /// token, and this instance asks for a turn. It learns the watermark of the holder's store if that store answered:
    /// otherwise it could not notice that the store loses the order.
    #[tokio::test(start_paused = true)]
    async fn an_unknown_fate_is_a_silence() {
        let orders = &waiting();
        for (fate, means) in [
            (Fate::Final("sold-out\t0".into()), "final, goes on"),
            (Fate::Final("of-a-later-version".into()), "unknown, asks"),
            (Fate::Unknown, "unknown, asks"),
            (Fate::NotDone("stopping".into()), "not done, goes on"),
        ] {
            let sees = Sees::new();
            let remote = sees.peer(1).expect("a holder");
            let (case, is_of_store) = (format!("{fate:?}"), matches!(fate, Fate::Final(_)));
            let mut learned = None;
            let done = Done { fates: vec![fate], watermark: Watermark::default() };
            let mut answered = remote.read(Ok(done), orders, |watermark| learned = Some(watermark));
            let fate = match answered.remove(0) {
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
            assert_eq!(learned.is_some(), is_of_store, "{case}");
        }
    }

    /// Goal: while the lock goes from one peer to the next, slowly, nobody asks for a turn: each turn would be one more
    /// handover, during which nobody sells. An instance asks for a turn only if a peer refuses for long.
    ///
    /// Method: each holder refuses for a time, and for a time nobody holds the lock after it.
    #[tokio::test(start_paused = true)]
    async fn it_does_not_ask_while_the_lock_goes_around() {
        const STEP: Duration = Duration::from_millis(5);
        let mut asked = Vec::new();
        for (refuses, nobody) in [(60, 0), (2, 60), (60, 60), (300, 0)] {
            let sees = Sees::new();
            let mut has_asked = false;
            for revision in 1..4 {
                for _ in 0..refuses {
                    if let Some(remote) = sees.peer(revision) {
                        let refused = Err(SendError::NotDone(NotDone::NotTheHolder));
                        assert!(remote.read(refused, &waiting(), drop)[0].is_err());
                    }
                    has_asked |= sees.asks();
                    tokio::time::advance(STEP).await;
                }
                for _ in 0..nobody {
                    sees.shown.send_replace(None);
                    let mut holder = sees.shown.subscribe();
                    let none = sees.forwarding.remote(&mut holder, true, &sees.metrics);
                    assert!(none.is_err());
                    has_asked |= sees.asks();
                    tokio::time::advance(STEP).await;
                }
            }
            asked.push(has_asked);
        }
        assert_eq!(asked, [false, false, false, true]);
    }

    /// Goal: orders wait for a while for a holder that takes them. If the holder's instance took none in its last tenure either,
    /// this instance asks for a turn at once.
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
