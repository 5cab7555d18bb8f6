//! The guard of the service: takes the lock that all instances share, and answers questions about it.

use std::collections::HashMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fenced_lock::{
    BackendErrorKind, Guard, LockError, LostReason, Mutex, QueueEntry, SessionKeeper, Token,
};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::batch::Answer;
use super::combiner::Combiner;
use super::forward::Forwarding;
use super::guard::{GuardStatus, SaleGuard};
use super::order_queue::OrderQueue;
use super::retry::until_known;
use super::{SaleContext, SaleError, SaleOptions};
use crate::inventory::{
    Action, ChangeCall, Changed, InventoryError, Item, NewSale, Order, Outcome, Replaces, Started,
};
use crate::peers::Receiver;
use crate::process::spawn;
use crate::safeguard::GIVE_WAY;

/// How long a question about a lock may take: less than the readiness check may take, so that the check can say that
/// the lock service is silent.
const QUESTION_TIMEOUT: Duration = Duration::from_millis(1500);

/// The pause before the next claim after a failure of the lock service.
pub(super) const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// The pause before the next claim after the store failed: meanwhile other instances can take the lock.
pub(super) const STORE_PAUSE: Duration = Duration::from_millis(200);

/// How many locks the readiness check tries.
const MAX_CHECKED_LOCKS: usize = 8;

/// The name of an item's lock. It has a `:` and no `/`: other etcd clients that wait for the lock `a` also wait for all
/// keys of a lock `a/b`.
pub fn lock_name(base: &str, item: &Item) -> String {
    match item.name() {
        Some(item) => format!("{base}:{item}"),
        None => base.to_owned(),
    }
}

/// The lock that all instances share. An instance takes it for all orders that wait there. Clones share everything.
///
/// `combiner` serves the queues.
#[derive(Clone)]
pub struct EtcdLock {
    pub(super) context: Arc<SaleContext>,
    pub(super) sessions: SessionKeeper,
    pub(super) queues: Arc<parking_lot::Mutex<HashMap<Item, Arc<OrderQueue>>>>,
    /// The items for which the latest attempt of this instance failed at the store.
    troubles: Arc<parking_lot::Mutex<HashMap<Item, Trouble>>>,
}

/// The trouble of an instance with a store that failed, and that may answer other instances.
#[derive(Clone)]
struct Trouble {
    /// The reason for which orders wait. `None` once the store may answer again: then the orders wait for the lock.
    error: Option<Arc<InventoryError>>,
    /// How long the instance leaves the lock to others before it asks a silent store.
    pause: Duration,
    /// When it asks next. The pause does not begin anew for each caller: callers may wait for less than a pause.
    asks_at: Instant,
}

impl EtcdLock {
    /// A guard that takes the lock in these sessions.
    pub fn new(context: &Arc<SaleContext>, sessions: SessionKeeper) -> Self {
        let (queues, troubles) = Default::default();
        Self { context: Arc::clone(context), sessions, queues, troubles }
    }

    /// Puts the order into the queue of its item. Creates the queue, and the task that serves it, if there is none. The mutex of
    /// the map is locked meanwhile: only a queue in the map gets orders, and the task of a queue removes it from the map before
    /// it ends.
    pub(super) fn push(&self, order: Order) -> Result<oneshot::Receiver<Answer>, SaleError> {
        let mut queues = self.queues.lock();
        if let Some(queue) = queues.get(&order.item) {
            return queue.push(order);
        }
        let SaleOptions { queue_length, wait_timeout, .. } = self.context.options;
        let queue = Arc::new(OrderQueue::new(order.item.clone(), queue_length, wait_timeout));
        queues.insert(order.item.clone(), Arc::clone(&queue));
        spawn(self.context.tasks.track_future(Combiner::new(self, &queue).run()));
        queue.push(order)
    }

    pub(super) fn name_of(&self, item: &Item) -> String {
        lock_name(&self.context.options.lock_name, item)
    }

