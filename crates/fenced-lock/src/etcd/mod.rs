//! etcd as a lock service.
//!
//! ```no_run
//! use std::{sync::Arc, time::Duration};
//! use fenced_lock::{EtcdBackend, EtcdOptions, LockError, SessionKeeper, SessionOptions};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), LockError> {
//!     let etcd = EtcdBackend::new(EtcdOptions::new(["http://127.0.0.1:2379"]))?;
//!     let locks = SessionKeeper::start(Arc::new(etcd), SessionOptions::new(Duration::from_secs(10)));
//!     locks.with("nightly-report", async |guard| println!("mine, under token {}", guard.token())).await?;
//!     locks.close().await;
//!     Ok(())
//! }
//! ```
//!
//! **Promises**: all of [those of the crate](crate#what-it-promises).
//!
//! # How it works
//!
//! A claim is a key `NAME/<lease in hex>-<number>` under the session's lease; the queue is the keys
//! under `NAME/` by their `create_revision`, and the first one holds the lock. `etcdctl lock NAME`,
//! Go's `concurrency.NewMutex` and the server's `Lock` RPC queue in the same way, so they and this
//! library exclude each other.
//!
//! The promises are for etcd from 3.4.31, 3.5.13 and 3.6 on. In earlier ones a leader that was deposed and
//! does not know it yet answers renewals of leases that its successor may end (etcd#15247): a holder can
//! then learn of its loss too late. The token guards against that too. 3.5.1 refuses a release while its store
//! is full (etcd#13429), and after a TTL of refusals this library gives the session up.
//!
//! What it costs: an uncontended lock takes one round trip, a release one, and a hand-over one for both. A
//! waiter makes no request of its own: one watch stream for all queues shows when it is granted. At most four
//! queues a second are read again.
//!
//! Each process that waits for a name hears of every change of its queue, so the cost of a hand-over grows with their
//! number. Measured with etcd 3.4 on two cores, each hand-over took etcd 0.6 ms of CPU time and 0.3 KB to send with 2
//! processes, 0.8 ms and 1.3 KB with 10, and 4.1 ms and 15.6 KB with 100: two events and 156 bytes for each. Where
//! hundreds of processes would wait for one name, let a few wait for all, as a sale's instances do for their buyers.
//! The number of waiters in a process matters little: 1,000 waiters in 8 processes got 5 to 9 times the grants of Go's
//! `concurrency.Mutex` (3.4.23, a session for each waiter) in the same seconds, and 96 waiters 4 to 5 times.
//!
//! In memory, a name that is held takes 2.4 KiB, and a waiter 2.8 KiB, its caller's task included. All of it
//! is given back, at the latest half a minute after a name was last used. A request under way takes more, so the process grows
//! by 4 KiB for each of 3,000 names that are taken one hundred at a time, and by 13 KiB for each of 4,000 waiters
//! that come at once; of this the allocator keeps most for what comes next.

mod endpoints;
mod failure;
mod keys;
mod list;
mod options;
mod queue;
mod queues;
mod requests;
mod standing_watch;
mod watch_stream;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

pub use options::{EtcdOptions, EtcdUser};
pub use queue::QueueSnapshot;

use self::endpoints::Endpoints;
use self::queue::NameQueue;
use self::queues::Queues;
use self::standing_watch::StandingWatch;
use super::BackendError;
use super::own_thread::{OnThread, OwnThread};

/// How long a queue is watched after its last claim. Long enough that a key which appears late, from
/// a request that was given up, is still seen and removed; and that a lock which is used now and
/// then is not watched anew each time.
const LINGER: Duration = Duration::from_secs(30);

/// etcd as a lock service. It may serve several sessions, which then share a connection, a watch
/// stream and a thread.
///
/// # The keys
///
/// The lock `NAME` is the keys under `NAME/`. Each key there counts as a claim, even if your program put it: with a key
/// `config/port`, the lock `config` is never granted. Begin the names of locks with a separate prefix, such as `locks/`. From
/// 3.5.30 on, etcd stops renewing a lease if its user loses the right to write one of the lease's keys: then the session ends.
/// With authentication, the role needs that right: `etcdctl role grant-permission app --prefix=true readwrite locks/`
pub type EtcdBackend = OnThread<Etcd>;

