//! PostgreSQL's advisory locks.
//!
//! A claim is a connection whose server process waits for, or holds, the session-level advisory lock
//! `hashtextextended(NAME, 0)`. Any client that takes the same one is a peer:
//!
//! ```sql
//! SELECT pg_advisory_lock(hashtextextended('stock-lock', 0));
//! SELECT pg_advisory_unlock(hashtextextended('stock-lock', 0));
//! ```
//!
//! The token is counted in `fenced_lock.names` after the grant, by the same server process: it can only do so while
//! it holds the lock, so a later grant has the larger token. A peer that counts none has no token.
//!
//! A connection alone is no lease: a server notices a vanished client late, and a paused one never. So each
//! connection has an `idle_session_timeout` of a little more than the TTL, and a renewal sends a word on each.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{join_all, try_join, try_join3};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, Row};

use super::PostgresOptions;
use super::link::{Access, Link, Wire};
use crate::own_thread::runtime_on_own_thread;
use crate::waiters::Waiters;
use crate::{
    Backend, BackendError, BackendErrorKind, BackendFuture, Claim, ClaimStatus, Clock, Ends, Lease,
    Loss, Order, Promises, QueueEntry, QueueView, Released, Ticket, Token, TokenLife, Wake,
};

const LOCK: &str = "SELECT pg_advisory_lock(hashtextextended($1, 0))";
const TRY_LOCK: &str = "SELECT pg_try_advisory_lock(hashtextextended($1, 0))";
const UNLOCK: &str = "SELECT pg_advisory_unlock(hashtextextended($1, 0))";

/// Counts the grants of a name, and shows the token with the claim to those who look at the queue.
const COUNT: &str = "
    WITH ticket AS (
        INSERT INTO fenced_lock.names AS n VALUES ($1, 1)
        ON CONFLICT (name) DO UPDATE SET last = n.last + 1 RETURNING last
    )
    SELECT last, set_config('application_name', format($2, last), false) FROM ticket";

/// Fails without the rights to count, and counts nothing.
const CHECK_RIGHTS: &str = "
    INSERT INTO fenced_lock.names SELECT '', 0 WHERE false;
    UPDATE fenced_lock.names SET last = last WHERE false";

/// Who holds the lock and who waits for it. A lock's key stands in two halves.
const QUEUE: &str = "
    SELECT l.pid, a.application_name, EXTRACT(EPOCH FROM clock_timestamp() - l.waitstart)::float8
    FROM hashtextextended($1, 0) AS key
    JOIN pg_locks l ON l.locktype = 'advisory' AND l.objsubid = 1
        AND l.classid::bigint = (key >> 32) & 4294967295 AND l.objid::bigint = key & 4294967295
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    LEFT JOIN pg_stat_get_activity(l.pid) a ON true
    ORDER BY l.granted DESC, l.waitstart NULLS LAST";

/// What the names of our connections begin with.
const NAME: &str = "fenced-lock";

/// PostgreSQL as a lock service, with advisory locks: those of `psql` and of other libraries.
///
/// Each claim, also one that waits, takes a connection of its own, of which a server allows 100 by default. They must
/// lead to the server itself: a pooler that shares them gives locks away. A name is one lock only in one database,
/// and no lock of [`PostgresBackend`](super::PostgresBackend).
///
/// A session is lost with its own connection, and a claim with its connection. A holder that is paused is succeeded
/// after a tenth more than the TTL, one whose process ends at once.
///
/// ```no_run
/// use std::sync::Arc;
/// use std::time::Duration;
/// use fenced_lock::{PostgresAdvisoryBackend, PostgresOptions, Session, SessionOptions};
///
/// # async fn example() -> Result<(), fenced_lock::LockError> {
/// let options = PostgresOptions::new("postgres://app:secret@127.0.0.1/sale");
/// let postgres = Arc::new(PostgresAdvisoryBackend::new(&options)?);
/// let session = Session::open(postgres, SessionOptions::new(Duration::from_secs(30))).await?;
/// // psql: SELECT pg_advisory_lock(hashtextextended('stock-lock', 0))
/// let guard = session.mutex("stock-lock")?.lock().await?;
/// guard.unlock().await?;
/// session.close().await
/// # }
/// ```
pub struct PostgresAdvisoryBackend {
    shared: Arc<Shared>,
    runtime: Handle,
    /// Its drop ends the thread of the runtime.
    _running: oneshot::Sender<()>,
}

