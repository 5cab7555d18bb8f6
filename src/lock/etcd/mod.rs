//! etcd as a lock service.
//!
//! A claim is a key `NAME/<lease in hex>-<number>` under the session's lease; the queue is the keys
//! under `NAME/` by their `create_revision`, and the first one holds the lock. `etcdctl lock NAME`,
//! Go's `concurrency.NewMutex` and the server's `Lock` RPC queue in the same way, so they and this
//! library exclude each other.
//!
//! What it costs: an uncontended lock one round trip, a release one, and a hand-over one for both. A
//! waiter makes no request of its own: one watch stream for all queues tells when it is granted.

mod failure;
mod keep_alive;
mod keys;
mod options;
mod queue;
mod queues;
mod requests;
mod standing_watch;
mod thread;

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, ResponseHeader};
use tokio::runtime::Handle;
use tokio::sync::{OnceCell, mpsc};

pub use options::EtcdOptions;

use self::failure::{malformed, within};
use self::keep_alive::KeepAlives;
use self::queues::Queues;
use self::standing_watch::StandingWatch;
use self::thread::LockThread;
use super::{
    Backend, BackendError, BackendErrorKind, BackendFuture, Claim, ClusterId, Lease, Place,
    QueueEntry, Token,
};

/// etcd as a lock service. It may serve several sessions, which then share a connection, a watch
/// stream and a thread.
///
/// ```no_run
/// use std::sync::Arc;
/// use std::time::Duration;
/// use flash_sale::lock::{EtcdBackend, EtcdOptions, Session, SessionOptions};
///
/// # async fn example() -> Result<(), flash_sale::lock::LockError> {
/// let etcd = EtcdBackend::new(EtcdOptions::new(["http://127.0.0.1:2379"]))?;
/// let session = Session::open(Arc::new(etcd), SessionOptions::new(Duration::from_secs(30))).await?;
/// let guard = session.mutex("stock-lock")?.lock().await?;
/// println!("held under token {}", guard.token());
/// guard.unlock().await?;
/// session.close().await
/// # }
/// ```
pub struct EtcdBackend {
    options: EtcdOptions,
    thread: LockThread,
    /// Connected when first used, so that an etcd that is not there yet is no error.
    connection: OnceCell<Connection>,
    queues: Arc<Queues>,
    keep_alives: KeepAlives,
}

struct Connection {
    client: Client,
    /// Its drop ends the standing watch.
    new_names: mpsc::UnboundedSender<Arc<str>>,
}

impl EtcdBackend {
    /// A backend for these options. Nothing is sent before a session is opened.
    ///
    /// # Errors
    /// [`BackendErrorKind::Permanent`] if an endpoint is no URL, or the thread cannot be started.
    pub fn new(options: EtcdOptions) -> Result<Self, BackendError> {
        options.check()?;
        let thread = LockThread::start()
            .map_err(|error| BackendError::new(BackendErrorKind::Permanent, error))?;
        Ok(Self {
            options,
            thread,
            connection: OnceCell::new(),
            queues: Arc::default(),
            keep_alives: KeepAlives::default(),
        })
    }

    async fn connection(&self) -> Result<&Connection, BackendError> {
        self.connection.get_or_try_init(|| self.connect()).await
    }

    async fn client(&self) -> Result<Client, BackendError> {
        Ok(self.connection().await?.client.clone())
    }

    /// Connects on the backend's own runtime, where the connection's tasks then live.
    async fn connect(&self) -> Result<Connection, BackendError> {
        let limit = self.options.request_timeout;
        let endpoints = self.options.endpoints.clone();
        let connect_options = self.options.connect_options();
        let connecting =
            async move { within(limit, Client::connect(endpoints, Some(connect_options))).await };
        let client = self.thread.handle().spawn(connecting).await;
        let client =
            client.map_err(|error| BackendError::new(BackendErrorKind::Permanent, error))??;
        let (new_names, names) = mpsc::unbounded_channel();
        let watch = StandingWatch {
            client: client.clone(),
            queues: Arc::clone(&self.queues),
            new_names: names,
            request_timeout: limit,
        };
        self.thread.handle().spawn(watch.run());
        Ok(Connection { client, new_names })
    }

    fn limit(&self) -> Duration {
        self.options.request_timeout
    }
}

impl Backend for EtcdBackend {
    fn runtime(&self) -> Option<Handle> {
        Some(self.thread.handle().clone())
    }

    fn open(&self, ttl: Duration) -> BackendFuture<'_, Lease> {
        Box::pin(self.grant_lease(ttl))
    }

    fn renew(&self, lease: Lease) -> BackendFuture<'_, Duration> {
        Box::pin(async move { self.keep_alives.renew(&mut self.client().await?, lease.id).await })
    }

    fn close(&self, lease: Lease) -> BackendFuture<'_, ()> {
        Box::pin(self.revoke_lease(lease))
    }

    fn enqueue<'a>(&'a self, claim: &'a Claim) -> BackendFuture<'a, Place> {
        Box::pin(self.put_claim(claim, None))
    }

    fn release<'a>(&'a self, claim: &'a Claim) -> BackendFuture<'a, ()> {
        Box::pin(self.delete_claim(claim))
    }

    fn is_contended(&self, claim: &Claim) -> bool {
        self.queues.with(&claim.name, |queue| queue.is_contended(&claim.key())).unwrap_or(true)
    }

    fn hand_over<'a>(&'a self, held: &'a Claim, next: &'a Claim) -> BackendFuture<'a, Place> {
        Box::pin(self.put_claim(next, Some(held)))
    }

    fn queue<'a>(&'a self, name: &'a str) -> BackendFuture<'a, Vec<QueueEntry>> {
        Box::pin(self.read_queue(name))
    }
}

impl std::fmt::Debug for EtcdBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdBackend").field("options", &self.options).finish_non_exhaustive()
    }
}

fn token(header: Option<&ResponseHeader>, revision: i64) -> Result<Token, BackendError> {
    let header = header.ok_or_else(|| malformed("an answer without a header"))?;
    Ok(Token::new(ClusterId(header.cluster_id()), revision))
}
