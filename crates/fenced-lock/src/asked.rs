//! The engine for services that must be asked where a claim stands.
//!
//! [`Waiters`] is its state, without I/O. A service supplies requests ([`Asked`]); an [`AskedBackend`] sends them, notes the
//! answers, and asks about each waiting claim until it is granted or gone. The backends on Redis and PostgreSQL work this way.
//! For a service of your own, implement `Asked`, and call [`AskedBackend::start`].
//!
//! No waiter is forgotten, because each waiting claim has a task that asks again, at the latest after [`Answer::ask_again_in`].
//! The task ends when the service answers that the claim is granted or gone. If the service refuses the question for good, the
//! claim counts as gone. Messages ([`Waiters::wake`], [`Waiters::note_message`]) only end its wait sooner.
//!
//! A put without an answer may arrive after its claim was withdrawn. Such a claim is withdrawn again, for half a minute.
//!
//! # A service of your own
//!
//! In this example a list in the process stands for the service, and each use of the list for a request. With a real service an
//! answer can get lost, and the request is then repeated: `put` must find the claim that the first request put.
//!
//! ```
//! use std::sync::{Arc, Mutex};
//! use std::time::Duration;
//! use fenced_lock::asked::{Answer, Answered, Asked, AskedBackend, Waiters};
//! use fenced_lock::{
//!     Claim, ClaimStatus, ClusterId, Lease, LockError, Order, Promises, PutMode, QueueEntry, Released,
//!     SessionKeeper, SessionOptions, Token, async_trait,
//! };
//!
//! const CLUSTER: ClusterId = ClusterId(7);
//!
//! #[derive(Default)]
//! struct Service {
//!     /// The number of the latest claim, and the claims on all names in their order.
//!     claims: Mutex<(i64, Vec<(i64, Claim)>)>,
//!     waiters: Waiters<Token>,
//! }
//!
//! impl Service {
//!     fn queue_of(&self, name: &str) -> Vec<(i64, Claim)> {
//!         let (_, claims) = &*self.claims.lock().unwrap();
//!         claims.iter().filter(|(_, claim)| *claim.name == *name).cloned().collect()
//!     }
//!
//!     fn standing(&self, claim: &Claim) -> Answer<Token> {
//!         let queue = self.queue_of(&claim.name);
//!         let status = match queue.iter().position(|(_, other)| other == claim) {
//!             Some(0) => ClaimStatus::Granted(Token::new(CLUSTER, queue[0].0)),
//!             Some(_) => ClaimStatus::Waiting,
//!             None => ClaimStatus::Gone,
//!         };
//!         Answer { status, ask_again_in: Duration::from_millis(10) }
//!     }
//!
//!     /// Removes these claims. Returns whether there were any.
//!     fn remove(&self, goes: impl Fn(&Claim) -> bool) -> bool {
//!         let (_, claims) = &mut *self.claims.lock().unwrap();
//!         claims.extract_if(.., |(_, claim)| goes(claim)).count() > 0
//!     }
//! }
//!
//! #[async_trait]
//! impl Asked for Service {
//!     type Token = Token;
//!
//!     const PROMISES: Promises = {
//!         let mut promises = Promises::LEAST;
//!         promises.order = Order::Fifo;
//!         promises
//!     };
//!
//!     fn waiters(&self) -> &Waiters<Token> {
//!         &self.waiters
//!     }
//!
//!     async fn open(&self, _id: i64, _ttl: Duration) -> Answered<ClusterId> {
//!         Ok(CLUSTER)
//!     }
//!
//!     async fn renew(&self, _lease: Lease, held: &[Claim]) -> Answered<Vec<bool>> {
//!         Ok(held.iter().map(|claim| self.standing(claim).status != ClaimStatus::Gone).collect())
//!     }
//!
//!     async fn close(&self, lease: Lease, _claims: Vec<Claim>) -> Answered<()> {
//!         self.remove(|claim| claim.lease == lease.id);
//!         Ok(())
//!     }
//!
//!     async fn put(&self, claim: &Claim, mode: &PutMode) -> Answered<Option<Answer<Token>>> {
//!         let is_possible = match mode {
//!             PutMode::AtEnd => true,
//!             PutMode::IfEmpty => self.queue_of(&claim.name).is_empty(),
//!             PutMode::After(held) => self.remove(|other| other == held),
//!         };
//!         if !is_possible {
//!             return Ok(None);
//!         }
//!         {
//!             let (latest, claims) = &mut *self.claims.lock().unwrap();
//!             *latest += 1;
//!             claims.push((*latest, claim.clone()));
//!         }
//!         Ok(Some(self.standing(claim)))
//!     }
//!
//!     async fn ask(&self, claim: &Claim) -> Answered<Answer<Token>> {
//!         Ok(self.standing(claim))
//!     }
//!
//!     async fn release(&self, claim: &Claim) -> Answered<Released> {
//!         let was_there = self.remove(|other| other == claim);
//!         Ok(if was_there { Released::Done } else { Released::Gone })
//!     }
//!
//!     async fn queue(&self, name: &str, most: usize) -> Answered<Vec<QueueEntry>> {
//!         let claims = self.queue_of(name).into_iter().take(most);
//!         Ok(claims.map(|(_, claim)| QueueEntry::new(claim.lease, claim.key())).collect())
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), LockError> {
//! let backend = AskedBackend::start("example", |_runtime, _this| Service::default())?;
//! let options = SessionOptions::new(Duration::from_secs(10));
//! let locks = SessionKeeper::start(Arc::new(backend), options);
//! let guard = locks.lock("stock-lock").await?;
//! let token = guard.token();
//! let (unlocked, next) = tokio::join!(guard.unlock(), locks.lock("stock-lock"));
//! unlocked?;
//! assert!(next?.token() > token);
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::iter::repeat;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::own_thread::{OnThread, OwnThread};
use super::process::spawn_on;
use super::random::random_id;
pub use super::waiters::{Answer, Waiters};
use super::{
    Backend, BackendError, BackendErrorKind, Claim, ClaimStatus, ClusterId, GrantToken, Lease,
    ObservedClaim, Promises, PutMode, QueueEntry, Released, Ticket,
};

/// The requests to a service that must be asked where a claim stands. The implementation also notes in its [`Waiters`] the
/// messages of the service, and whether others wait behind a holder.
#[async_trait]
pub trait Asked: Send + Sync + 'static {
    /// The type that a grant carries.
    type Token: GrantToken;

    /// The promises of the service.
    const PROMISES: Promises;

    /// The claims of this process.
    fn waiters(&self) -> &Waiters<Self::Token>;

    /// Grants a lease with this id.
    async fn open(&self, id: i64, ttl: Duration) -> Answered<ClusterId>;

    /// Renews a lease. Returns for each of these claims whether it still holds.
    async fn renew(&self, lease: Lease, held: &[Claim]) -> Answered<Vec<bool>>;

    /// Revokes a lease with these claims.
    async fn close(&self, lease: Lease, claims: Vec<Claim>) -> Answered<()>;

    /// Puts a claim into its queue; a repetition changes nothing. Returns `None` if `mode` forbids it.
    async fn put(&self, claim: &Claim, mode: &PutMode) -> Answered<Option<Answer<Self::Token>>>;

    /// Asks where a claim stands.
    async fn ask(&self, claim: &Claim) -> Answered<Answer<Self::Token>>;

    /// Takes a claim out of its queue.
    async fn release(&self, claim: &Claim) -> Answered<Released>;

    /// At most `most` claims of the queue of this name, the holder first.
    async fn queue(&self, name: &str, most: usize) -> Answered<Vec<QueueEntry>>;

    /// As [`Backend::ask_for_turn`]. The default is for a service whose claims all ask from the start. Any other service tells
    /// the holder by [`Waiters::note_contended`], not by [`Waiters::note_contended_as_of`]: asking makes no new ticket, so
    /// that method may ignore the news as old.
    async fn ask_for_turn(&self, _claim: &Claim) -> Answered<()> {
        Ok(())
    }

    /// As [`Backend::watch_holder`].
    fn watch_holder(&self, _name: &str) -> Option<watch::Receiver<Option<ObservedClaim>>> {
        None
    }
}