    /// Takes the lock of `item`, however long it takes. Fails only if the lock service refuses, or the sale stops.
    /// After a silence of the store, makes no claim before the store answers, gives way to others that wait if another call met
    /// the silence meanwhile, and makes no claim once the sale [ends](super::Sale::finish): other instances may reach the store.
    /// With peers, makes a standby claim, which asks for a turn only if orders cannot go to the holder. Returns the guard and its
    /// mutex.
    #[tracing::instrument(level = "debug", name = "claim", skip_all, fields(%item))]
    pub(super) async fn take(
        &self,
        item: &Item,
        forwarding: Option<&Forwarding>,
    ) -> Result<(Guard, Mutex), LockError> {
        loop {
            if !self.until_the_store_answers(item).await {
                return Err(LockError::SessionLost { reason: LostReason::Closed });
            }
            let (guard, mutex) = self.claim(item, forwarding).await?;
            if !self.must_give_way(item, &guard) {
                return Ok((guard, mutex));
            }
        }
    }

    async fn claim(
        &self,
        item: &Item,
        forwarding: Option<&Forwarding>,
    ) -> Result<(Guard, Mutex), LockError> {
        let mut mutex = self.sessions.mutex(&self.name_of(item))?;
        let Some(forwarding) = forwarding else { return Ok((mutex.lock().await?, mutex)) };
        mutex = mutex.standby(Arc::clone(forwarding.peers.address()))?;
        let guard = tokio::select! {
            biased;
            locked = mutex.lock() => locked?,
            // `ask_for_turn` never ends
            () = forwarding.ask_for_turn(&mutex) => pending().await,
        };
        Ok((guard, mutex))
    }

    /// Whether a grant is left to others that wait: another call met a silent store while this claim waited.
    pub(super) fn must_give_way(&self, item: &Item, guard: &Guard) -> bool {
        let troubles = self.troubles.lock();
        let error = troubles.get(item).and_then(|trouble| trouble.error.as_ref());
        error.is_some_and(|error| error.is_silence()) && guard.is_contended() && GIVE_WAY.is_on()
    }

    /// Notes how the latest attempt for `item` failed, or that it did not. Each further silence of the store while
    /// others wait for the lock leaves the lock to them for twice as long, up to one TTL.
    pub(super) fn note_answer(
        &self,
        item: &Item,
        error: Option<&Arc<InventoryError>>,
        others: bool,
    ) {
        let mut troubles = self.troubles.lock();
        let Some(error) = error.filter(|error| error.is_retryable()) else {
            troubles.remove(item);
            return;
        };
        let now = Instant::now();
        let first = || Trouble { error: None, pause: STORE_PAUSE, asks_at: now };
        let trouble = troubles.entry(item.clone()).or_insert_with(first);
        trouble.error = Some(Arc::clone(error));
        if !others || !error.is_silence() {
            trouble.pause = STORE_PAUSE;
        }
        trouble.asks_at = now + trouble.pause;
    }

    /// Waits until the store answers, if it was silent. Returns whether to take the lock: `false` once the sale ends.
    async fn until_the_store_answers(&self, item: &Item) -> bool {
        let trouble = || self.troubles.lock().get(item).cloned();
        let Some(Trouble { error: Some(mut latest), .. }) = trouble() else { return true };
        if latest.is_silence() {
            if !GIVE_WAY.is_on() {
                return true;
            }
            let asking = async {
                while let Some(Trouble { error: Some(error), asks_at, .. }) = trouble() {
                    latest = error;
                    if Instant::now() < asks_at {
                        sleep_until(asks_at).await;
                        continue;
                    }
                    let answer = self.context.inventory.available(item).await;
                    if !answer.is_err_and(|error| error.is_silence()) {
                        return;
                    }
                    if let Some(trouble) = self.troubles.lock().get_mut(item) {
                        trouble.asks_at = trouble.asks_at.max(Instant::now() + STORE_PAUSE);
                    }
                }
            };
            if self.context.finishing.run_until_cancelled(asking).await.is_none() {
                return false;
            }
        }
        let ttl = self.sessions.current().map_or(STORE_PAUSE, |session| session.lease().ttl);
        // change only the trouble that this call waited for, and only once for all callers
        let mut troubles = self.troubles.lock();
        let is_latest =
            |it: &&mut Trouble| it.error.as_ref().is_some_and(|it| Arc::ptr_eq(it, &latest));
        if let Some(trouble) = troubles.get_mut(item).filter(is_latest) {
            trouble.error = None;
            trouble.pause = (trouble.pause * 2).min(ttl);
        }
        true
    }

