//! Orders on their way: what the attempts of an order may have done, and the batches that are sent.
//!
//! A batch consists of orders and a hold of the lock. It is sent again while its outcome is unknown, and ends with one
//! [fate](Fate) for each order.

use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{Guard, Token};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;
use tracing::{Instrument as _, Span};

use super::forward::Remote;
use super::lock::STORE_PAUSE;
use super::order_queue::OrderQueue;
use super::retry::until_known;
use super::{EtcdLock, SaleContext, SaleError};
use crate::inventory::{self, Attempt, InventoryError, Item, Order, Outcome};
use crate::peers::wire::{Forwarded, Tenure};
use crate::safeguard::{
    FIRST_TOKEN, LARGER_TOKEN, LAST_TOKEN, PEER_FIRST_TOKEN, PEER_TENURE, REPEAT_IF_IT_MAY_PASS,
    REPEAT_IN_TENURE, REPEAT_IN_TIME, REPEAT_UNLESS_ENDING, REPEAT_UNLESS_REFUSED, UNKNOWN_ANSWER,
    UNKNOWN_KEPT,
};

/// How many batches of an item may be on their way to the store, or to the holder, at the same time. With two, the buyers of an
/// answered batch order again while the other batch runs. With more, batches are smaller, and fewer orders are sold.
pub(super) const BATCHES_IN_FLIGHT: usize = 2;

/// The pause before the next claim after the lock was lost.
const LOST_PAUSE: Duration = Duration::from_millis(10);

pub(super) type Answer = Result<inventory::Answer, SaleError>;

/// The effect that the attempts to send an order may have had. All attempts of one batch have one token, and the order
/// is in no later batch under that token.
#[derive(Debug)]
pub(super) enum Sent {
    /// Without effect.
    Unsent,
    /// Some attempts got no answer, so the order may have been carried out: the tokens of the first and the last of
    /// these attempts, and the reason for which the last one got none.
    Unknown { first: Token, last: Token, error: Arc<InventoryError> },
    /// Without effect: the store refused the latest attempt because its token was stale.
    Stale(Arc<InventoryError>),
}

impl Sent {
    /// Notes a batch under `token`: why an attempt got no answer, if one got none, and how the last attempt failed.
    fn note(
        &mut self,
        token: Token,
        unanswered: Option<&Arc<InventoryError>>,
        latest: Option<&Arc<InventoryError>>,
    ) {
        let first = self.first().filter(|_| FIRST_TOKEN.is_on());
        if let Some(error) = unanswered.cloned() {
            let last = if LAST_TOKEN.is_on() { token } else { first.unwrap_or(token) };
            *self = Self::Unknown { first: first.unwrap_or(token), last, error };
        } else if self.first().is_none() || !UNKNOWN_KEPT.is_on() {
            let stale = latest.filter(|error| is_stale(error));
            *self = stale.map_or(Self::Unsent, |error| Self::Stale(Arc::clone(error)));
        }
    }

    fn first(&self) -> Option<Token> {
        if let Self::Unknown { first, .. } = self { Some(*first) } else { None }
    }

    /// Whether an attempt may still be carried out after the store has answered one under `token`.
    fn may_arrive_under(&self, token: Token) -> bool {
        matches!(self, Self::Unknown { last, error, .. } if *last >= token && error.may_still_arrive())
    }
}

/// An order that waits, or is in a batch.
pub(super) struct WaitingOrder {
    pub(super) order: Order,
    /// The number of the buyer's request. Two requests for one order have two numbers.
    pub(super) request: u32,
    /// Closed when the buyer disconnected.
    pub(super) reply: oneshot::Sender<Answer>,
    pub(super) deadline: Instant,
    pub(super) span: Span,
    pub(super) sent: Sent,
    /// For an order of a peer.
    pub(super) bound: Option<Bound>,
}