struct Shared {
    access: Arc<Access>,
    waiters: Waiters<Token>,
    /// Looks at queues, and ends the connections of claims.
    requests: Link,
    /// The connection of each session, and its TTL.
    leases: Mutex<HashMap<i64, (Arc<Wire>, Duration)>>,
    /// The connection of each claim.
    seats: Mutex<HashMap<Claim, Arc<Wire>>>,
}

impl PostgresAdvisoryBackend {
    /// A backend for these options. Nothing is sent before a session is opened, so a server that is not
    /// there yet is no error.
    ///
    /// # Errors
    /// [`BackendErrorKind::Permanent`] if the address or a certificate cannot be read, or the thread cannot be
    /// started.
    pub fn new(options: &PostgresOptions) -> Result<Self, BackendError> {
        let (runtime, running) = runtime_on_own_thread("postgres-lock")
            .map_err(|error| BackendError::new(BackendErrorKind::Permanent, error))?;
        let access = Arc::new(Access::new(options, runtime.clone())?);
        let requests = Link::new(&access, NAME, None);
        let (leases, seats) = (Mutex::default(), Mutex::default());
        let shared = Shared { access, waiters: Waiters::new(), requests, leases, seats };
        Ok(Self { shared: Arc::new(shared), runtime, _running: running })
    }

    /// Has the claim lock on this connection, in the background.
    fn lock(&self, claim: &Claim, wire: Arc<Wire>, ttl: Duration, how: How) -> Ticket {
        let ticket = self.shared.waiters.expect(claim);
        self.shared.seats().insert(claim.clone(), Arc::clone(&wire));
        let (shared, claim) = (Arc::clone(&self.shared), claim.clone());
        let status = ticket.status.clone();
        self.runtime.spawn(async move {
            match locked(&wire, &claim, ttl, how).await {
                Ok(token) => shared.note_granted(&claim, &wire, token),
                Err(error) => {
                    tracing::debug!(%claim, %error, "lost the connection of a claim");
                    wire.give_up();
                }
            }
            shared.until_ended(&claim, status, wire).await;
        });
        ticket
    }

    /// Locks if nobody holds the lock; `None` if somebody does.
    async fn try_lock(&self, claim: &Claim) -> Result<Option<Ticket>, BackendError> {
        let shared = &self.shared;
        let (wire, ttl) = shared.sit(claim).await?;
        let ticket = shared.waiters.expect(claim);
        shared.seats().insert(claim.clone(), Arc::clone(&wire));
        match wire.ask(locked(&wire, claim, ttl, How::Try)).await {
            Ok(None) => {
                shared.forget(claim);
                Ok(None)
            }
            Ok(token) => {
                shared.note_granted(claim, &wire, token);
                let (shared, claim) = (Arc::clone(shared), claim.clone());
                let status = ticket.status.clone();
                self.runtime.spawn(async move { shared.until_ended(&claim, status, wire).await });
                Ok(Some(ticket))
            }
            Err(error) => {
                wire.give_up();
                // a server that answers sees that the connection has ended
                if error.kind != BackendErrorKind::Transient {
                    shared.forget(claim);
                }
                Err(error)
            }
        }
    }
}

/// How to lock.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Wait,
    Try,
    /// After releasing what this connection holds.
    After,
}