    /// Sends a call that sells nothing, under claims of its own, until its effect is known or its time is over. The tokens of
    /// these claims are larger than those of earlier batches, so the store refuses such batches from then on. Returns the answer
    /// and the tokens of the claims: no other call has these tokens, so this call made a record under one of them.
    async fn under_own_claims<T, F>(
        &self,
        item: &Item,
        is_sent_once: bool,
        call: impl Fn(Token) -> F,
        failed: impl Fn(Arc<InventoryError>) -> SaleError,
    ) -> Result<(T, Vec<Token>), SaleError>
    where
        F: Future<Output = Result<T, InventoryError>>,
    {
        let SaleContext { options, stock_reads, .. } = &*self.context;
        let deadline = Instant::now() + options.wait_timeout;
        let mut unanswered: Option<Arc<InventoryError>> = None;
        let mut tokens = Vec::new();
        loop {
            let locked = timeout_at(deadline, self.take(item, None)).await;
            let locked = locked.map_err(|_| self.not_granted(item));
            let guard = match locked.and_then(|locked| locked.map_err(unavailable)) {
                Ok((guard, _)) => guard,
                Err(error) => return Err(unanswered.map_or(error, failed)),
            };
            tokens.push(guard.token());
            // as with a batch: a store that is silent to this instance may answer the other one
            let gives_way = || guard.is_contended() && GIVE_WAY.is_on();
            let may_repeat = |error: &Arc<InventoryError>| {
                !guard.is_lost()
                    && error.is_retryable()
                    && Instant::now() < deadline
                    && !self.context.gives_up(error)
                    && !gives_way()
            };
            let (answer, sent) = until_known(|| call(guard.token()), may_repeat).await;
            unanswered = unanswered.or(sent);
            // the call may have changed how many units are left
            stock_reads.forget(item);
            self.note_answer(item, answer.as_ref().err(), guard.is_contended());
            match answer {
                Ok(answer) => return Ok((answer, tokens)),
                Err(latest)
                    if latest.is_silence()
                        && !(is_sent_once && unanswered.is_some())
                        && Instant::now() < deadline
                        && !self.context.gives_up(&latest) => {}
                // an attempt without an answer outweighs a later refusal: it may have been carried out
                Err(latest) => return Err(failed(unanswered.unwrap_or(latest))),
            }
        }
    }

    pub(super) fn not_granted(&self, item: &Item) -> SaleError {
        let trouble = self.troubles.lock().get(item).and_then(|trouble| trouble.error.clone());
        if let Some(error) = trouble {
            return SaleError::of_read(error, item);
        }
        let waited = self.context.options.wait_timeout;
        match self.sessions.current() {
            Some(session) if session.is_answered() => SaleError::WaitTooLong { waited },
            _ => self.unanswered(waited),
        }
    }

    /// The error of a lock service that did not answer for this time.
    fn unanswered(&self, waited: Duration) -> SaleError {
        let late = || LockError::Timeout { what: "answer of the lock service".into(), waited };
        unavailable(self.sessions.latest_error().unwrap_or_else(late))
    }

    /// The answer to a question, or an error after [`QUESTION_TIMEOUT`].
    async fn in_time<T>(
        &self,
        answer: impl Future<Output = Result<T, SaleError>>,
    ) -> Result<T, SaleError> {
        let answered = timeout(QUESTION_TIMEOUT, answer).await;
        answered.unwrap_or_else(|_| Err(self.unanswered(QUESTION_TIMEOUT)))
    }

    /// The mutex of an item, for a question. It waits for a session.
    fn mutex(&self, item: &Item) -> Result<Mutex, SaleError> {
        self.sessions.mutex(&self.name_of(item)).map_err(unavailable)
    }
}

