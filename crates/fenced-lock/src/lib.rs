//! A reentrant distributed lock with fencing tokens, for tokio.
//!
//! A [`SessionKeeper`] is what a service holds: it locks by name, for the life of the process. A [`Guard`] is proof of
//! holding a lock, and dropping it releases the lock. The module of each backend begins with a program; `file` needs no server.
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use fenced_lock::{LockError, MemoryBackend, SessionKeeper, SessionOptions};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), LockError> {
//! // `MemoryBackend` is for tests: it locks nothing outside of this process
//! let backend = Arc::new(MemoryBackend::new());
//! let locks = SessionKeeper::start(backend, SessionOptions::new(Duration::from_secs(30)));
//!
//! // unlocks by itself, and stops the work as soon as the lock is lost
//! locks.with("stock-lock", async |guard| {
//!     /* write, and send the token along */ _ = guard.token();
//! }).await?;
//!
//! // or step by step
//! if let Some(guard) = locks.try_lock("stock-lock").await? {
//!     guard.run(async { /* write */ }).await?;
//!     guard.unlock().await?;
//! }
//! locks.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! Nested calls enter again by [`SessionKeeper::lock_as`]. A [`Mutex`] shows the queue: the holder and the waiters. Below the
//! keeper, a [`Session`] is one lease, kept alive; all its claims hang on it.
//!
//! # What it promises
//!
//! These are the promises on etcd; [`Backend::promises`] and the README list those of the other backends.
//!
//! - **Turns in order.** Claims are served by the order in which the service put them into the
//!   queue, across all processes.
//! - **One holder at a time**, while the holder's lease lives.
//! - **A dead holder is replaced** when its lease has ended: within the TTL and 1.5 seconds. A new leader of etcd grants each
//!   lease its whole TTL again: if the leader changes meanwhile, within twice the TTL and four seconds.
//! - **Re-entry without a request**, counted, by an explicit [`Owner`].
//! - **A fencing token** with every grant, larger than all earlier tokens.
//! - **A signal when a hold is lost**: [`Guard::lost`], [`Guard::run`], [`Guard::is_lost`]. The local monotonic clock gives it
//!   before the lease can have ended, also when the service is silent. (On Linux and macOS that clock stands still while the
//!   machine is suspended. A holder that wakes believes in its lease for as long as before, though another may hold the lock:
//!   only the fence helps.)
//! - **No claim left behind** by a future that was dropped: the claim is withdrawn in the background.
//! - **No future delays anybody else** if its caller drops it, forgets it or polls it slowly: requests run in tasks of the
//!   backend's own. Only a granted lock waits for its caller.
//!
//! # What it cannot promise
//!
//! No lock with a lease can promise that its holder notices the loss in time. The scheduler, the migration of a virtual machine
//! or a closed laptop can pause a process for longer than the TTL, between a look at the clock and a write. When the process goes
//! on, another one holds the lock. Therefore the store must check the [`Token`] of every write, and refuse a token smaller than
//! the largest that it has seen: Kleppmann, "How to do distributed locking" (2016). A store that cannot check tokens is protected
//! only while no process is paused.
//!
//! # Features
//!
//! No feature is on by default. Without one, there are [`MemoryBackend`] and the trait [`Backend`].
//!
//! - `etcd`: `EtcdBackend`. Building it needs `protoc` and Google's protobuf types (Debian: `protobuf-compiler
//!   libprotobuf-dev`).
//! - `file`: `FileBackend`, for the processes of one machine, without a server.
//! - `postgres`: `PostgresBackend`, a queue in a table; `PostgresAdvisoryBackend`, locks of the server. PostgreSQL from
//!   14 on.
//! - `redis`: `RedisBackend`, a queue on one Redis, and `RedlockBackend`, on several, without tokens.
//! - `zookeeper`: `ZooKeeperBackend`, on ZooKeeper from 3.6 on.
//! - `etcd-tls`, `postgres-tls`, `redis-tls`, `zookeeper-tls`: the backend with TLS. Building it needs a C compiler.
//! - `metrics`: see [below](#logs-and-metrics).
//! - `serde`: [`Token`] and [`ClusterId`] as text.
//!
//! `RUSTFLAGS="--cfg fenced_lock_chaos"` is for fault suites: it lets a program switch off each safeguard of the lock.
//!
//! # Connections
//!
//! A backend opens connections of its own, by its options; many sessions share one backend. It uses no connection pool of the
//! service: an exhausted pool would stop the renewal of leases, and a pooled connection has the state of its last user.
//!
//! # Logs and metrics
//!
//! Events of `tracing` at the level debug report each grant, release and loss, with the claim (its name first) and its token.
//! Waiting has the span `lock`, [`Guard::run`] the span `hold`. Events for an operator have the level warn.
//!
//! The feature `metrics` reports to the crate `metrics`: `fenced_lock_wait_seconds` and `fenced_lock_hold_seconds`
//! (histograms), `fenced_lock_lost_holds_total` and `fenced_lock_lost_sessions_total` (counters).
//!
//! # Modules, for readers of the source
//!
//! | module | what it has |
//! |---|---|
//! | `mutex`, `guard`, `session`, `keeper` | the handles |
//! | `acquire` | from a call to a grant. A waiter waits in `Attempt::granted`; a put whose answer got lost is repeated in `Attempt::enqueue` |
//! | `inner` | the state that a session's handles share. A release whose answer got lost is repeated in `SessionInner::release` |
//! | `hold` | one tenure with its entries |
//! | `renewal`, `validity` | keep the lease alive; the local deadline |
//! | `backend`, `promises`, `claim` | the requests to a lock service; its promises; leases, claims and their places |
//! | `holder` | shows watchers the holder |
//! | `watched` | the engine for a service that shows each change: its queue, without I/O, and why no waiter is forgotten |
//! | `asked`, `waiters` | the engine for a service that is asked: driver, why it forgets no waiter, state without I/O |
//! | `etcd`, `zookeeper` | the backends that are watched |
//! | `postgres`, `redis` | the backends that are asked. A waiter of an advisory lock waits at the server |
//! | `file` | a thread reads each queue with a waiter in this process: on kernel messages, and at least four times a second |
//! | `memory` | the example: the step that takes a claim out grants the next one |
//! | `token` | the fencing token, and how a store checks it |
//! | `observe` | events and metrics |
//! | `chaos` | switches for fault suites: each leaves one safeguard out |
//! | `process` | starts tasks and draws random numbers, for a simulator |

#![cfg_attr(docsrs, feature(doc_cfg))]

// tests are written as users write
#[cfg(test)]
extern crate self as fenced_lock;

mod acquire;
pub mod asked;
mod backend;
mod backoff;
#[cfg(fenced_lock_chaos)]
pub mod chaos;
#[cfg(not(fenced_lock_chaos))]
#[allow(unreachable_pub, reason = "it is public with the cfg")]
#[cfg_attr(not(feature = "etcd"), allow(dead_code, reason = "most safeguards are those of etcd"))]
mod chaos;
mod claim;
mod error;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "file")]
pub mod file;
mod guard;
mod hold;
mod holder;
mod inner;
mod keeper;
mod memory;
mod mutex;
mod observe;
mod options;
mod own_thread;
mod owner;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(fenced_lock_chaos)]
pub mod process;
#[cfg(not(fenced_lock_chaos))]
#[allow(unreachable_pub, reason = "it is public with the cfg")]
mod process;
mod promises;
mod random;
#[cfg(feature = "redis")]
pub mod redis;
mod renewal;
mod session;
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis"))]
mod shared;
#[cfg(all(test, feature = "file"))]
mod tests;
#[cfg(any(feature = "postgres-tls", feature = "redis-tls", feature = "zookeeper-tls"))]
#[allow(dead_code, reason = "not every client uses all of it")]
mod tls;
mod token;
mod validity;
#[allow(unreachable_pub, reason = "`asked` shows it")]
mod waiters;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
#[allow(dead_code, reason = "not every backend uses all of it")]
mod watched;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