/// The tenure and the peer that an order of a peer is bound to.
pub(super) struct Bound {
    /// The order is carried out in this tenure, or not at all.
    pub(super) tenure: Arc<Tenure>,
    /// The name of the peer, which the ledger records.
    pub(super) instance: Arc<str>,
    /// The token of its first attempt elsewhere that got no answer.
    pub(super) sent_under: Option<Token>,
    /// The place of its batch among those of the peer. It is free when all orders of the batch are gone.
    pub(super) _place: Arc<OwnedSemaphorePermit>,
}

impl WaitingOrder {
    /// The order, unless a peer sent it for another tenure. In that case the peer hears that nothing was done for it.
    pub(super) fn unless_bound_to_another(self, tenure: &Tenure) -> Option<Self> {
        let is_bound = |bound: &Bound| *bound.tenure == *tenure || !PEER_TENURE.is_on();
        if self.bound.as_ref().is_none_or(is_bound) {
            return Some(self);
        }
        self.fail(|_| SaleError::tenure_over());
        None
    }

    pub(super) fn is_disconnected(&self) -> bool {
        self.reply.is_closed()
    }

    pub(super) fn answer(self, answer: Answer) {
        // fails if the buyer disconnected
        drop(self.reply.send(answer));
    }

    /// Answers with an error. If an attempt got no answer, the outcome is unknown, whatever failed later.
    pub(super) fn fail(self, error: impl FnOnce(&Self) -> SaleError) {
        let error = self.failure(error);
        self.answer(Err(error));
    }

    pub(super) fn failure(&self, error: impl FnOnce(&Self) -> SaleError) -> SaleError {
        match &self.sent {
            Sent::Unknown { error, .. } if UNKNOWN_ANSWER.is_on() => {
                SaleError::of_order(Arc::clone(error), &self.order)
            }
            _ => error(self),
        }
    }

    /// The order in the form in which a peer gets it.
    pub(super) fn forwarded(&self) -> Forwarded {
        let first = self.sent.first().filter(|_| PEER_FIRST_TOKEN.is_on());
        Forwarded::new(&self.order, self.request, first)
    }

    fn attempt<'a>(&'a self, instance: &'a str) -> Attempt<'a> {
        let elsewhere = self.bound.as_ref();
        let holder = elsewhere.map(|_| instance);
        let instance = elsewhere.map_or(instance, |bound| &bound.instance);
        let sent_under = elsewhere.and_then(|bound| bound.sent_under).or(self.sent.first());
        Attempt { order: &self.order, instance, holder, request: Some(self.request), sent_under }
    }
}

/// How a batch ends for one of its orders.
pub(super) enum Fate {
    Answered(inventory::Answer),
    Failed(SaleError),
    /// The order goes into another batch, unless its time is over.
    Again,
    /// The same, under a larger token: this one is stale, or under it an earlier attempt may still be carried out.
    AgainUnderALargerToken,
}

/// How a batch ends its tenure. If two batches end the same tenure, the larger value counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ending {
    pub(super) is_lost: bool,
    /// The pause before the next claim.
    pub(super) pause: Duration,
}

pub(super) struct Ran {
    pub(super) fates: Vec<(WaitingOrder, Fate)>,
    /// `None`: the tenure goes on.
    pub(super) ending: Option<Ending>,
    /// The time from the first attempt to the end.
    pub(super) took: Duration,
}

/// The destination of a batch.
pub(super) enum To<'a> {
    Store {
        /// The batch runs under this hold of the lock.
        hold: Guard,
        /// When the tenure ends if another instance waits for the lock.
        ends_at: Instant,
        /// Knows whether peers have sent orders, which they would run if this instance released the lock.
        queue: &'a OrderQueue,
    },
    /// The instance that holds the lock.
    Holder(&'a Remote),
}

impl To<'_> {
    fn token(&self) -> Token {
        match self {
            Self::Store { hold, .. } => hold.token(),
            Self::Holder(remote) => remote.tenure.token,
        }
    }
}

/// The reason for which an order of an answered batch has no outcome.
pub(super) enum Missing {
    /// Nothing was done for the order.
    NotDone,
    /// Nothing was done for the order, for this reason.
    Refused(Arc<InventoryError>),
    /// The holder's store did not answer.
    Unknown(Arc<InventoryError>),
}