#[async_trait]
impl SaleGuard for EtcdLock {
    fn status(&self) -> GuardStatus {
        GuardStatus { name: "etcd", description: "the lock", ..GuardStatus::default() }
    }

    /// Reads the stock first, unless the last read showed enough units.
    async fn reduce(&self, order: Order) -> Result<Outcome, SaleError> {
        let context = &self.context;
        if order.action == Action::Reserve
            && !context.stock_reads.had_enough_for(&order)
            && let Some(outcome) = context.check_stock(&order).await?
        {
            return Ok(outcome);
        }
        let id = order.id.clone();
        // only a task that panicked drops the reply, and its effect is unknown
        let answer = self.push(order)?.await.unwrap_or_else(|source| {
            Err(SaleError::OutcomeUnknown { order: id, source: source.into() })
        });
        answer.map(|(outcome, _)| outcome)
    }

    async fn start(&self, item: &Item, sale: NewSale) -> Result<Started, SaleError> {
        let inventory = &self.context.inventory;
        // a second attempt, under a later token, could delete the orders of a sale that was started meanwhile
        let is_sent_once = !sale.is_named && sale.replaces == Replaces::Unconditionally;
        // the script does not start a running sale again
        let start = |token| inventory.start(item, Some(token), sale.clone());
        let sent = self
            .under_own_claims(item, is_sent_once, start, |error| SaleError::of_start(error, item));
        let (Started { stock, is_repeated }, tokens) = sent.await?;
        let is_own = stock.fence.is_some_and(|token| tokens.contains(&token));
        Ok(Started { stock, is_repeated: is_repeated && !is_own })
    }

    async fn change(&self, item: &Item, call: &ChangeCall) -> Result<Changed, SaleError> {
        let SaleContext { inventory, options, .. } = &*self.context;
        let change = |token| inventory.change_sale(item, Some(token), &options.instance, call);
        let sent =
            self.under_own_claims(item, false, change, |error| SaleError::of_change(error, item));
        let (changed, tokens) = sent.await?;
        let is_own = changed.entry.token.is_some_and(|token| tokens.contains(&token));
        Ok(Changed { is_repeated: changed.is_repeated && !is_own, ..changed })
    }

    async fn queue(&self, item: &Item) -> Result<Vec<QueueEntry>, SaleError> {
        let queue = async { self.mutex(item)?.queue().await.map_err(unavailable) };
        self.in_time(queue).await
    }

    fn lock_name(&self, item: &Item) -> Option<String> {
        Some(self.name_of(item))
    }

    async fn check(&self) -> Result<(), SaleError> {
        self.in_time(async {
            let mut first_error = None;
            for item in self.context.inventory.known_items(MAX_CHECKED_LOCKS) {
                let error = match self.mutex(&item)?.probe().await.map_err(unavailable) {
                    Ok(Some(front)) if front.lease == 0 => {
                        SaleError::LockBlocked { item, key: front.key }
                    }
                    Ok(_) => return Ok(()),
                    Err(error) => error,
                };
                first_error.get_or_insert(error);
            }
            first_error.map_or(Ok(()), Err)
        })
        .await
    }

    fn sessions(&self) -> Option<&SessionKeeper> {
        Some(&self.sessions)
    }

    fn receiver(&self) -> Option<Arc<dyn Receiver>> {
        self.context.options.peers.as_ref().map(|_| Arc::new(self.clone()) as Arc<dyn Receiver>)
    }

    fn waiting(&self) -> usize {
        self.queues.lock().values().map(|queue| queue.len()).sum()
    }

    fn oldest(&self) -> Duration {
        self.queues.lock().values().map(|queue| queue.oldest()).max().unwrap_or_default()
    }

    async fn close(&self) {
        self.sessions.close().await;
    }
}

/// Whether the lock service refuses for good.
pub(super) fn is_refused(error: &LockError) -> bool {
    matches!(error, LockError::Backend(error) if error.kind == BackendErrorKind::Permanent)
}