/// Locks, and returns the token; `None` if a try found the lock taken.
async fn locked(wire: &Wire, claim: &Claim, ttl: Duration, how: How) -> Result<Option<i64>, Error> {
    let name = &*claim.name;
    let mut sent_at = Instant::now();
    let lock = async {
        match how {
            How::Wait | How::After => ask(wire, LOCK, name).await.map(drop),
            How::Try => Ok(()),
        }
    };
    let token = match how {
        How::Try if !ask(wire, TRY_LOCK, name).await?.try_get::<_, bool>(0)? => return Ok(None),
        How::Wait | How::Try => try_join(lock, count(wire, claim)).await?.1,
        How::After => try_join3(ask(wire, UNLOCK, name), lock, count(wire, claim)).await?.2,
    };
    // A renewal in the meantime has sent no word on this connection, and counts for the claim all the same. So the
    // server must have heard of it lately.
    while sent_at.elapsed() > slack(ttl) {
        sent_at = Instant::now();
        wire.client.batch_execute("").await?;
    }
    Ok(Some(token))
}

/// By how much the server's timeout is longer than the TTL.
fn slack(ttl: Duration) -> Duration {
    ttl / 10
}

async fn ask(wire: &Wire, sql: &str, name: &str) -> Result<Row, Error> {
    wire.client.query_typed_one(sql, &[(&name, Type::TEXT)]).await
}

async fn count(wire: &Wire, claim: &Claim) -> Result<i64, Error> {
    let (name, shown) = (&*claim.name, application_name(claim, "%s"));
    let params: &[(&(dyn ToSql + Sync), Type)] = &[(&name, Type::TEXT), (&shown, Type::TEXT)];
    wire.client.query_typed_one(COUNT, params).await?.try_get(0)
}

/// How a claim is shown: its lease, its number, its token once it has one, and as much of the label as the server
/// keeps.
fn application_name(claim: &Claim, token: &str) -> String {
    let label = claim.label.replace(|c: char| c.is_control() || c == '%', "_");
    format!("{NAME} {:x}-{} {token} {label}", claim.lease, claim.number)
}

/// A claim of this library, from the name of its connection.
fn parse(application_name: &str, name: &str, row: &Row, wire: &Wire) -> Option<QueueEntry> {
    let mut words = application_name.strip_prefix(NAME)?.trim_start().splitn(3, ' ');
    let (claim, token) = (words.next()?, words.next()?.parse().ok());
    let lease = i64::from_str_radix(claim.split_once('-')?.0, 16).ok()?;
    Some(QueueEntry {
        token: token.map(|token| Token::new(wire.cluster, token)),
        lease,
        key: format!("{name}/{claim}"),
        label: Some(words.next().unwrap_or_default().to_owned()),
        age: row.get::<_, Option<f64>>(2).and_then(|age| Duration::try_from_secs_f64(age).ok()),
    })
}

fn lease_gone() -> BackendError {
    BackendError::new(BackendErrorKind::LeaseGone, "the session's connection has ended")
}

impl Shared {
    fn leases(&self) -> MutexGuard<'_, HashMap<i64, (Arc<Wire>, Duration)>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seats(&self) -> MutexGuard<'_, HashMap<Claim, Arc<Wire>>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seat(&self, claim: &Claim) -> Option<Arc<Wire>> {
        self.seats().get(claim).cloned()
    }

    /// A connection that ends by itself if nothing is sent on it for a TTL.
    async fn connect(&self, name: &str, ttl: Duration) -> Result<Wire, BackendError> {
        let idle_ms = (ttl + slack(ttl)).as_millis();
        // the server looks now and then whether a client that waits is still there
        let settings = format!(
            "-c idle_session_timeout={idle_ms} -c client_connection_check_interval=1000 \
             -c statement_timeout=0 -c lock_timeout=0"
        );
        self.access.connect(name, &settings, None).await
    }

    async fn open(&self, ttl: Duration) -> Result<Lease, BackendError> {
        let id = (RandomState::new().hash_one(()) >> 1).cast_signed();
        let wire = self.connect(&format!("{NAME} {id:x}"), ttl).await?;
        wire.ask(wire.client.batch_execute(CHECK_RIGHTS)).await?;
        let cluster = wire.cluster;
        self.leases().insert(id, (Arc::new(wire), ttl));
        Ok(Lease { id, ttl, cluster })
    }