/// The result of a request.
pub type Answered<T> = Result<T, BackendError>;

/// A backend on an [`Asked`] service, with a separate thread. It may serve several sessions.
pub type AskedBackend<A> = OnThread<Engine<A>>;

/// Sends the requests of an [`Asked`] service, and asks about the claims that wait.
pub struct Engine<A> {
    service: Arc<A>,
}

impl<A: Asked> AskedBackend<A> {
    /// Starts the thread and makes the service. `make` gets the thread's runtime and a pointer to the service.
    ///
    /// # Errors
    /// [`Permanent`](BackendErrorKind::Permanent) if the thread cannot be started.
    pub fn start(
        thread: &str,
        make: impl FnOnce(&Handle, &Weak<A>) -> A,
    ) -> Result<Self, BackendError> {
        let thread = OwnThread::start(thread)?;
        let service = Arc::new_cyclic(|service| make(&thread.runtime, service));
        Ok(Self::new_on(Engine { service }, thread))
    }
}

/// How long after a put without an answer its claim is still withdrawn.
const LATEST: Duration = Duration::from_secs(30);

/// The shortest pause between two withdrawals of such a claim.
const WITHDRAW_AGAIN_AFTER: Duration = Duration::from_millis(250);

impl<A: Asked> Engine<A> {
    /// Notes that a claim was withdrawn or handed over. If a put of it had no answer, the claim is withdrawn again and again, with
    /// longer and longer pauses: the put may arrive late.
    fn note_withdrawn(&self, claim: &Claim) {
        let Some(unanswered_at) = self.service.waiters().note_withdrawn(claim) else { return };
        let forgotten = self.service.waiters().forgotten();
        let (service, claim) = (Arc::downgrade(&self.service), claim.clone());
        spawn_on(&Handle::current(), async move {
            let lives = |service: Arc<A>| service.waiters().leases().contains_key(&claim.lease);
            // the claims end with their lease
            let mut is_over = pin!(async {
                loop {
                    // subscribe before checking the lease, which may be forgotten right after the check
                    let forgotten = forgotten.notified();
                    if !service.upgrade().is_some_and(lives) {
                        return;
                    }
                    forgotten.await;
                }
            });
            let until = unanswered_at + LATEST;
            while Instant::now() < until {
                let pause = unanswered_at.elapsed().max(WITHDRAW_AGAIN_AFTER);
                tokio::select! {
                    biased;
                    () = &mut is_over => return,
                    () = sleep_until(until.min(Instant::now() + pause)) => {}
                }
                let Some(service) = service.upgrade() else { return };
                if let Ok(Released::Done) = service.release(&claim).await {
                    tracing::debug!(%claim, "withdrew a claim whose request came late");
                }
            }
        });
    }
}