/// The error of an order that cannot get the lock.
pub(super) fn unavailable(error: impl Into<Arc<LockError>>) -> SaleError {
    let source = error.into();
    match &*source {
        LockError::SessionLost { reason: LostReason::Closed } => SaleError::Stopping,
        error if is_refused(error) => SaleError::LockRefused { source: source.into() },
        _ => SaleError::LockUnavailable { source: source.into() },
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;

    use fenced_lock::{BackendError, MemoryBackend, Session, SessionOptions};
    use redis::{ErrorKind, RedisError};
    use testkit::Proxy;
    use testkit::shared::fresh_database;
    use testkit::wait::{eventually, within};
    use tokio::time::sleep;

    use super::*;

    pub(in crate::sale) const SECOND: Duration = Duration::from_secs(1);

    /// A lock whose store cannot be reached, and its service.
    pub(in crate::sale) fn lock() -> (EtcdLock, MemoryBackend) {
        lock_with(&SaleContext::without_a_store(None))
    }

    fn lock_with(context: &Arc<SaleContext>) -> (EtcdLock, MemoryBackend) {
        let service = MemoryBackend::new();
        let sessions =
            SessionKeeper::start(Arc::new(service.clone()), SessionOptions::new(10 * SECOND));
        (EtcdLock::new(context, sessions), service)
    }

    pub(in crate::sale) fn no_answer() -> InventoryError {
        InventoryError::Unanswered { source: RedisError::from((ErrorKind::Io, "lost")) }
    }

    pub(in crate::sale) fn not_replicated() -> InventoryError {
        InventoryError::NotReplicated { count: 0, wanted: 1 }
    }

    fn refusal() -> InventoryError {
        InventoryError::SaleRefused { why: "sale-running", running: None }
    }

    /// Goal: a call is repeated under its claim while it may still get an answer, and under the next claim if others wait and a
    /// repetition is harmless. A refusal ends it, and does not hide that an earlier attempt was not answered.
    #[tokio::test(start_paused = true)]
    async fn how_a_call_is_repeated() {
        type Script = &'static [fn() -> InventoryError];
        const NO_ANSWER: fn() -> InventoryError = no_answer;
        let silent: Script = &[NO_ANSWER; 1000];
        // the failures before an answer; whether others wait, it is sent once, the sale ends, the session is lost; how many attempts,
        // how it ends, after how many seconds
        let cases: [(Script, [bool; 4], _, _, _); 12] = [
            (&[], [false; 4], 1..2, "done", 0),
            (&[no_answer, not_replicated], [false; 4], 3..4, "done", 0),
            (&[no_answer], [false, true, false, false], 2..3, "done", 0),
            (&[refusal], [false; 4], 1..2, "refused", 0),
            (&[no_answer, refusal], [false; 4], 2..3, "no answer", 0),
            (silent, [false; 4], 3..999, "no answer", 5),
            // the next claim waits for an answer of the store
            (silent, [true, false, false, false], 1..2, "no answer", 5),
            (silent, [false, false, false, true], 1..2, "no answer", 5),
            (silent, [true, true, false, false], 1..2, "no answer", 0),
            (&[not_replicated], [true, false, false, false], 1..2, "too few replicas", 0),
            (silent, [false, false, true, false], 1..2, "no answer", 0),
            (&[not_replicated], [false, false, true, false], 2..3, "done", 0),
        ];
        for (script, [others, is_sent_once, ends, is_lost], attempts, end, seconds) in cases {
            let (lock, service) = lock();
            let (item, sent, began_at) = (Item::DEFAULT, Cell::new(0), Instant::now());
            if ends {
                lock.context.finishing.cancel();
            }
            let call = |_| {
                let failure = script.get(sent.replace(sent.get() + 1));
                let session = lock.sessions.current().expect("a session");
                if is_lost {
                    service.revoke(session.lease().id);
                }
                let waiter = lock.sessions.mutex(&lock.name_of(&item)).expect("a valid name");
                async move {
                    if others {
                        tokio::spawn(async move { waiter.lock().await.map(drop) });
                        sleep(SECOND / 100).await;
                    }
                    failure.map_or(Ok(()), |fails| Err(fails()))
                }
            };
            let failed = |error| SaleError::of_read(error, &item);
            let ended = lock.under_own_claims(&item, is_sent_once, call, failed).await;
            let ended = match ended {
                Ok(_) => "done",
                Err(SaleError::Store { source, .. }) => match *source {
                    InventoryError::SaleRefused { .. } => "refused",
                    InventoryError::NotReplicated { .. } => "too few replicas",
                    _ => "no answer",
                },
                Err(_) => "another error",
            };
            assert_eq!((ended, began_at.elapsed().as_secs()), (end, seconds), "{attempts:?}");
            assert!(attempts.contains(&sent.get()), "{} of {attempts:?}: {end}", sent.get());
        }
    }

    /// Goal: a call that waits for the lock while another call of this instance meets a silent store leaves the lock to others.
    #[tokio::test(start_paused = true)]
    async fn a_waiting_call_hears_of_a_silence() {
        let (lock, service) = lock();
        let item = Item::DEFAULT;
        let options = SessionOptions::new(10 * SECOND);
        let session = Session::open(Arc::new(service), options).await.expect("a session");
        let other = session.mutex(&lock.name_of(&item)).expect("a valid name");
        let queued = async |count| {
            let is_so = async || other.queue().await.is_ok_and(|queue| queue.len() == count);
            eventually("the call waits", is_so).await;
        };
        let held = other.lock().await.expect("free");
        let waits = tokio::spawn({
            let lock = lock.clone();
            async move { lock.take(&Item::DEFAULT, None).await.map(drop) }
        });
        queued(2).await;
        let behind = tokio::spawn({
            let other = other.clone();
            async move { other.lock().await }
        });
        queued(3).await;
        lock.note_answer(&item, Some(&Arc::new(no_answer())), true);
        held.unlock().await.expect("held");
        let next = within("the other instance is next", behind).await.expect("no panic");
        assert!(next.is_ok() && !waits.is_finished());
    }

    /// Goal: an instance whose store is silent claims nothing until the store answers. If others wait, they have the lock for
    /// longer from one failure to the next.
    #[tokio::test(start_paused = true)]
    async fn a_silent_store_is_waited_for() {
        let (lock, _service) = lock();
        let item = Item::DEFAULT;
        let pause = || lock.troubles.lock().get(&item).map(|trouble| trouble.pause);
        let take = async || timeout(SECOND, lock.take(&item, None)).await.is_ok();
        let note = |fails: fn() -> InventoryError, others| {
            lock.note_answer(&item, Some(&Arc::new(fails())), others);
        };
        assert!(take().await);
        note(no_answer, true);
        assert!(!take().await);
        assert!(matches!(lock.not_granted(&item), SaleError::Store { .. }));
        note(not_replicated, true);
        assert!(take().await);
        assert!(matches!(lock.not_granted(&item), SaleError::WaitTooLong { .. }));
        assert_eq!(pause(), Some(2 * STORE_PAUSE));
        note(no_answer, true);
        assert_eq!(pause(), Some(2 * STORE_PAUSE));
        for others in [false, true] {
            note(if others { not_replicated } else { no_answer }, others);
            assert_eq!(pause(), Some(STORE_PAUSE));
        }
        note(refusal, true);
        assert_eq!(pause(), None);
        assert!(take().await);
        note(no_answer, true);
        lock.note_answer(&item, None, true);
        assert!(take().await);
        // callers who wait for less than the pause: the store is asked all the same
        note(no_answer, true);
        lock.troubles.lock().get_mut(&item).expect("trouble").pause = 3 * SECOND / 2;
        note(no_answer, true);
        let asks_at = || lock.troubles.lock()[&item].asks_at;
        let first = asks_at();
        for is_asked in [false, true] {
            assert!(!take().await);
            assert_eq!(asks_at() > first, is_asked);
        }
        lock.context.finishing.cancel();
        let refused = timeout(SECOND, lock.take(&item, None)).await.expect("it does not wait");
        let reason = LostReason::Closed;
        assert_eq!(refused.map(drop), Err(LockError::SessionLost { reason }));
    }

    /// Goal: an answer of the store counts once, however many callers wait for it. A question that ends after a later silence was
    /// noted does not end that trouble, nor shorten its pause. Method: a proxy holds the questions back.
    #[tokio::test]
    async fn an_answer_ends_no_later_trouble() {
        let redis = fresh_database().await;
        let (address, database) = redis.rsplit_once('/').expect("a database");
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        let proxy = Proxy::to(port.expect("a port")).await.expect("a proxy");
        let url = format!("redis://127.0.0.1:{}/{database}", proxy.port());
        let (lock, _service) = lock_with(&SaleContext::at(&url, None));
        let item = Item::DEFAULT;
        let trouble = || lock.troubles.lock()[&item].clone();
        let note = || lock.note_answer(&item, Some(&Arc::new(no_answer())), true);
        let wait = || lock.until_the_store_answers(&item);
        note();
        let both = Box::pin(async { tokio::join!(wait(), wait()) });
        assert_eq!(within("an answer", both).await, (true, true));
        assert!(trouble().error.is_none());
        assert_eq!(trouble().pause, 2 * STORE_PAUSE);

        for is_answered in [true, false] {
            lock.note_answer(&item, None, true);
            note();
            proxy.freeze();
            let question = tokio::spawn({
                let (lock, item) = (lock.clone(), item.clone());
                async move { lock.until_the_store_answers(&item).await }
            });
            eventually("it is asked", async || proxy.has_held_data()).await;
            lock.troubles.lock().get_mut(&item).expect("trouble").pause = 60 * SECOND;
            note();
            let later = trouble().asks_at;
            if !is_answered {
                proxy.cut();
            }
            proxy.release();
            if is_answered {
                assert!(within("an answer", question).await.expect("it does not panic"));
            } else {
                eventually("another question could be asked", async || {
                    lock.context.inventory.available(&item).await.is_err_and(|it| !it.is_silence())
                })
                .await;
                question.abort();
            }
            assert!(trouble().error.is_some());
            assert_eq!(trouble().asks_at, later);
        }
    }

    /// Goal: reports about the lock and the waiting orders are true, and a silent lock service is reported as such.
    #[tokio::test(start_paused = true)]
    async fn what_the_guard_tells() {
        let (lock, service) = lock();
        let item = Item::DEFAULT;
        let GuardStatus { name, description, .. } = lock.status();
        let named = lock.lock_name(&"b".parse().expect("a valid name"));
        assert_eq!((name, description, named), ("etcd", "the lock", Some("a:b".into())));
        assert!(lock.sessions().is_some());
        let (held, _) = lock.take(&item, None).await.expect("it is free");
        assert_eq!(lock.queue(&item).await.expect("it answers").len(), 1);
        assert!(lock.check().await.is_ok(), "a session holds it");
        assert_eq!((lock.waiting(), lock.oldest()), (0, Duration::ZERO));
        let _answer = lock.push(Order::expiring(item.clone())).expect("room");
        sleep(3 * SECOND).await;
        assert_eq!((lock.waiting(), lock.oldest().as_secs()), (1, 3));
        service.set_silent(true);
        assert!(matches!(lock.check().await, Err(SaleError::LockUnavailable { .. })));
        while lock.sessions.current().is_some_and(|session| session.is_answered()) {
            sleep(SECOND / 10).await;
        }
        assert!(matches!(lock.not_granted(&item), SaleError::LockUnavailable { .. }));
        service.set_silent(false);
        drop(held);
        lock.close().await;
        assert!(matches!(lock.queue(&item).await, Err(SaleError::Stopping)));
        for (kind, is_final) in
            [(BackendErrorKind::Permanent, true), (BackendErrorKind::Refused, false)]
        {
            let error = || LockError::Backend(BackendError::new(kind, "as it says"));
            assert_eq!(is_refused(&error()), is_final);
            assert_eq!(matches!(unavailable(error()), SaleError::LockRefused { .. }), is_final);
        }
    }
}