    /// Asks the session's connection for an answer, without giving it up if there is none.
    async fn check(&self, lease: i64) -> Result<Duration, BackendError> {
        let found = self.leases().get(&lease).cloned();
        let (wire, ttl) = found.ok_or_else(lease_gone)?;
        match timeout(self.access.request_timeout, wire.client.batch_execute("")).await {
            Ok(Ok(())) => Ok(ttl),
            Ok(Err(_)) => Err(lease_gone()),
            Err(elapsed) => Err(BackendError::new(BackendErrorKind::Transient, elapsed)),
        }
    }

    async fn renew(&self, lease: Lease) -> Result<Duration, BackendError> {
        let held = self.waiters.holding(lease.id);
        let seats: Vec<_> = held.iter().filter_map(|claim| self.seat(claim)).collect();
        // the claim of a connection that has ended is gone; one that is silent is not renewed
        let seats = join_all(seats.iter().map(async |wire| wire.client.batch_execute("").await));
        let renewed = try_join(self.check(lease.id), async {
            let silent = |elapsed| BackendError::new(BackendErrorKind::Transient, elapsed);
            timeout(self.access.request_timeout, seats).await.map_err(silent)
        });
        match renewed.await {
            Ok((ttl, _)) => Ok(ttl),
            Err(error) => {
                if error.kind == BackendErrorKind::LeaseGone {
                    self.leave(lease.id);
                }
                Err(error)
            }
        }
    }

    /// Ends the connections of a session's claims.
    fn leave(&self, lease: i64) {
        for claim in self.waiters.on_lease(lease) {
            self.waiters.note(&claim, ClaimStatus::Gone);
            if let Some(wire) = self.seat(&claim) {
                wire.give_up();
            }
        }
    }

    async fn close(&self, lease: Lease) -> Result<(), BackendError> {
        let mut released = Ok(());
        for claim in self.waiters.on_lease(lease.id) {
            if let Err(error) = self.release(&claim).await {
                released = Err(error);
            }
        }
        self.leave(lease.id);
        self.seats().retain(|claim, _| claim.lease != lease.id);
        self.leases().remove(&lease.id);
        released
    }

    /// Connects for a claim, once: an earlier connection of it ends first.
    async fn sit(&self, claim: &Claim) -> Result<(Arc<Wire>, Duration), BackendError> {
        self.release(claim).await?;
        let found = self.leases().get(&claim.lease).map(|(_, ttl)| *ttl);
        let ttl = found.ok_or_else(lease_gone)?;
        let name = application_name(claim, "-");
        let (_, wire) = try_join(self.check(claim.lease), self.connect(&name, ttl)).await?;
        Ok((Arc::new(wire), ttl))
    }

    fn note_granted(&self, claim: &Claim, wire: &Wire, token: Option<i64>) {
        if let Some(token) = token {
            let token = Token::new(wire.cluster, token);
            self.waiters.note(claim, ClaimStatus::Granted(token));
        }
    }

    /// Waits until the claim is gone, or its connection ends and the claim with it.
    async fn until_ended(
        &self,
        claim: &Claim,
        mut status: watch::Receiver<ClaimStatus>,
        wire: Arc<Wire>,
    ) {
        let ended = wire.ended.clone();
        // what is released closes the connection
        drop(wire);
        tokio::select! {
            () = ended.cancelled() => self.waiters.note(claim, ClaimStatus::Gone),
            // an error means that it was forgotten
            _ = status.wait_for(|status| *status == ClaimStatus::Gone) => {}
        }
    }