/// The answer to a batch, for each of its orders.
pub(super) type Answered = Vec<Result<inventory::Answer, Missing>>;

/// Orders of one item that are sent together.
pub(super) struct Batch<'a> {
    pub(super) lock: &'a EtcdLock,
    pub(super) to: To<'a>,
    /// At least one.
    pub(super) orders: Vec<WaitingOrder>,
}

impl<'a> Batch<'a> {
    /// Runs the batch under the token of its hold, in a span of the tenure.
    pub(super) fn run(self, tenure: &Span) -> impl Future<Output = Ran> + use<'a> {
        let span = tracing::debug_span!(parent: tenure, "batch", orders = self.orders.len());
        for waiting in &self.orders {
            span.follows_from(&waiting.span);
        }
        self.run_to_its_end().instrument(span)
    }

    /// Sends the batch, and sends it again if it got no answer, with the same token. The attempts end when the lock is lost, or
    /// when the tenure must end because another instance, which may reach the store, waits. A batch for the holder is sent once.
    async fn run_to_its_end(mut self) -> Ran {
        let began_at = Instant::now();
        let SaleContext { options, stock_reads, .. } = &*self.lock.context;
        let deadline = began_at + options.wait_timeout;
        let may_repeat = |error: &Arc<InventoryError>| {
            let To::Store { hold, ends_at, .. } = &self.to else { return false };
            if !is_stale(error) {
                tracing::warn!(orders = self.orders.len(), ?error, "the store did not reduce");
                // the next orders read the stock first, and soon notice that the store does not answer
                stock_reads.forget(self.item());
            }
            self.lock.note_answer(self.item(), Some(error), self.others_wait());
            self.can_repeat(error, deadline)
                && !hold.is_lost()
                && !(self.others_wait() && Instant::now() >= *ends_at && REPEAT_IN_TENURE.is_on())
        };
        let (ran, unanswered) = until_known(|| self.send(), may_repeat).await;
        let token = self.to.token();
        for waiting in &mut self.orders {
            waiting.sent.note(token, unanswered.as_ref(), ran.as_ref().err());
        }
        let (fates, ending) = match ran {
            Ok(answered) => self.answered(answered),
            Err(latest) => self.failed(&latest, deadline),
        };
        let fates = self.orders.into_iter().zip(fates).collect();
        Ran { fates, ending, took: began_at.elapsed() }
    }

    /// The fates after an answer.
    fn answered(&mut self, answered: Answered) -> (Vec<Fate>, Option<Ending>) {
        let stock_reads = &self.lock.context.stock_reads;
        if let To::Store { .. } = self.to {
            self.lock.note_answer(self.item(), None, self.others_wait());
        }
        let outcomes = || answered.iter().flatten().map(|(outcome, _)| outcome);
        let left = outcomes().filter_map(Outcome::left).min();
        if outcomes().any(Outcome::is_closed) {
            // the next orders read the stock, and get this answer from the read
            stock_reads.forget(self.item());
        } else if let Some(left) = left {
            stock_reads.note(self.item(), i64::try_from(left).unwrap_or(i64::MAX));
        }
        let (token, item) = (self.to.token(), self.item().clone());
        let may_arrive = |waiting: &WaitingOrder| waiting.sent.may_arrive_under(token);
        let mut ending = None;
        let fate = |(answer, waiting): (Result<_, Missing>, &mut WaitingOrder)| match answer {
            // a larger token makes stale the earlier attempt, which could still carry the order out
            Ok((outcome, _))
                if Outcome::may_change(&outcome) && may_arrive(waiting) && LARGER_TOKEN.is_on() =>
            {
                ending = Some(Ending { is_lost: false, pause: LOST_PAUSE });
                Fate::AgainUnderALargerToken
            }
            Ok((Outcome::HoldsDue, _)) | Err(Missing::NotDone) => Fate::Again,
            Ok((Outcome::SaleReplaced, _)) => {
                Fate::Failed(waiting.failure(|_| SaleError::sale_replaced(&item)))
            }
            Ok(answer) => Fate::Answered(answer),
            Err(Missing::Refused(error)) => {
                Fate::Failed(waiting.failure(|_| SaleError::of_read(error, &item)))
            }
            Err(Missing::Unknown(error)) => {
                waiting.sent.note(token, Some(&error), None);
                Fate::AgainUnderALargerToken
            }
        };
        (answered.into_iter().zip(&mut self.orders).map(fate).collect(), ending)
    }

    /// The fates after the last attempt failed.
    fn failed(
        &self,
        latest: &Arc<InventoryError>,
        deadline: Instant,
    ) -> (Vec<Fate>, Option<Ending>) {
        let can_repeat = self.can_repeat(latest, deadline);
        let has_lost = matches!(&self.to, To::Store { hold, .. } if hold.is_lost());
        let is_lost = is_stale(latest) || can_repeat && has_lost;
        let error = |of: &WaitingOrder| SaleError::of_order(Arc::clone(latest), &of.order);
        let fate = |waiting: &WaitingOrder| {
            if is_lost || can_repeat {
                return Fate::AgainUnderALargerToken;
            }
            Fate::Failed(waiting.failure(error))
        };
        // after a silence, `take` waits until the store answers
        let pause = if is_lost || latest.is_silence() { LOST_PAUSE } else { STORE_PAUSE };
        (self.orders.iter().map(fate).collect(), Some(Ending { is_lost, pause }))
    }

    async fn send(&self) -> Result<Answered, InventoryError> {
        let SaleContext { inventory, options, metrics, .. } = &*self.lock.context;
        if let To::Holder(remote) = self.to {
            return Ok(remote.send(self.lock, &self.orders).await);
        }
        let attempts: Vec<_> =
            self.orders.iter().map(|waiting| waiting.attempt(&options.instance)).collect();
        let sent_at = Instant::now();
        let token = Some(self.to.token());
        let ran = inventory.reduce_attempts(self.item(), token, &attempts).await;
        metrics.batch(attempts.len(), sent_at, &ran);
        ran.map(|answers| answers.into_iter().map(Ok).collect())
    }

    fn item(&self) -> &Item {
        &self.orders[0].order.item
    }

    /// Whether others would use the lock. A peer with a standby claim does not ask for a turn, but it may reach a store
    /// that this instance does not reach.
    fn others_wait(&self) -> bool {
        matches!(&self.to, To::Store { hold, queue, .. } if queue.has_peers() || hold.is_contended())
    }

    /// Whether to send the batch again. A store that refused a batch would refuse it again.
    fn can_repeat(&self, error: &InventoryError, deadline: Instant) -> bool {
        let is_refused = matches!(error, InventoryError::Refused { .. });
        (error.is_retryable() || !REPEAT_IF_IT_MAY_PASS.is_on())
            && !(is_refused && REPEAT_UNLESS_REFUSED.is_on())
            && (Instant::now() < deadline || !REPEAT_IN_TIME.is_on())
            && !(self.lock.context.gives_up(error) && REPEAT_UNLESS_ENDING.is_on())
            && !self.orders.iter().all(WaitingOrder::is_disconnected)
    }
}