#[async_trait]
impl<A: Asked> Backend for Engine<A> {
    type Token = A::Token;

    fn promises(&self) -> Promises {
        A::PROMISES
    }

    async fn open(&self, ttl: Duration) -> Result<Lease, BackendError> {
        let (id, waiters) = (random_id(), self.service.waiters());
        // before the request, so that no message about the lease is ignored
        waiters.leases().insert(id, ttl);
        let opened = self.service.open(id, ttl).await;
        if opened.is_err() {
            waiters.forget(id);
        }
        Ok(Lease { id, ttl, cluster: opened? })
    }

    async fn renew(&self, lease: Lease) -> Result<Duration, BackendError> {
        let waiters = self.service.waiters();
        // the claims that are held before the request: the service may not know of later grants yet
        let held = waiters.holding(lease.id);
        // a claim without an answer counts as gone
        let kept = self.service.renew(lease, &held).await?.into_iter().chain(repeat(false));
        for (claim, _) in held.iter().zip(kept).filter(|(_, is_kept)| !is_kept) {
            waiters.note(claim, ClaimStatus::Gone);
        }
        Ok(lease.ttl)
    }

    async fn close(&self, lease: Lease) -> Result<(), BackendError> {
        let claims = self.service.waiters().end(lease.id);
        let closed = self.service.close(lease, claims).await;
        if closed.is_ok() {
            self.service.waiters().forget(lease.id);
        } else {
            // the session repeats the request with the same claims, for at most a TTL
            let service = Arc::clone(&self.service);
            spawn_on(&Handle::current(), async move {
                sleep(lease.ttl * 2).await;
                service.waiters().forget(lease.id);
            });
        }
        closed
    }