/// The members of a cluster, and what their watch shows.
pub struct Etcd {
    options: EtcdOptions,
    endpoints: Arc<Endpoints>,
    queues: Arc<Queues>,
}

impl OnThread<Etcd> {
    /// A backend for these options. Nothing is sent before a session is opened, so an etcd that is not
    /// there yet is no error.
    ///
    /// # Errors
    /// [`Permanent`](crate::BackendErrorKind::Permanent) if an option cannot be used, or the thread cannot be started.
    pub fn new(options: EtcdOptions) -> Result<Self, BackendError> {
        Self::with_linger(options, LINGER)
    }

    fn with_linger(options: EtcdOptions, linger: Duration) -> Result<Self, BackendError> {
        let options = options.checked()?;
        let thread = OwnThread::start("etcd-lock")?;
        let endpoints = Arc::new(Endpoints::new(options.clone()));
        let (new_names, names) = mpsc::unbounded_channel();
        let queues = Arc::new(Queues::new(linger, new_names));
        let watch = StandingWatch::new(Arc::clone(&endpoints), Arc::clone(&queues), names);
        thread.runtime.spawn(watch.run());
        Ok(Self::new_on(Etcd { options, endpoints, queues }, thread))
    }

    /// The queue of `name` as this process sees it, without a request. The first call
    /// begins to watch the queue, which ends some time after the last call.
    pub fn queue_snapshot(&self, name: &str) -> QueueSnapshot {
        self.backend.queues.with_or_new(&Arc::from(name), NameQueue::snapshot)
    }
}

impl std::fmt::Debug for Etcd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdBackend")
            .field("options", &self.options)
            .field("claims", &self.queues.count_own())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use testkit::shared::shared_endpoint;
    use testkit::wait::eventually;

    use super::*;
    use crate::{Backend as _, Claim, ClusterId, Lease, PutMode};

    /// Goal: after requests that an outage cut short, nothing is remembered of a lease that was given up, so
    /// its queues are not watched for ever. Method: no process listens on etcd's port.
    #[tokio::test]
    async fn nothing_is_left_of_a_lease_after_an_outage() {
        let address = format!("http://127.0.0.1:{}", testkit::ports::reserve(&[0]));
        let backend = EtcdBackend::new(EtcdOptions::new([address]));
        let backend = backend.expect("a valid address");
        let lease = Lease { id: 1, ttl: Duration::from_secs(2), cluster: ClusterId(0) };
        let claims = [1, 2, 3].map(|number| Claim::new("a", 1, number));
        let modes = [PutMode::AtEnd, PutMode::IfEmpty, PutMode::After(claims[0].clone())];
        for (claim, mode) in claims.iter().zip(&modes) {
            assert!(backend.put(claim, mode).await.is_err());
        }
        let error = backend.release(&claims[0]).await.expect_err("nobody listens");
        assert!(error.source().is_some_and(<dyn Error>::is::<etcd_client::Error>));
        let is_used = || backend.backend.queues.with("a", |queue| queue.is_used());
        assert_eq!(is_used(), Some(true), "each may have been carried out");
        assert!(backend.close(lease).await.is_err());
        assert_eq!(is_used(), Some(false));
    }

    /// Goal: names that are not used any more are given back as fast as others may come, however many there are. One whose
    /// holder is watched is kept for as long as that.
    #[tokio::test]
    async fn idle_names_are_given_back_as_fast_as_they_come() {
        const NAMES: usize = 40_000;
        let options = EtcdOptions::new([shared_endpoint().await]);
        let backend = EtcdBackend::with_linger(options, Duration::from_secs(1));
        let backend = backend.expect("a valid address");
        for number in 0..NAMES {
            backend.queue_snapshot(&format!("idle-{number}"));
        }
        let holder = backend.watch_holder("watched");
        let unwatched = async || backend.backend.queues.count(|queue| !queue.claims.is_current());
        eventually("all are watched", async || unwatched().await == 0).await;
        let watched = || backend.backend.queues.count(|_| true);
        eventually("one is watched", async || watched() == 1).await;
        drop(holder);
        eventually("none is watched", async || watched() == 0).await;
    }
}
