//! Advisory locks of PostgreSQL: the server itself lets its clients wait.
//!
//! A claim is a connection whose server process waits for, or holds, the session-level advisory lock
//! `hashtextextended(NAME, 0)`. Any client that takes the same one is a peer:
//!
//! ```sql
//! SELECT pg_advisory_lock(hashtextextended('stock-lock', 0));
//! SELECT pg_advisory_unlock(hashtextextended('stock-lock', 0));
//! ```
//!
//! The server process that holds the lock then counts the token in `fenced_lock.names`, so a later grant has the larger
//! token. A peer that counts none has no token.
//!
//! A connection alone is no lease: a server notices a vanished client late, and a paused one never. So each
//! connection has a timeout for idling of a little more than the TTL, and a renewal sends
//! a word on that of the session and those of claims that hold. One that waits is not idle; if it dies silently, TCP
//! finds out within half a minute. If its process is paused or its host is gone, it is granted like any other; so behind
//! its lock it has a request that ends it if the connection of its session has ended.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::TryFutureExt as _;
use futures_util::future::{join_all, try_join, try_join4};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, Row};

use super::PostgresOptions;
use super::failure::failure;
use super::link::{Access, Link, Wire};
use crate::own_thread::OwnThread;
use crate::random::random_id;
use crate::waiters::Waiters;
use crate::{
    Backend, BackendError, BackendErrorKind, BackendFuture, Claim, ClaimStatus, Clock, Ends, Lease,
    Loss, Order, Promises, QueueEntry, QueueView, Released, Ticket, Token, TokenLife, Wake,
};

const LOCK: &str = "SELECT pg_advisory_lock(hashtextextended($1, 0))";
const TRY_LOCK: &str = "SELECT pg_try_advisory_lock(hashtextextended($1, 0))";
const UNLOCK: &str = "SELECT pg_advisory_unlock(hashtextextended($1, 0))";

/// Shows how a claim stands to those who look at the queue.
const SHOW: &str = "SELECT set_config('application_name', $1, false)";

/// Counts the grants of a name, and shows the claim with its number.
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
/// Each claim, also one that waits, takes a connection of its own, of which a server allows 100 by default: one
/// too many is refused with [`BackendErrorKind::Refused`]. They must lead to the server itself: a pooler that
/// shares them gives locks away. A name is one lock only in one database, and no lock of another backend.
///
/// A session is lost with its own connection, and a claim with its connection. A holder that is paused is
/// succeeded after a tenth more than the TTL, or at most twice that if other claims of its process wait; one whose
/// process ends is succeeded at once.
///
/// While claims wait, `VACUUM` removes nothing that is deleted meanwhile, in all tables of the database: a
/// statement that waits has a snapshot. Waits of seconds do no harm.
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
    /// What the connections run on.
    _runtime: OwnThread,
}

impl PostgresAdvisoryBackend {
    /// A backend for these options. Nothing is sent before a session is opened, so a server that is not
    /// there yet is no error.
    ///
    /// # Errors
    /// [`BackendErrorKind::Permanent`] if the address or a certificate cannot be read, or the thread cannot
    /// be started.
    pub fn new(options: &PostgresOptions) -> Result<Self, BackendError> {
        let (shared, runtime) = Shared::start(options)?;
        Ok(Self { shared, _runtime: runtime })
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
        Some(self.shared.access.runtime.clone())
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
            let wire = self.shared.connect_for(claim).await?;
            Ok(self.shared.lock(claim, wire, How::Wait))
        })
    }

    fn try_enqueue<'a>(&'a self, claim: &'a Claim) -> BackendFuture<'a, Option<Ticket>> {
        Box::pin(self.shared.try_lock(claim))
    }

    fn release<'a>(&'a self, claim: &'a Claim) -> BackendFuture<'a, Released> {
        Box::pin(self.shared.release(claim))
    }

    fn hand_over<'a>(
        &'a self,
        held: &'a Claim,
        next: &'a Claim,
    ) -> BackendFuture<'a, Option<Ticket>> {
        Box::pin(self.shared.hand_over(held, next))
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

struct Shared {
    access: Arc<Access>,
    waiters: Waiters<Token>,
    /// Looks at queues, and ends the connections of claims.
    requests: Link,
    /// The connection of each session, and its TTL.
    leases: Mutex<HashMap<i64, (Arc<Wire>, Duration)>>,
    /// The connection of each claim.
    connections: Mutex<HashMap<Claim, Arc<Wire>>>,
}