/// The attribute that an implementation of [`Backend`] takes.
pub use async_trait::async_trait;
pub use backend::{Backend, PutMode, Released};
pub use claim::{Claim, ClaimStatus, Lease, ObservedClaim, QueueEntry, Ticket};
pub use error::{BackendError, BackendErrorKind, LockError, LostReason};
#[cfg(feature = "etcd")]
pub use etcd::{EtcdBackend, EtcdOptions, EtcdUser, QueueSnapshot};
#[cfg(feature = "file")]
pub use file::{FileBackend, FileOptions};
pub use guard::Guard;
pub use holder::HolderWatch;
pub use keeper::SessionKeeper;
pub use memory::MemoryBackend;
pub use mutex::Mutex;
pub use own_thread::OnThread;
pub use owner::Owner;
#[cfg(feature = "postgres")]
pub use postgres::{PostgresAdvisoryBackend, PostgresBackend, PostgresOptions};
pub use promises::{Clock, Ends, GrantToken, Loss, Order, Promises, TokenLife, Unfenced, Wake};
#[cfg(feature = "redis")]
pub use redis::{RedisBackend, RedisOptions, RedlockBackend};
pub use session::{Session, SessionOptions};
pub use token::{ClusterId, ParseTokenError, Token};
#[cfg(feature = "zookeeper")]
pub use zookeeper::{ZooKeeperBackend, ZooKeeperOptions};

/// The README's examples, compiled.
#[cfg(all(doctest, feature = "etcd", feature = "file", feature = "postgres", feature = "redis"))]
#[doc = include_str!("../README.md")]
struct Readme;