fn is_stale(error: &InventoryError) -> bool {
    matches!(error, InventoryError::StaleToken { .. })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::pending;

    use fenced_lock::{ClusterId, MemoryBackend};
    use redis::{ErrorKind, RedisError, ServerErrorKind};
    use tokio::time::sleep;

    use super::*;
    use crate::inventory::{Action, OrderId, Quantity, User};
    use crate::sale::lock::tests::{SECOND, lock, no_answer, not_replicated};

    type Fails = fn() -> InventoryError;

    fn unreachable() -> InventoryError {
        InventoryError::Unreachable { source: RedisError::from((ErrorKind::Io, "refused")) }
    }

    fn refused() -> InventoryError {
        let busy = ErrorKind::Server(ServerErrorKind::BusyLoading);
        InventoryError::Refused { source: RedisError::from((busy, "it starts")) }
    }

    fn stale() -> InventoryError {
        let token = Token::new(ClusterId(1), 1);
        InventoryError::StaleToken { token, fence: token }
    }

    /// An item whose store cannot be reached, and its lock.
    struct Shop {
        service: MemoryBackend,
        lock: EtcdLock,
        queue: OrderQueue,
        item: Item,
    }

    impl Shop {
        fn new() -> Self {
            let (lock, service) = lock();
            let item = "a".parse::<Item>().expect("a valid name");
            let queue = OrderQueue::new(item.clone(), 9, 10 * SECOND);
            Self { service, lock, queue, item }
        }

        fn order(&self, id: &str) -> (Vec<WaitingOrder>, oneshot::Receiver<Answer>) {
            let (id, user) = (OrderId::new(id).expect("a valid id"), User::default());
            let (item, quantity, action) = (self.item.clone(), Quantity::ONE, Action::Reserve);
            let answer = self.queue.push(Order { id, item, quantity, user, action });
            let tenure = Tenure { key: "a".into(), token: Token::new(ClusterId(1), 1) };
            (self.queue.take(1, &tenure), answer.expect("room"))
        }

        /// A batch of one order, under a tenure of so many seconds if another instance waits.
        async fn batch(&self, seconds: u32) -> (Batch<'_>, oneshot::Receiver<Answer>) {
            let (hold, _) = self.lock.take(&self.item, None).await.expect("it is free");
            let ends_at = Instant::now() + seconds * SECOND;
            let (to, (orders, answer)) =
                (To::Store { hold, ends_at, queue: &self.queue }, self.order("a"));
            (Batch { lock: &self.lock, to, orders }, answer)
        }

        /// Ends the session of the lock.
        fn revoke(&self) {
            let session = self.lock.sessions.current().expect("a session");
            self.service.revoke(session.lease().id);
        }
    }

    /// Goal: a batch is sent again after a failure that may pass, and not after a refusal, when its time is over, when all its
    /// buyers are gone, or, as the sale ends, to a silent store. How it fails at last decides whether its orders go on, whether the
    /// tenure was lost, and for how long others may have the lock.
    #[tokio::test(start_paused = true)]
    async fn how_a_batch_fails() {
        let now = Instant::now();
        let all: [(Fails, _, _); 5] = [
            (no_answer, true, LOST_PAUSE),
            (unreachable, true, LOST_PAUSE),
            (not_replicated, true, STORE_PAUSE),
            (refused, false, STORE_PAUSE),
            (stale, false, LOST_PAUSE),
        ];
        for revoked in [false, true] {
            let shop = Shop::new();
            let (batch, _answer) = shop.batch(1).await;
            if revoked {
                shop.revoke();
            }
            for (fails, may_pass, pause) in all {
                let error = Arc::new(fails());
                let is_stale = matches!(*error, InventoryError::StaleToken { .. });
                assert_eq!(batch.can_repeat(&error, now + SECOND), may_pass, "{error}");
                assert!(!batch.can_repeat(&error, now), "{error}");
                let is_lost = is_stale || may_pass && revoked;
                let pause = if is_lost { LOST_PAUSE } else { pause };
                let (fates, ending) = batch.failed(&error, now + SECOND);
                assert!(ending == Some(Ending { is_lost, pause }), "{error}");
                let goes_on = matches!(fates[..], [Fate::AgainUnderALargerToken]);
                assert_eq!(goes_on, may_pass || is_stale, "{error}");
            }
        }
        let shop = Shop::new();
        let (mut batch, answer) = shop.batch(1).await;
        drop(answer);
        assert!(!batch.can_repeat(&no_answer(), now + SECOND));
        let (another, _answer) = shop.order("b");
        batch.orders.extend(another);
        assert!(batch.can_repeat(&no_answer(), now + SECOND));
        shop.lock.context.finishing.cancel();
        let may_pass =
            [no_answer, not_replicated].map(|fails| batch.can_repeat(&fails(), now + SECOND));
        assert_eq!(may_pass, [false, true]);
    }

    /// Goal: a batch goes on for as long as orders may wait, while the lock is held, and no longer than the tenure if others wait. The
    /// next order reads the stock first.
    #[tokio::test(start_paused = true)]
    async fn how_long_a_batch_goes_on() {
        for (others_wait, tenure, is_revoked, took) in
            [(false, 2, false, 5), (true, 2, false, 2), (true, 9, false, 5), (false, 9, true, 1)]
        {
            let shop = Shop::new();
            let (batch, _answer) = shop.batch(tenure).await;
            let order = batch.orders[0].order.clone();
            let stock_reads = &shop.lock.context.stock_reads;
            stock_reads.note(&shop.item, 9);
            let name = shop.lock.name_of(&shop.item);
            let others = async {
                if others_wait {
                    drop(shop.lock.sessions.lock(&name).await);
                }
                pending::<()>().await;
            };
            let revocation = async {
                sleep(SECOND).await;
                if is_revoked {
                    shop.revoke();
                }
                pending::<()>().await;
            };
            let ran = tokio::select! {
                ran = batch.run(&Span::none()) => ran,
                () = others => unreachable!("it never ends"),
                () = revocation => unreachable!("it never ends"),
            };
            assert_eq!(ran.took.as_secs(), took);
            assert!(!stock_reads.had_enough_for(&order));
        }
    }

    /// Goal: an answer that may change counts only once no earlier attempt can be carried out any more; else the tenure ends.
    #[tokio::test(start_paused = true)]
    async fn a_refusal_waits_for_a_larger_token() {
        let shop = Shop::new();
        let (mut batch, _answer) = shop.batch(1).await;
        let sold_out = || vec![Ok((Outcome::SoldOut { remaining: 0 }, "sold-out\t0".to_owned()))];
        let (fates, ending) = batch.answered(sold_out());
        assert!(matches!(fates[..], [Fate::Answered(_)]) && ending.is_none());
        batch.orders[0].sent.note(batch.to.token(), Some(&Arc::new(no_answer())), None);
        let (fates, ending) = batch.answered(sold_out());
        assert!(matches!(fates[..], [Fate::AgainUnderALargerToken]));
        assert!(ending == Some(Ending { is_lost: false, pause: LOST_PAUSE }));
    }

    /// Goal: an order that is sent under several tokens keeps the first and the last token of its attempts without an answer.
    /// Only such an attempt may still arrive, and only until a larger token was used. An attempt that too few replicas confirmed
    /// has arrived.
    #[tokio::test(start_paused = true)]
    async fn what_attempts_may_have_done() {
        let runs: [(&[Fails], _, _); 4] = [
            (&[stale], "stale", false),
            (&[not_replicated, not_replicated], "2 to 2", false),
            (&[no_answer, not_replicated, stale], "2 to 3", true),
            (&[stale], "2 to 3", false),
        ];
        let mut sent = Sent::Unsent;
        for (revision, (fails, known, may_arrive)) in (1..).zip(runs) {
            let errors = RefCell::new(fails.iter());
            let attempt = async || errors.borrow_mut().next().map_or(Ok(()), |fail| Err(fail()));
            let may_repeat = |_: &_| errors.borrow().len() > 0;
            let (ran, unanswered) = until_known(attempt, may_repeat).await;
            let token = Token::new(ClusterId(1), revision);
            sent.note(token, unanswered.as_ref(), ran.as_ref().err());
            let is = match &sent {
                Sent::Unsent => "unsent".to_owned(),
                Sent::Stale(_) => "stale".to_owned(),
                Sent::Unknown { first, last, .. } => {
                    format!("{} to {}", first.revision(), last.revision())
                }
            };
            assert_eq!((&*is, sent.may_arrive_under(token)), (known, may_arrive));
        }
    }
}