    async fn release(&self, claim: &Claim) -> Result<Released, BackendError> {
        let Some(wire) = self.seat(claim) else { return Ok(Released::Gone) };
        let mut released = Released::Gone;
        if self.waiters.holding(claim.lease).contains(claim) && !wire.ended.is_cancelled() {
            let limit = self.access.request_timeout;
            match timeout(limit, ask(&wire, UNLOCK, &claim.name)).await {
                Ok(Ok(_)) => {
                    self.forget(claim);
                    return Ok(Released::Done);
                }
                // it may have been released before the connection was lost
                Ok(Err(error))
                    if error.code().is_none() && !wire.ended_by_server.load(Ordering::Relaxed) =>
                {
                    released = Released::Unknown;
                }
                Ok(Err(_)) => {}
                Err(_) => released = Released::Unknown,
            }
        }
        // it waits, or its connection is lost, of which the server may not know
        let was_there = self.requests.wire().await?.terminate(&wire).await?;
        self.forget(claim);
        Ok(if was_there && released == Released::Gone { Released::Done } else { released })
    }

    async fn queue(&self, name: &str) -> Result<Vec<QueueEntry>, BackendError> {
        let wire = self.requests.wire().await?;
        let rows = wire.ask(wire.client.query_typed(QUEUE, &[(&name, Type::TEXT)])).await?;
        let entry = |row: &Row| {
            let shown = row.get::<_, Option<&str>>(1).unwrap_or_default();
            parse(shown, name, row, &wire).unwrap_or_else(|| QueueEntry {
                token: None,
                lease: 0,
                key: format!("{name}/pid-{}", row.get::<_, i32>(0)),
                label: None,
                age: None,
            })
        };
        Ok(rows.iter().map(entry).collect())
    }

    fn forget(&self, claim: &Claim) {
        self.seats().remove(claim);
        self.waiters.note(claim, ClaimStatus::Gone);
    }
}

impl Backend for PostgresAdvisoryBackend {
    type Token = Token;

    fn promises(&self) -> Promises {
        Promises {
            order: Order::Arrival,
            wake: Wake::ServerWait,
            token: TokenLife::Durable,
            ends: Ends::Lease(Clock::Wall),
            loss: Loss::Pushed,
            queue: QueueView::Whole,
        }
    }

    fn runtime(&self) -> Option<Handle> {
        Some(self.runtime.clone())
    }

    fn open(&self, ttl: Duration) -> BackendFuture<'_, Lease> {
        Box::pin(self.shared.open(ttl))
    }

    fn renew(&self, lease: Lease) -> BackendFuture<'_, Duration> {
        Box::pin(self.shared.renew(lease))
    }

    fn close(&self, lease: Lease) -> BackendFuture<'_, ()> {
        Box::pin(self.shared.close(lease))
    }

    fn enqueue<'a>(&'a self, claim: &'a Claim) -> BackendFuture<'a, Ticket> {
        Box::pin(async move {
            let (wire, ttl) = self.shared.sit(claim).await?;
            Ok(self.lock(claim, wire, ttl, How::Wait))
        })
    }

    fn try_enqueue<'a>(&'a self, claim: &'a Claim) -> BackendFuture<'a, Option<Ticket>> {
        Box::pin(self.try_lock(claim))
    }

    fn release<'a>(&'a self, claim: &'a Claim) -> BackendFuture<'a, Released> {
        Box::pin(self.shared.release(claim))
    }

    fn hand_over<'a>(
        &'a self,
        held: &'a Claim,
        next: &'a Claim,
    ) -> BackendFuture<'a, Option<Ticket>> {
        Box::pin(async move {
            let ttl = self.shared.leases().get(&held.lease).map(|(_, ttl)| *ttl);
            let wire = self.shared.seat(held).filter(|wire| !wire.ended.is_cancelled());
            let (Some(ttl), Some(wire)) = (ttl, wire) else { return Ok(None) };
            self.shared.forget(held);
            Ok(Some(self.lock(next, wire, ttl, How::After)))
        })
    }

    fn queue<'a>(&'a self, name: &'a str) -> BackendFuture<'a, Vec<QueueEntry>> {
        Box::pin(self.shared.queue(name))
    }
}

impl std::fmt::Debug for PostgresAdvisoryBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresAdvisoryBackend").finish_non_exhaustive()
    }
}