    async fn put(&self, claim: &Claim, mode: &PutMode) -> Answered<Option<Ticket<A::Token>>> {
        let waiters = self.service.waiters();
        let ticket = waiters.expect_put(claim);
        let answer = self.service.put(claim, mode).await;
        if let (Ok(_), PutMode::After(held)) = (&answer, mode) {
            self.note_withdrawn(held);
        }
        match answer {
            Ok(Some(answer)) if answer.status == ClaimStatus::Waiting => {
                waiters.note_put(claim, answer.status);
                let (service, claim) = (Arc::clone(&self.service), claim.clone());
                spawn_on(&Handle::current(), async move {
                    service.waiters().watch(&claim, answer, || service.ask(&claim)).await;
                });
                Ok(Some(ticket))
            }
            Ok(Some(answer)) if answer.status != ClaimStatus::Gone => {
                waiters.note_put(claim, answer.status);
                Ok(Some(ticket))
            }
            // the claim may be in the queue, or may come late
            Err(error) if error.kind == BackendErrorKind::Transient => {
                waiters.note_unanswered(claim);
                Err(error)
            }
            not_put => {
                waiters.note(claim, ClaimStatus::Gone);
                not_put.map(|_| None)
            }
        }
    }

    async fn release(&self, claim: &Claim) -> Result<Released, BackendError> {
        let released = self.service.release(claim).await?;
        self.note_withdrawn(claim);
        Ok(released)
    }

    async fn ask_for_turn(&self, claim: &Claim) -> Result<(), BackendError> {
        self.service.ask_for_turn(claim).await
    }

    fn watch_holder(&self, name: &str) -> Option<watch::Receiver<Option<ObservedClaim>>> {
        self.service.watch_holder(name)
    }

    async fn queue(&self, name: &str) -> Result<Vec<QueueEntry>, BackendError> {
        self.service.queue(name, usize::MAX).await
    }

    async fn probe(&self, name: &str) -> Result<Option<QueueEntry>, BackendError> {
        Ok(self.service.queue(name, 1).await?.into_iter().next())
    }
}

