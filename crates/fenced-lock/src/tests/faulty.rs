//! A lock service whose requests go wrong as a test wants it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use async_trait::async_trait;
use fenced_lock::{
    Backend, BackendError, BackendErrorKind, Claim, Clock, Ends, GrantToken, Guard, Lease,
    LockError, MemoryBackend, Mutex, ObservedClaim, Promises, PutMode, QueueEntry, Released,
    Ticket,
};
use testkit::wait::eventually;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// The fault of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// It is not carried out, and fails with this kind.
    Fails(BackendErrorKind),
    /// It is carried out, but its answer gets lost.
    AnswerLost,
    /// It is carried out at once and answered so much later.
    Late(Duration),
    /// It is carried out so much later.
    Slow(Duration),
    /// It is never answered, nor carried out.
    Hangs,
    /// It is carried out, and then the backend panics.
    Panics,
}

/// The faults of one kind of request: first those of single requests, then the fault of all later ones.
#[derive(Default)]
pub(crate) struct Faults {
    next: StdMutex<VecDeque<Option<Fault>>>,
    always: StdMutex<Option<Fault>>,
    /// How many requests came.
    count: AtomicUsize,
    /// Each request under way has a copy.
    under_way: Arc<()>,
}

impl Faults {
    pub(crate) fn next(&self, fault: Option<Fault>) -> &Self {
        self.next.lock().unwrap().push_back(fault);
        self
    }

    pub(crate) fn always(&self, fault: Fault) {
        *self.always.lock().unwrap() = Some(fault);
    }

    /// Ends the fault of [`always`](Self::always).
    pub(crate) fn clear(&self) {
        *self.always.lock().unwrap() = None;
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    pub(crate) fn under_way(&self) -> usize {
        Arc::strong_count(&self.under_way) - 1
    }

    async fn apply<T>(
        &self,
        request: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        self.count.fetch_add(1, Ordering::SeqCst);
        let _under_way = Arc::clone(&self.under_way);
        let next = self.next.lock().unwrap().pop_front();
        let fault = next.unwrap_or(*self.always.lock().unwrap());
        match fault {
            None => request.await,
            Some(Fault::Fails(kind)) => Err(BackendError::new(kind, "as the test wants it")),
            Some(Fault::AnswerLost) => {
                request.await?;
                Err(BackendError::transient("the answer got lost"))
            }
            Some(Fault::Late(by)) => {
                let answer = request.await;
                sleep(by).await;
                answer
            }
            Some(Fault::Slow(by)) => {
                sleep(by).await;
                request.await
            }
            Some(Fault::Hangs) => std::future::pending().await,
            Some(Fault::Panics) => {
                request.await?;
                panic!("as the test wants it")
            }
        }
    }
}

/// A service with faults; by default a service in memory.
pub(crate) struct FaultyBackend<B: ?Sized = MemoryBackend> {
    pub(crate) service: Arc<B>,
    pub(crate) open: Faults,
    pub(crate) renew: Faults,
    pub(crate) close: Faults,
    pub(crate) put: Faults,
    pub(crate) release: Faults,
    pub(crate) ask_for_turn: Faults,
    /// The TTL that the client is told, instead of the one that it asked for.
    pub(crate) grants_ttl: Option<Duration>,
    /// The same for renewals.
    pub(crate) renews_for: Option<Duration>,
}

impl FaultyBackend {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self::of(Arc::default()))
    }
}

impl<B: ?Sized> FaultyBackend<B> {
    pub(crate) fn of(service: Arc<B>) -> Self {
        let [open, renew, close, put, release, ask_for_turn] = [(); 6].map(|()| Faults::default());
        let (grants_ttl, renews_for) = (None, None);
        Self { service, open, renew, close, put, release, ask_for_turn, grants_ttl, renews_for }
    }
}

#[async_trait]
impl<B: Backend + ?Sized> Backend for FaultyBackend<B> {
    type Token = B::Token;

    /// As one that measures its leases by a clock, if it has any.
    fn promises(&self) -> Promises {
        let mut promises = self.service.promises();
        promises.ends = Ends::Lease(Clock::Monotonic);
        promises
    }

    fn runtime(&self) -> Option<Handle> {
        self.service.runtime()
    }

    async fn open(&self, ttl: Duration) -> Result<Lease, BackendError> {
        let mut lease = self.open.apply(self.service.open(ttl)).await?;
        lease.ttl = self.grants_ttl.unwrap_or(lease.ttl);
        Ok(lease)
    }

    async fn renew(&self, lease: Lease) -> Result<Duration, BackendError> {
        let lives_for = self.renew.apply(self.service.renew(lease)).await?;
        Ok(self.renews_for.unwrap_or(lives_for))
    }

    async fn close(&self, lease: Lease) -> Result<(), BackendError> {
        self.close.apply(self.service.close(lease)).await
    }

    async fn put(
        &self,
        claim: &Claim,
        mode: &PutMode,
    ) -> Result<Option<Ticket<B::Token>>, BackendError> {
        let mode = match mode {
            // in two steps, each with its faults
            PutMode::After(held) => match self.release(held).await? {
                Released::Gone => return Ok(None),
                _ => &PutMode::AtEnd,
            },
            mode => mode,
        };
        self.put.apply(self.service.put(claim, mode)).await
    }

    async fn release(&self, claim: &Claim) -> Result<Released, BackendError> {
        self.release.apply(self.service.release(claim)).await
    }

    async fn ask_for_turn(&self, claim: &Claim) -> Result<(), BackendError> {
        self.ask_for_turn.apply(self.service.ask_for_turn(claim)).await
    }

    fn watch_holder(&self, name: &str) -> Option<watch::Receiver<Option<ObservedClaim>>> {
        self.service.watch_holder(name)
    }

    async fn queue(&self, name: &str) -> Result<Vec<QueueEntry>, BackendError> {
        self.service.queue(name).await
    }
}

/// The keys in the queue of a lock, the holder's first.
pub(crate) async fn queue_of<T: GrantToken>(mutex: &Mutex<T>) -> Vec<String> {
    mutex.queue().await.unwrap().into_iter().map(|entry| entry.key).collect()
}

/// Waits until the queue is so long.
pub(crate) async fn queue_length<T: GrantToken>(mutex: &Mutex<T>, length: usize) {
    let what = format!("a queue of {length} for {}", mutex.name());
    eventually(&what, async || match mutex.queue().await {
        Ok(queue) => queue.len() == length,
        // a server that has much to do may answer late
        Err(error) if error.is_retryable() => false,
        Err(error) => panic!("{error}"),
    })
    .await;
}

/// A waiter in a task, seen in the queue.
pub(crate) async fn waiter<T: GrantToken>(
    mutex: &Mutex<T>,
    length: usize,
) -> JoinHandle<Result<Guard<T>, LockError>> {
    let waiter = unseen_waiter(mutex);
    queue_length(mutex, length).await;
    waiter
}

/// A waiter in a task, whose claim may still be on its way.
pub(crate) fn unseen_waiter<T: GrantToken>(
    mutex: &Mutex<T>,
) -> JoinHandle<Result<Guard<T>, LockError>> {
    let mutex = mutex.clone();
    tokio::spawn(async move { mutex.lock().await })
}

/// The kind of the backend's error.
pub(crate) fn kind_of<T: std::fmt::Debug>(result: Result<T, LockError>) -> BackendErrorKind {
    match result.unwrap_err() {
        LockError::Backend(error) => error.kind,
        other => panic!("not an error of the backend: {other}"),
    }
}
