//! ZooKeeper as a lock service.
//!
//! ```no_run
//! use std::{sync::Arc, time::Duration};
//! use fenced_lock::{LockError, SessionKeeper, SessionOptions, ZooKeeperBackend, ZooKeeperOptions};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), LockError> {
//!     let zookeeper = ZooKeeperBackend::new(ZooKeeperOptions::new("127.0.0.1:2181"))?;
//!     let locks = SessionKeeper::start(Arc::new(zookeeper), SessionOptions::new(Duration::from_secs(20)));
//!     locks.with("nightly-report", async |guard| println!("mine, under token {}", guard.token())).await?;
//!     locks.close().await;
//!     Ok(())
//! }
//! ```
//!
//! **Promises**: those [of etcd](crate#what-it-promises), except that a [standby](crate::Mutex::standby) asks for a turn as any
//! other claim does, and that a dead process is succeeded after one and a half TTLs.
//!
//! # How it works
//!
//! A claim is an ephemeral sequential node `ROOT/NAME/_c_<guid>-lock-<sequence>`. The queue is all nodes of a lock in the order
//! of their sequence numbers, whatever their prefixes, and the first one holds the lock. Curator's `InterProcessMutex` with the
//! path `ROOT/NAME` and ZooKeeper's own recipe `WriteLock` queue in the same way, so each of them and this library exclude each
//! other. (They do not exclude one another: Curator sorts by more than the number.) kazoo waits only for claims with prefixes
//! that it knows. Here the prefix ends in `-lock-`: kazoo's `Lock` needs `extra_lock_patterns=["-lock-"]`, and **without that it
//! does not exclude this library**, nor Curator.
//!
//! The lease is a ZooKeeper session. The servers measure it by a monotonic clock, in steps of their `tickTime`. A client's server
//! may be cut off from the leader, and reports its clients to the leader every half tick, which is at most a quarter of a session
//! timeout. So this library believes in a session for two thirds of its timeout: for a TTL of 20 s it asks the servers for 30 s,
//! and the claims of a process that dies stay for 30 s and a tick. The servers grant at most their `maxSessionTimeout`, 20 ticks
//! by default, which shortens the lease accordingly.
//!
//! The token is the `czxid` of a claim's node: the number of the transaction that made it. Unlike the sequence number it grows as
//! long as the data live, also when a lock's node is made anew. ZooKeeper has no identity that changes with its data, so the
//! [`ClusterId`] is a random number in the node `ROOT/%epoch`, which the first session writes; whoever deletes that node makes a
//! new cluster. A copy of the data keeps the identity of the original.
//!
//! What it costs: an uncontended lock takes one write, a release one, and a handover one for both. One persistent watch for each
//! name in use shows its queue, so a waiter makes no request. That needs ZooKeeper 3.6.
//!
//! Connections are encrypted with the feature `zookeeper-tls`. It is a separate feature because the client library's TLS links a
//! second cryptography library, aws-lc, beside ring: more to build, and a choice to make, see [`ZooKeeperOptions::ca`].

mod failure;
mod layout;
mod options;
mod queue;
mod session;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::time::timeout;
#[cfg(feature = "zookeeper-tls")]
use zookeeper_client::TlsOptions;
use zookeeper_client::{Client, CreateMode, Error};

pub use options::ZooKeeperOptions;

use self::failure::backend_error;
use self::session::Connected;
use super::own_thread::{OnThread, OwnThread};
use super::random::random;
use super::{
    Backend, BackendError, Claim, ClusterId, Lease, Promises, PutMode, QueueEntry, Released,
    Ticket, Token,
};

/// ZooKeeper as a lock service. It may serve several leases, each a ZooKeeper session with a connection of its own.
pub type ZooKeeperBackend = OnThread<ZooKeeper>;

/// The servers, and the sessions at them.
pub struct ZooKeeper {
    options: ZooKeeperOptions,
    #[cfg(feature = "zookeeper-tls")]
    tls: Option<TlsOptions>,
    sessions: Arc<Mutex<HashMap<i64, Arc<Connected>>>>,
    thread: Arc<OwnThread>,
}

impl OnThread<ZooKeeper> {
    /// A backend for these options. It connects only when a session is opened, so ZooKeeper need not run yet.
    ///
    /// # Errors
    /// [`Permanent`](crate::BackendErrorKind::Permanent) if an option cannot be used, such as a root that is no path of a node
    /// below `/`, or the thread cannot be started.
    pub fn new(options: ZooKeeperOptions) -> Result<Self, BackendError> {
        let options = options.checked()?;
        let root = options.root.as_str();
        if !layout::is_path(root) {
            let what = format!("a root is written /NODE or /NODE/NODE, not {root:?}");
            return Err(BackendError::permanent(what));
        }
        if options.identity.is_some() && options.ca.is_none() {
            let what =
                "ZooKeeper's client certificate needs a CA: without one nothing is encrypted";
            return Err(BackendError::permanent(what));
        }
        #[cfg(not(feature = "zookeeper-tls"))]
        if options.ca.is_some() {
            let what = "this program was built without TLS, which a CA asks for: turn on the feature zookeeper-tls";
            return Err(BackendError::permanent(what));
        }
        #[cfg(feature = "zookeeper-tls")]
        let tls = options.tls()?;
        let thread = Arc::new(OwnThread::start("zookeeper-lock")?);
        let zookeeper = ZooKeeper {
            options,
            #[cfg(feature = "zookeeper-tls")]
            tls,
            sessions: Arc::default(),
            thread: Arc::clone(&thread),
        };
        Ok(Self::new_on(zookeeper, thread))
    }
}