impl<A: Asked> fmt::Debug for Engine<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let claims = self.service.waiters().count();
        f.debug_struct("AskedBackend").field("claims", &claims).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Mutex;

    use testkit::wait::eventually;

    use super::*;
    use crate::{Session, SessionOptions, Token};

    const MINUTE: Duration = Duration::from_mins(1);

    fn silence() -> BackendError {
        BackendError::transient("no answer")
    }

    /// A service with one queue. By a seed, an answer gets lost, or a nudge gets lost, comes twice or comes late.
    struct Unreliable {
        waiters: Waiters<Token>,
        queue: Mutex<(i64, Vec<(i64, Claim)>)>,
        random: Mutex<u64>,
        this: Weak<Self>,
    }

    impl Unreliable {
        /// Numbers from 0 to 9, by Knuth's generator.
        fn draw(&self) -> u64 {
            let mut random = self.random.lock().unwrap();
            *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (*random >> 33) % 10
        }

        fn standing(&self, claim: &Claim) -> Answer<Token> {
            let queue = &self.queue.lock().unwrap().1;
            let status = match queue.iter().position(|(_, other)| other == claim) {
                None => ClaimStatus::Gone,
                Some(0) => ClaimStatus::Granted(Token::new(ClusterId(0), queue[0].0)),
                Some(_) => ClaimStatus::Waiting,
            };
            Answer { status, ask_again_in: MINUTE }
        }

        fn remove(&self, claim: &Claim) -> bool {
            let queue = &mut self.queue.lock().unwrap().1;
            let before = queue.len();
            queue.retain(|(_, other)| other != claim);
            let first = queue.first().map(|(_, first)| first.clone());
            let nudges = self.draw();
            for nudge in 0..nudges.min(2) {
                let (this, first, late) = (Weak::clone(&self.this), first.clone(), nudges > 6);
                tokio::spawn(async move {
                    sleep(if late { MINUTE / 2 } else { Duration::from_millis(nudge) }).await;
                    if let (Some(this), Some(first)) = (this.upgrade(), first) {
                        this.waiters.wake(&first);
                    }
                });
            }
            before != queue.len()
        }

        async fn answer<T>(&self, answer: T) -> Result<T, BackendError> {
            sleep(Duration::from_millis(self.draw())).await;
            if self.draw() > 1 { Ok(answer) } else { Err(silence()) }
        }
    }

    #[async_trait]
    impl Asked for Unreliable {
        type Token = Token;

        const PROMISES: Promises = Promises::LEAST;

        fn waiters(&self) -> &Waiters<Token> {
            &self.waiters
        }

        async fn open(&self, _: i64, _: Duration) -> Result<ClusterId, BackendError> {
            Ok(ClusterId(0))
        }

        async fn renew(&self, _: Lease, held: &[Claim]) -> Result<Vec<bool>, BackendError> {
            Ok(held.iter().map(|claim| self.standing(claim).status != ClaimStatus::Gone).collect())
        }

        async fn close(&self, _: Lease, claims: Vec<Claim>) -> Result<(), BackendError> {
            // a lost answer often means that nothing was done
            if self.draw() < 5 {
                return Err(silence());
            }
            for claim in &claims {
                self.remove(claim);
            }
            self.answer(()).await
        }

        async fn put(&self, claim: &Claim, mode: &PutMode) -> Answered<Option<Answer<Token>>> {
            let is_put = self.standing(claim).status != ClaimStatus::Gone;
            let is_taken = !self.queue.lock().unwrap().1.is_empty();
            if matches!(mode, PutMode::IfEmpty) && !is_put && is_taken {
                return self.answer(None).await;
            }
            if let PutMode::After(held) = mode
                && !is_put
                && !self.remove(held)
            {
                return self.answer(None).await;
            }
            if !is_put {
                let mut queue = self.queue.lock().unwrap();
                queue.0 += 1;
                let ticket = queue.0;
                queue.1.push((ticket, claim.clone()));
            }
            self.answer(Some(self.standing(claim))).await
        }

        async fn ask(&self, claim: &Claim) -> Result<Answer<Token>, BackendError> {
            self.answer(self.standing(claim)).await
        }

        async fn release(&self, claim: &Claim) -> Result<Released, BackendError> {
            let was_there = self.remove(claim);
            self.answer(if was_there { Released::Done } else { Released::Gone }).await
        }

        async fn queue(&self, _: &str, most: usize) -> Answered<Vec<QueueEntry>> {
            let claims = &self.queue.lock().unwrap().1;
            let entry = |(_, claim): &(_, Claim)| QueueEntry::new(claim.lease, claim.key());
            Ok(claims.iter().take(most).map(entry).collect())
        }
    }

    /// Goal: no waiter is forgotten and there are never two holders, although answers and nudges get lost, are late or come
    /// twice. The end of a session leaves nothing in the queue.
    /// Method: for each of a hundred seeds, ten waiters hand over once each, at a service whose faults follow the seed; then a
    /// try in vain, a waiter that goes away, and a waiter whose session is closed.
    #[tokio::test(start_paused = true)]
    async fn no_waiter_is_forgotten() {
        for seed in 0..100 {
            let service = Arc::new_cyclic(|this| Unreliable {
                waiters: Waiters::default(),
                queue: Mutex::default(),
                random: Mutex::new(seed),
                this: Weak::clone(this),
            });
            let thread = OwnThread::on(Handle::current());
            let backend = AskedBackend::new_on(Engine { service: Arc::clone(&service) }, thread);
            let options = SessionOptions::new(MINUTE * 60);
            let session = Session::open(Arc::new(backend), options).await.unwrap();
            let latest = Arc::new(tokio::sync::Mutex::new(0));
            let mut waiters = tokio::task::JoinSet::new();
            for _ in 0..10 {
                let (mutex, latest) = (session.mutex("a").unwrap(), Arc::clone(&latest));
                waiters.spawn(async move {
                    let hold = async |revision: i64| {
                        let mut latest = latest.try_lock().expect("nobody else holds");
                        assert!(*latest < revision, "a later grant has a larger token");
                        *latest = revision;
                        sleep(Duration::from_millis(1)).await;
                    };
                    let guard = mutex.lock().await.unwrap();
                    hold(guard.token().revision()).await;
                    let guard = guard.requeue().await.unwrap();
                    hold(guard.token().revision()).await;
                    guard.unlock().await.unwrap();
                });
            }
            waiters.join_all().await;
            let mutex = session.mutex("a").unwrap();
            let guard = mutex.lock().await.unwrap();
            let length = || service.queue.lock().unwrap().1.len();
            let waiter = || {
                let mutex = mutex.clone();
                tokio::spawn(async move { mutex.lock().await.map(drop) })
            };
            drop(mutex.try_lock().await);
            let aborted = waiter();
            eventually("it waits", async || length() == 2).await;
            assert_eq!(mutex.queue().await.unwrap().len(), 2);
            assert_eq!(mutex.probe().await.unwrap().unwrap().key, guard.key());
            aborted.abort();
            eventually("nothing is left", async || length() + service.waiters.count() == 2).await;
            let waiter = waiter();
            eventually("it waits", async || length() == 2).await;
            session.close().await.unwrap();
            waiter.await.unwrap().unwrap_err();
            assert_eq!(length(), 0, "seed {seed}");
            assert_eq!(service.waiters.count(), 0, "seed {seed}");
        }
    }

    /// A service that answers as the test wants it.
    #[derive(Default)]
    struct Scripted {
        waiters: Waiters<Token>,
        /// The answers to puts and questions.
        answers: Mutex<VecDeque<Option<ClaimStatus>>>,
        /// The claims that it was asked to release, and when.
        released: Mutex<Vec<(Claim, Instant)>>,
        /// How long a release takes.
        release_takes: Mutex<Duration>,
    }

    impl Scripted {
        /// The engine of a service with these answers to puts and questions. `None` is a lost answer.
        fn engine(
            answers: impl IntoIterator<Item = Option<ClaimStatus>>,
        ) -> (Engine<Self>, Arc<Self>) {
            let answers = Mutex::new(answers.into_iter().collect());
            let service = Arc::new(Self { answers, ..Self::default() });
            (Engine { service: Arc::clone(&service) }, service)
        }

        fn next(&self, claim: &Claim) -> Answered<Answer<Token>> {
            let answer = self.answers.lock().unwrap().pop_front().unwrap().ok_or_else(silence)?;
            // as the service on Redis does
            if answer != ClaimStatus::Waiting && self.waiters.status(claim) == ClaimStatus::Waiting
            {
                self.waiters.note_contended(claim, true);
            }
            Ok(Answer { status: answer, ask_again_in: MINUTE })
        }
    }

    #[async_trait]
    impl Asked for Scripted {
        type Token = Token;

        const PROMISES: Promises = Promises::LEAST;

        fn waiters(&self) -> &Waiters<Token> {
            &self.waiters
        }

        async fn open(&self, _: i64, _: Duration) -> Result<ClusterId, BackendError> {
            Ok(ClusterId(0))
        }

        /// No claim is in its queue when the service is asked.
        async fn renew(&self, _: Lease, held: &[Claim]) -> Result<Vec<bool>, BackendError> {
            sleep(Duration::from_secs(1)).await;
            Ok(vec![false; held.len()])
        }

        async fn close(&self, _: Lease, _: Vec<Claim>) -> Result<(), BackendError> {
            Ok(())
        }

        async fn put(&self, claim: &Claim, _: &PutMode) -> Answered<Option<Answer<Token>>> {
            self.next(claim).map(Some)
        }

        async fn ask(&self, claim: &Claim) -> Result<Answer<Token>, BackendError> {
            self.next(claim)
        }

        async fn release(&self, claim: &Claim) -> Result<Released, BackendError> {
            self.released.lock().unwrap().push((claim.clone(), Instant::now()));
            let takes = *self.release_takes.lock().unwrap();
            sleep(takes).await;
            Ok(Released::Gone)
        }

        async fn queue(&self, _: &str, _: usize) -> Answered<Vec<QueueEntry>> {
            Ok(Vec::new())
        }
    }

    fn token(revision: i64) -> Token {
        Token::new(ClusterId(0), revision)
    }

    fn granted(revision: i64) -> ClaimStatus {
        ClaimStatus::Granted(token(revision))
    }

    /// Goal: a claim whose put is repeated gets its lock from an answer to the repetition, or later ones. A message may be about
    /// an earlier try, whose claim was removed, and then neither grants the lock, nor tells who waits; but the service is asked.
    #[tokio::test(start_paused = true)]
    async fn a_message_about_an_earlier_try_grants_nothing() {
        let (engine, service) =
            Scripted::engine([None, Some(ClaimStatus::Waiting), Some(granted(2))]);
        let (claim, waiters) = (Claim::new("a", 1, 1), &service.waiters);
        engine.put(&claim, &PutMode::AtEnd).await.unwrap_err();
        waiters.note_message(&claim, token(1), false);
        let mut ticket = engine.put(&claim, &PutMode::AtEnd).await.unwrap().unwrap();
        assert_eq!(*ticket.status.borrow(), ClaimStatus::Waiting);
        waiters.note_message(&claim, token(1), false);
        let is_over = ticket.status.wait_for(|status| *status != ClaimStatus::Waiting);
        assert_eq!(*is_over.await.unwrap(), granted(2));
        waiters.note_message(&claim, token(1), false);
        assert_eq!(*ticket.status.borrow(), granted(2));
        assert!(*ticket.contended.borrow(), "the answer said that others wait");
    }

    /// Goal: the same holds for a hand-over whose first try had no answer, and whose second try finds nothing to hand over: the
    /// claim is then put at the end.
    #[tokio::test(start_paused = true)]
    async fn a_message_about_an_earlier_hand_over_grants_nothing() {
        let (engine, service) =
            Scripted::engine([None, Some(ClaimStatus::Gone), Some(ClaimStatus::Waiting)]);
        let [held, claim] = [1, 2].map(|number| Claim::new("a", 1, number));
        let after = PutMode::After(held);
        engine.put(&claim, &after).await.unwrap_err();
        assert!(engine.put(&claim, &after).await.unwrap().is_none());
        let ticket = engine.put(&claim, &PutMode::AtEnd).await.unwrap().unwrap();
        service.waiters.note_message(&claim, token(1), false);
        assert_eq!(*ticket.status.borrow(), ClaimStatus::Waiting);
    }

    /// Goal: a claim whose put is repeated after a message about an earlier try has the token of the answer, and the news of the
    /// answer about others that wait.
    #[tokio::test(start_paused = true)]
    async fn a_claim_that_is_put_again_has_the_later_token() {
        let (engine, service) = Scripted::engine([None, Some(granted(2))]);
        let claim = Claim::new("a", 1, 1);
        engine.put(&claim, &PutMode::AtEnd).await.unwrap_err();
        service.waiters.note_message(&claim, token(1), false);
        let ticket = engine.put(&claim, &PutMode::AtEnd).await.unwrap().unwrap();
        assert_eq!(*ticket.status.borrow(), granted(2));
        assert!(*ticket.contended.borrow());
    }

    /// Goal: a renewal says nothing about a claim whose put is repeated meanwhile.
    #[tokio::test(start_paused = true)]
    async fn a_renewal_forgets_no_claim_that_is_put_again() {
        let (engine, service) = Scripted::engine([None, Some(granted(2))]);
        let lease = engine.open(MINUTE).await.unwrap();
        let claim = Claim::new("a", lease.id, 1);
        engine.put(&claim, &PutMode::AtEnd).await.unwrap_err();
        service.waiters.note_message(&claim, token(1), false);
        let put = async { engine.put(&claim, &PutMode::AtEnd).await.unwrap().unwrap() };
        let (renewed, ticket) = tokio::join!(engine.renew(lease), put);
        renewed.unwrap();
        assert_eq!(*ticket.status.borrow(), granted(2));
        engine.renew(lease).await.unwrap();
        assert_eq!(*ticket.status.borrow(), ClaimStatus::Gone, "it was not in its queue");
    }

    /// Goal: a claim whose put had no answer is withdrawn again after it was withdrawn or handed over, since the put may arrive
    /// late; with longer and longer pauses, for half a minute, unless its session closes. A claim that is wanted is left alone.
    #[tokio::test(start_paused = true)]
    async fn a_claim_that_comes_late_is_withdrawn() {
        let all = [500, 1000, 2000, 4000, 8000, 16_000, 30_000];
        for (hands_over, closes, expected) in
            [(false, false, &all[..]), (true, false, &all[..]), (false, true, &all[..2])]
        {
            let (engine, service) = Scripted::engine([None, Some(granted(2)), Some(granted(3))]);
            let lease = engine.open(MINUTE).await.unwrap();
            let [claim, next] = [1, 2].map(|number| Claim::new("a", lease.id, number));
            let began_at = Instant::now();
            engine.put(&claim, &PutMode::AtEnd).await.unwrap_err();
            engine.put(&claim, &PutMode::AtEnd).await.unwrap();
            sleep(Duration::from_millis(250)).await;
            assert_eq!(*service.released.lock().unwrap(), []);
            if hands_over {
                engine.put(&next, &PutMode::After(claim.clone())).await.unwrap();
            } else {
                engine.release(&claim).await.unwrap();
                service.released.lock().unwrap().clear();
            }
            sleep(Duration::from_millis(1500)).await;
            if closes {
                engine.close(lease).await.unwrap();
            }
            sleep(MINUTE).await;
            let released = std::mem::take(&mut *service.released.lock().unwrap());
            assert!(released.iter().all(|(released, _)| *released == claim));
            let times: Vec<_> =
                released.iter().map(|(_, at)| (*at - began_at).as_millis()).collect();
            assert_eq!(times, expected);
        }
    }

    /// Goal: nothing is left of a closed session, also if it closes while such a claim is withdrawn.
    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_session_ends_its_withdrawals() {
        let (engine, service) = Scripted::engine([None]);
        let lease = engine.open(MINUTE).await.unwrap();
        let claim = Claim::new("a", lease.id, 1);
        engine.put(&claim, &PutMode::AtEnd).await.unwrap_err();
        engine.release(&claim).await.unwrap();
        *service.release_takes.lock().unwrap() = Duration::from_millis(100);
        eventually("it is withdrawn", async || service.released.lock().unwrap().len() == 2).await;
        engine.close(lease).await.unwrap();
        sleep(Duration::from_millis(200)).await;
        assert_eq!(Handle::current().metrics().num_alive_tasks(), 0);
    }
}