/// How to lock.
enum How {
    Wait,
    Try,
    /// After releasing what this connection holds, and saying so.
    After(oneshot::Sender<()>),
}

/// By how much the server's timeout is longer than the TTL.
fn slack(ttl: Duration) -> Duration {
    ttl / 10
}

/// Locks, and counts; no token if a try found the lock taken.
async fn advisory_lock(
    wire: &Wire,
    session: &Wire,
    claim: &Claim,
    how: How,
) -> Result<Option<i64>, Error> {
    let name = &*claim.name;
    let lock = async { try_join(ask(wire, LOCK, name), wire.end_without(session)).await };
    let count = async {
        let shown = application_name(claim, "%s");
        let params: &[(&(dyn ToSql + Sync), Type)] = &[(&name, Type::TEXT), (&shown, Type::TEXT)];
        wire.client.query_typed_one(COUNT, params).await?.try_get(0)
    };
    let token = match how {
        How::Try if !ask(wire, TRY_LOCK, name).await?.try_get::<_, bool>(0)? => return Ok(None),
        How::Try => count.await?,
        How::Wait => try_join(lock, count).await?.1,
        How::After(done) => {
            let unlock = ask(wire, UNLOCK, name).inspect_ok(|_| _ = done.send(()));
            try_join4(unlock, show(wire, claim, "-"), lock, count).await?.3
        }
    };
    Ok(Some(token))
}

async fn ask(wire: &Wire, sql: &str, name: &str) -> Result<Row, Error> {
    wire.client.query_typed_one(sql, &[(&name, Type::TEXT)]).await
}

