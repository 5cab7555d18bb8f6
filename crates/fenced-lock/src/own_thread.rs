//! A runtime on a separate thread, and a backend whose requests run there.

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{oneshot, watch};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

use super::chaos::Safeguard;
use super::process::spawn_on;
use super::{
    Backend, BackendError, Claim, Lease, ObservedClaim, Promises, PutMode, QueueEntry, Released,
    Ticket,
};

/// A current-thread runtime on a thread of its own, which renews leases on time, however busy the program's runtime is. Dropping
/// it ends the thread without blocking, so a backend may be dropped anywhere.
#[derive(Debug)]
pub(crate) struct OwnThread {
    pub(crate) runtime: Handle,
    /// The thread ends when this is dropped.
    _running: oneshot::Sender<()>,
}

impl OwnThread {
    pub(crate) fn start(name: &str) -> Result<Self, BackendError> {
        let (running, ended) = oneshot::channel::<()>();
        if !Safeguard::OwnThread.is_on() {
            return Ok(Self { runtime: Handle::current(), _running: running });
        }
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(BackendError::permanent)?;
        let handle = runtime.handle().clone();
        let run = move || {
            // an error means that the sender is gone
            drop(runtime.block_on(ended));
        };
        let thread = thread::Builder::new().name(name.into()).spawn(run);
        thread.map_err(BackendError::permanent)?;
        Ok(Self { runtime: handle, _running: running })
    }

    /// No thread, for a test with paused time.
    #[cfg(test)]
    pub(crate) fn on(runtime: Handle) -> Self {
        Self { runtime, _running: oneshot::channel().0 }
    }
}

/// A backend whose requests run on a separate thread.
///
/// Each request is a task on that thread, and its caller waits only for the outcome. A caller that polls slowly or never again
/// therefore holds no connection and no permit that others need. A request ends when its caller drops it. Tasks that a request
/// starts live on that thread, on whatever runtime its caller is.
pub struct OnThread<B> {
    pub(crate) backend: Arc<B>,
    thread: Arc<OwnThread>,
}

impl<B: Backend> OnThread<B> {
    pub(crate) fn new_on(backend: B, thread: impl Into<Arc<OwnThread>>) -> Self {
        Self { backend: Arc::new(backend), thread: thread.into() }
    }

    /// Runs a request to its end, or until its caller drops it.
    pub(crate) async fn run<A, F>(
        &self,
        request: impl FnOnce(Arc<B>) -> F,
    ) -> Result<A, BackendError>
    where
        A: Send + 'static,
        F: Future<Output = Result<A, BackendError>> + Send + 'static,
    {
        let request = request(Arc::clone(&self.backend)).in_current_span();
        let request = AbortOnDropHandle::new(spawn_on(&self.thread.runtime, request));
        // the request panicked, or its runtime has ended
        request.await.unwrap_or_else(|ended| Err(BackendError::transient(ended)))
    }
}

#[async_trait]
impl<B: Backend> Backend for OnThread<B> {
    type Token = B::Token;

    fn promises(&self) -> Promises {
        self.backend.promises()
    }

    fn runtime(&self) -> Option<Handle> {
        Some(self.thread.runtime.clone())
    }

    async fn open(&self, ttl: Duration) -> Result<Lease, BackendError> {
        self.run(move |backend| async move { backend.open(ttl).await }).await
    }

    async fn renew(&self, lease: Lease) -> Result<Duration, BackendError> {
        self.run(move |backend| async move { backend.renew(lease).await }).await
    }

    async fn close(&self, lease: Lease) -> Result<(), BackendError> {
        self.run(move |backend| async move { backend.close(lease).await }).await
    }

    async fn put(
        &self,
        claim: &Claim,
        mode: &PutMode,
    ) -> Result<Option<Ticket<B::Token>>, BackendError> {
        let (claim, mode) = (claim.clone(), mode.clone());
        self.run(move |backend| async move { backend.put(&claim, &mode).await }).await
    }

    async fn release(&self, claim: &Claim) -> Result<Released, BackendError> {
        let claim = claim.clone();
        self.run(move |backend| async move { backend.release(&claim).await }).await
    }

    async fn ask_for_turn(&self, claim: &Claim) -> Result<(), BackendError> {
        let claim = claim.clone();
        self.run(move |backend| async move { backend.ask_for_turn(&claim).await }).await
    }

    fn watch_holder(&self, name: &str) -> Option<watch::Receiver<Option<ObservedClaim>>> {
        self.backend.watch_holder(name)
    }

    async fn queue(&self, name: &str) -> Result<Vec<QueueEntry>, BackendError> {
        let name = name.to_owned();
        self.run(move |backend| async move { backend.queue(&name).await }).await
    }

    async fn probe(&self, name: &str) -> Result<Option<QueueEntry>, BackendError> {
        let name = name.to_owned();
        self.run(move |backend| async move { backend.probe(&name).await }).await
    }
}

impl<B: fmt::Debug> fmt::Debug for OnThread<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.backend.fmt(f)
    }
}