impl ZooKeeper {
    async fn connect(&self, ttl: Duration) -> Result<Lease, BackendError> {
        let ZooKeeperOptions { servers, user, request_timeout, .. } = &self.options;
        // the TTL is two thirds of the session timeout: see the module's documentation
        let session_timeout = ttl * 3 / 2;
        // the client library pings often enough to notice a dead connection within this time
        let silence = (*request_timeout).min(session_timeout / 5);
        let mut connector = Client::connector()
            .with_session_timeout(session_timeout)
            .with_connection_timeout(silence)
            .with_fail_eagerly();
        if let Some(user) = user {
            connector = connector.with_auth("digest", user.as_bytes());
        }
        let count = u32::try_from(servers.split(',').count()).unwrap_or(u32::MAX);
        let limit = request_timeout.saturating_mul(count);
        #[cfg(not(feature = "zookeeper-tls"))]
        let client = timeout(limit, connector.connect(servers)).await;
        #[cfg(feature = "zookeeper-tls")]
        let client = match &self.tls {
            None => timeout(limit, connector.connect(servers)).await,
            Some(tls) => {
                timeout(limit, connector.with_tls(tls.clone()).secure_connect(servers)).await
            }
        };
        let client = client.unwrap_or(Err(Error::Timeout)).map_err(|error| match error {
            // the error of a server that has just lost its leader, or of a server of another kind
            Error::UnmarshalError { .. } | Error::UnexpectedError(_) => {
                BackendError::transient(error)
            }
            error => backend_error(error),
        })?;
        let cluster = self.epoch(&client).await?;
        let ttl = client.session_timeout() * 2 / 3;
        let lease = Lease { id: client.session_id().0, ttl, cluster };
        let session = Connected::new(client, lease, &self.options);
        self.sessions.lock().insert(lease.id, Arc::new(session));
        Ok(lease)
    }

    /// The identity of the data. The first session writes it.
    async fn epoch(&self, client: &Client) -> Result<ClusterId, BackendError> {
        let ZooKeeperOptions { root, request_timeout, .. } = &self.options;
        let path = format!("{root}/{}", layout::EPOCH);
        let epoch = async {
            match client.get_data(&path).await {
                Err(Error::NoNode) => {}
                known => return known,
            }
            let mode = self.options.node(CreateMode::Persistent);
            client.mkdir(root, &mode).await.map_err(|error| match error {
                Error::NoNode => Error::BadArguments(
                    &"the node behind the servers' addresses is missing: create it",
                ),
                error => error,
            })?;
            let random = format!("{:016x}", random());
            match client.create(&path, random.as_bytes(), &mode).await {
                Ok(_) | Err(Error::NodeExists) => client.get_data(&path).await,
                Err(error) => Err(error),
            }
        };
        let known = timeout(*request_timeout, epoch).await.unwrap_or(Err(Error::Timeout));
        let (data, _) = known.map_err(backend_error)?;
        let id = std::str::from_utf8(&data).ok().and_then(|id| u64::from_str_radix(id, 16).ok());
        id.map(ClusterId)
            .ok_or_else(|| BackendError::permanent(format!("{path} has no hexadecimal number")))
    }

    fn session(&self, lease: i64) -> Result<Arc<Connected>, BackendError> {
        let session = self.sessions.lock().get(&lease).cloned();
        session.ok_or_else(BackendError::lease_gone)
    }
}

#[async_trait]
impl Backend for ZooKeeper {
    type Token = Token;

    fn promises(&self) -> Promises {
        Promises { standby: false, ..Promises::MOST }
    }

    async fn open(&self, ttl: Duration) -> Result<Lease, BackendError> {
        self.connect(ttl).await
    }

    async fn renew(&self, lease: Lease) -> Result<Duration, BackendError> {
        self.session(lease.id)?.renew().await
    }

    /// Gives up the session at once. The session's end is sent as soon as a server can be reached, even if nobody waits for it
    /// and the backend was dropped.
    async fn close(&self, lease: Lease) -> Result<(), BackendError> {
        let Ok(session) = self.session(lease.id) else { return Ok(()) };
        session.give_up();
        let (sessions, running) = (Arc::clone(&self.sessions), Arc::clone(&self.thread));
        let ending = tokio::spawn(async move {
            session.ended().await;
            sessions.lock().remove(&lease.id);
            drop(running);
        });
        let late = |_| BackendError::transient("the session has not ended yet");
        timeout(self.options.request_timeout, ending).await.map_err(late).map(drop)
    }

    async fn put(&self, claim: &Claim, mode: &PutMode) -> Result<Option<Ticket>, BackendError> {
        let session = self.session(claim.lease)?;
        match mode {
            PutMode::AtEnd => session.put(claim, None).await,
            PutMode::IfEmpty => session.put_if_free(claim).await,
            PutMode::After(held) => session.put(claim, Some(held)).await,
        }
    }

    async fn release(&self, claim: &Claim) -> Result<Released, BackendError> {
        match self.session(claim.lease) {
            Ok(session) => session.release(claim).await,
            // the claim ended with its session
            Err(_) => Ok(Released::Gone),
        }
    }

    async fn queue(&self, name: &str) -> Result<Vec<QueueEntry>, BackendError> {
        let session = self.sessions.lock().values().max_by_key(|session| session.is_up()).cloned();
        session.ok_or_else(|| BackendError::transient("no session is open"))?.queue(name).await
    }
}

impl std::fmt::Debug for ZooKeeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ZooKeeperBackend").field("options", &self.options).finish_non_exhaustive()
    }
}