/// Shows a claim, with this token.
async fn show(wire: &Wire, claim: &Claim, token: &str) -> Result<(), Error> {
    ask(wire, SHOW, &application_name(claim, token)).await.map(drop)
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
    fn start(options: &PostgresOptions) -> Result<(Arc<Self>, OwnThread), BackendError> {
        let runtime = OwnThread::start("postgres-lock")?;
        let (connector, table) = (options.connector()?, "fenced_lock.names");
        let access = Arc::new(Access::new(options, connector, runtime.clone(), table));
        let requests = Link::new(&access, NAME, None);
        let (leases, connections) = (Mutex::default(), Mutex::default());
        Ok((
            Arc::new(Self { access, waiters: Waiters::new(), requests, leases, connections }),
            runtime,
        ))
    }

    /// Has the claim lock on this connection, in the background.
    fn lock(self: &Arc<Self>, claim: &Claim, wire: Arc<Wire>, how: How) -> Ticket {
        let ticket = self.waiters.expect(claim);
        self.connections().insert(claim.clone(), Arc::clone(&wire));
        let (shared, claim, status) = (Arc::clone(self), claim.clone(), ticket.status.clone());
        self.access.runtime.spawn(async move {
            match shared.locked(&wire, &claim, how).await {
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

    /// Locks if the lock is free; `None` if it is taken.
    async fn try_lock(self: &Arc<Self>, claim: &Claim) -> Result<Option<Ticket>, BackendError> {
        let wire = self.connect_for(claim).await?;
        let ticket = self.waiters.expect(claim);
        self.connections().insert(claim.clone(), Arc::clone(&wire));
        let silence = |elapsed| Err(BackendError::new(BackendErrorKind::Transient, elapsed));
        let tried = timeout(wire.limit, self.locked(&wire, claim, How::Try)).await;
        match tried.unwrap_or_else(silence) {
            Ok(None) => {
                self.forget(claim);
                Ok(None)
            }
            Ok(token) => {
                self.note_granted(claim, &wire, token);
                let (shared, claim) = (Arc::clone(self), claim.clone());
                let status = ticket.status.clone();
                self.access
                    .runtime
                    .spawn(async move { shared.until_ended(&claim, status, wire).await });
                Ok(Some(ticket))
            }
            Err(error) => {
                wire.give_up();
                // a server that answers sees that the connection has ended
                if error.kind != BackendErrorKind::Transient {
                    self.forget(claim);
                }
                Err(error)
            }
        }
    }

    async fn hand_over(
        self: &Arc<Self>,
        held: &Claim,
        next: &Claim,
    ) -> Result<Option<Ticket>, BackendError> {
        let wire = self.connection(held).filter(|wire| !wire.ended.is_cancelled());
        let Some(wire) = wire else {
            // the server may not know yet
            self.release(held).await?;
            return Ok(None);
        };
        self.forget(held);
        let (done, released) = oneshot::channel();
        let ticket = self.lock(next, wire, How::After(done));
        // an error means that the connection is lost, which the ticket tells
        drop(released.await);
        Ok(Some(ticket))
    }

    /// Locks, and returns the token; `None` if a try found the lock taken.
    async fn locked(
        &self,
        wire: &Wire,
        claim: &Claim,
        how: How,
    ) -> Result<Option<i64>, BackendError> {
        let (session, ttl) = self.lease(claim.lease)?;
        let mut sent_at = Instant::now();
        let token = advisory_lock(wire, &session, claim, how).await.map_err(failure)?;
        // A renewal in the meantime has sent no word on this connection, and counts for the claim all the same. So the
        // server must have heard of it lately.
        while token.is_some() && sent_at.elapsed() > slack(ttl) {
            sent_at = Instant::now();
            wire.client.batch_execute("").await.map_err(failure)?;
        }
        Ok(token)
    }

    fn leases(&self) -> MutexGuard<'_, HashMap<i64, (Arc<Wire>, Duration)>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lease(&self, id: i64) -> Result<(Arc<Wire>, Duration), BackendError> {
        self.leases().get(&id).cloned().ok_or_else(lease_gone)
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<Claim, Arc<Wire>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connection(&self, claim: &Claim) -> Option<Arc<Wire>> {
        self.connections().get(claim).cloned()
    }

    /// A connection that ends by itself if nothing is sent on it for a TTL and this slack.
    async fn connect(
        &self,
        name: &str,
        ttl: Duration,
        slack: Duration,
    ) -> Result<Wire, BackendError> {
        let idle_ms = (ttl + slack).as_millis();
        // the server looks now and then whether a client that waits is still there
        let settings = format!(
            "-c idle_session_timeout={idle_ms} \
             -c client_connection_check_interval=1000 -c statement_timeout=0 -c lock_timeout=0"
        );
        self.access.connect(name, &settings, None).await
    }

    async fn open(&self, ttl: Duration) -> Result<Lease, BackendError> {
        let id = random_id();
        // first: it is needed to end claims when the server has no connection left, and asks for no setting that a
        // server which is too old does not know
        self.requests.wire().await?;
        // sooner than those of its claims: none that waits is granted when one that holds ends
        let wire = self.connect(&format!("{NAME} {id:x}"), ttl, slack(ttl) / 2).await?;
        wire.ask(wire.client.batch_execute(CHECK_RIGHTS)).await?;
        let cluster = wire.cluster;
        self.leases().insert(id, (Arc::new(wire), ttl));
        Ok(Lease { id, ttl, cluster })
    }

    /// Asks the session's connection for an answer, without giving it up if there is none.
    async fn check(&self, lease: i64) -> Result<Duration, BackendError> {
        let (wire, ttl) = self.lease(lease)?;
        match timeout(self.access.request_timeout, wire.client.batch_execute("")).await {
            Ok(Ok(())) => Ok(ttl),
            Ok(Err(_)) => Err(lease_gone()),
            Err(elapsed) => Err(BackendError::new(BackendErrorKind::Transient, elapsed)),
        }
    }

    async fn renew(&self, lease: Lease) -> Result<Duration, BackendError> {
        let held = self.waiters.holding(lease.id);
        let connections: Vec<_> = held.iter().filter_map(|claim| self.connection(claim)).collect();
        // the claim of a connection that has ended is gone; one that is silent is not renewed
        let connections =
            join_all(connections.iter().map(async |wire| wire.client.batch_execute("").await));
        let renewed = try_join(self.check(lease.id), async {
            let silent = |elapsed| BackendError::new(BackendErrorKind::Transient, elapsed);
            timeout(self.access.request_timeout, connections).await.map_err(silent)
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
            if let Some(wire) = self.connection(&claim) {
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
        self.connections().retain(|claim, _| claim.lease != lease.id);
        self.leases().remove(&lease.id);
        released
    }

    /// Connects for a claim, once: an earlier connection of it ends first.
    async fn connect_for(&self, claim: &Claim) -> Result<Arc<Wire>, BackendError> {
        self.release(claim).await?;
        let (_, ttl) = self.lease(claim.lease)?;
        let name = application_name(claim, "-");
        let (_, wire) =
            try_join(self.check(claim.lease), self.connect(&name, ttl, slack(ttl))).await?;
        Ok(Arc::new(wire))
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
        let Some(wire) = self.connection(claim) else { return Ok(Released::Gone) };
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
        self.connections().remove(claim);
        self.waiters.note(claim, ClaimStatus::Gone);
    }
}
