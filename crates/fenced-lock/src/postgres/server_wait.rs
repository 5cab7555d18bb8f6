//! Locks of PostgreSQL for which the server itself lets its clients wait: advisory locks and row locks.
//!
//! A claim is a connection whose server process waits for, or holds, the lock. Any client that takes the same one is a
//! peer: the session-level advisory lock `hashtextextended(NAME, 0)`,
//!
//! ```sql
//! SELECT pg_advisory_lock(hashtextextended('stock-lock', 0));
//! SELECT pg_advisory_unlock(hashtextextended('stock-lock', 0));
//! ```
//!
//! or the lock of a row of `fenced_lock.row_locks`, for which a transaction stays open:
//!
//! ```sql
//! INSERT INTO fenced_lock.row_locks VALUES ('stock-lock') ON CONFLICT DO NOTHING;
//! BEGIN;
//! SELECT FROM fenced_lock.row_locks WHERE name = 'stock-lock' FOR UPDATE;
//! ROLLBACK;
//! ```
//!
//! The token is counted in `fenced_lock.names` after the grant, while the lock is held, so a later grant has the larger
//! token. A peer that counts none has no token. For an advisory lock, the server process that holds it counts. A
//! transaction that holds a row cannot: its own update ends with it, and a sequence's number is only as durable as the
//! commit that follows (PostgreSQL's documentation of `nextval`, since its commit 4ac452e2). Either could give a token
//! twice. So another connection counts, and commits. Then the connection that holds the row has to answer once more:
//! a number that was counted after its end could be larger than its successor's.
//!
//! A connection alone is no lease: a server notices a vanished client late, and a paused one never. So each
//! connection has a timeout for idling of a little more than the TTL, in and out of a transaction, and a renewal sends
//! a word on that of the session and those of claims that hold. One that waits is not idle; if it dies silently, TCP
//! finds out within half a minute. If its process is paused or its host is gone, it is granted like any other; so behind
//! its lock it has a request that ends it if the connection of its session has ended.
//!
//! The process that releases an advisory lock gives it to the first waiter. The first waiter for a row is only woken,
//! and another one that comes before it has taken the row can take it. So a hand-over waits until it has.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::TryFutureExt as _;
use futures_util::future::{join_all, try_join, try_join3, try_join4};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, Row};

use super::PostgresOptions;
use super::failure::failure;
use super::link::{Access, Link, Wire};
use crate::backoff::Backoff;
use crate::own_thread::OwnThread;
use crate::random::random_id;
use crate::waiters::Waiters;
use crate::{
    Backend, BackendError, BackendErrorKind, BackendFuture, Claim, ClaimStatus, Clock, Ends, Lease,
    Loss, Order, Promises, QueueEntry, QueueView, Released, Ticket, Token, TokenLife, Wake,
};

/// What the server waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Advisory,
    Row,
}

const LOCK: &str = "SELECT pg_advisory_lock(hashtextextended($1, 0))";
const TRY_LOCK: &str = "SELECT pg_try_advisory_lock(hashtextextended($1, 0))";
const UNLOCK: &str = "SELECT pg_advisory_unlock(hashtextextended($1, 0))";

/// A row stays for ever: a client that deletes it ends the claims that wait for it.
const MAKE_ROW: &str = "INSERT INTO fenced_lock.row_locks VALUES ($1) ON CONFLICT DO NOTHING";
const LOCK_ROW: &str = "SELECT 1 FROM fenced_lock.row_locks WHERE name = $1 FOR UPDATE";
/// No row if the row is locked. `NOWAIT` would be an error.
const TRY_LOCK_ROW: &str =
    "SELECT 1 FROM fenced_lock.row_locks WHERE name = $1 FOR UPDATE SKIP LOCKED";
/// Unlike `COMMIT`, it does not wait for the disk.
const UNLOCK_ROW: &str = "ROLLBACK";

/// The server process that waits for the end of this transaction: that of the first waiter for its row.
const FIRST_WAITER: &str = "
    SELECT pid FROM pg_locks
    WHERE NOT granted AND transactionid = pg_current_xact_id_if_assigned()::xid LIMIT 1";

/// A row while this process, which was woken, has not yet taken what it waited for.
const IS_WOKEN: &str = "
    SELECT 1 FROM pg_locks WHERE pid = $1 HAVING bool_and(granted) AND bool_or(locktype = 'tuple')";

/// How long a process that was woken has to take its row before another one may take it.
const HEAD_START: Duration = Duration::from_millis(100);
const HEAD_START_POLL: Duration = Duration::from_millis(1);

/// Counts the grants of a name.
macro_rules! count {
    () => {
        "INSERT INTO fenced_lock.names AS n VALUES ($1, 1)
        ON CONFLICT (name) DO UPDATE SET last = n.last + 1 RETURNING last"
    };
}
const COUNT: &str = count!();

/// Shows how a claim stands to those who look at the queue.
const SHOW: &str = "SELECT set_config('application_name', $1, false)";
const COUNT_AND_SHOW: &str = concat!(
    "WITH ticket AS (",
    count!(),
    ") SELECT last, set_config('application_name', format($2, last), false) FROM ticket"
);

/// Fails without the rights to count, and counts nothing.
const CHECK_RIGHTS: &str = "
    INSERT INTO fenced_lock.names SELECT '', 0 WHERE false;
    UPDATE fenced_lock.names SET last = last WHERE false";
/// The same for rows.
const CHECK_RIGHTS_TO_ROWS: &str = "
    INSERT INTO fenced_lock.row_locks SELECT '' WHERE false;
    SELECT FROM fenced_lock.row_locks WHERE false FOR UPDATE";

/// Who holds the lock and who waits for it. A lock's key stands in two halves.
const QUEUE: &str = "
    SELECT l.pid, a.application_name, EXTRACT(EPOCH FROM clock_timestamp() - l.waitstart)::float8
    FROM hashtextextended($1, 0) AS key
    JOIN pg_locks l ON l.locktype = 'advisory' AND l.objsubid = 1
        AND l.classid::bigint = (key >> 32) & 4294967295 AND l.objid::bigint = key & 4294967295
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    LEFT JOIN pg_stat_get_activity(l.pid) a ON true
    ORDER BY l.granted DESC, l.waitstart NULLS LAST";

/// The same for a row. Its `xmax` is the transaction that has locked it last; the first waiter waits for the end of
/// that one and holds the lock of the row's place, for which the others wait. The locks are read before `xmax` is, so a
/// waiter that takes the row in between is not missed.
const ROW_QUEUE: &str = "
    SELECT l.pid, a.application_name, EXTRACT(EPOCH FROM clock_timestamp() - a.xact_start)::float8
    FROM pg_locks l LEFT JOIN pg_stat_get_activity(l.pid) a ON true
    WHERE (l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock'
        AND l.transactionid = (SELECT xmax FROM fenced_lock.row_locks WHERE name = $1))
    OR (l.locktype = 'tuple' AND l.relation = 'fenced_lock.row_locks'::regclass
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND format('(%s,%s)', l.page, l.tuple) =
            (SELECT ctid::text FROM fenced_lock.row_locks WHERE name = $1))
    ORDER BY l.locktype = 'tuple', NOT l.granted, l.waitstart";

/// What the names of our connections begin with.
const NAME: &str = "fenced-lock";

macro_rules! backend {
    ($(#[$doc:meta])* $name:ident, $kind:expr, $order:expr) => {
        $(#[$doc])*
        pub struct $name {
            shared: Arc<Shared>,
            /// What the connections run on.
            _runtime: OwnThread,
        }

        impl $name {
            /// A backend for these options. Nothing is sent before a session is opened, so a server that is not
            /// there yet is no error.
            ///
            /// # Errors
            /// [`BackendErrorKind::Permanent`] if the address or a certificate cannot be read, or the thread cannot
            /// be started.
            pub fn new(options: &PostgresOptions) -> Result<Self, BackendError> {
                let (shared, runtime) = Shared::start(options, $kind)?;
                Ok(Self { shared, _runtime: runtime })
            }
        }

        impl Backend for $name {
            type Token = Token;

            fn promises(&self) -> Promises {
                Promises {
                    order: $order,
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
                    let wire = self.shared.sit(claim).await?;
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

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    };
}

backend! {
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
    PostgresAdvisoryBackend, Kind::Advisory, Order::Arrival
}

backend! {
    /// PostgreSQL as a lock service, with the locks of rows: `SELECT .. FOR UPDATE` on the row of the name in
    /// `fenced_lock.row_locks`, as programs and `psql` take it.
    ///
    /// As for [`PostgresAdvisoryBackend`], each claim takes a connection, sessions and claims are lost with theirs, and
    /// a name is one lock only in one database. But a claim that comes just when the lock is released can be
    /// served before those that wait, and a grant takes two requests more, for its token. A transaction is open
    /// while the lock is held, which holds back `VACUUM` as a wait does: hold it for seconds, not hours.
    ///
    /// ```no_run
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use fenced_lock::{PostgresOptions, PostgresRowBackend, Session, SessionOptions};
    ///
    /// # async fn example() -> Result<(), fenced_lock::LockError> {
    /// let options = PostgresOptions::new("postgres://app:secret@127.0.0.1/sale");
    /// let postgres = Arc::new(PostgresRowBackend::new(&options)?);
    /// let session = Session::open(postgres, SessionOptions::new(Duration::from_secs(30))).await?;
    /// // psql: BEGIN; SELECT FROM fenced_lock.row_locks WHERE name = 'stock-lock' FOR UPDATE
    /// let guard = session.mutex("stock-lock")?.lock().await?;
    /// guard.unlock().await?;
    /// session.close().await
    /// # }
    /// ```
    PostgresRowBackend, Kind::Row, Order::Unordered
}

struct Shared {
    kind: Kind,
    access: Arc<Access>,
    waiters: Waiters<Token>,
    /// Looks at queues, ends the connections of claims, and counts the grants of rows.
    requests: Link,
    /// The connection of each session, and its TTL.
    leases: Mutex<HashMap<i64, (Arc<Wire>, Duration)>>,
    /// The connection of each claim.
    seats: Mutex<HashMap<Claim, Arc<Wire>>>,
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
        wire.client.query_typed_one(COUNT_AND_SHOW, params).await?.try_get(0)
    };
    let token = match how {
        How::Try if !ask(wire, TRY_LOCK, name).await?.try_get::<_, bool>(0)? => return Ok(None),
        How::Try => count.await?,
        How::Wait => try_join(lock, count).await?.1,
        How::After(done) => {
            let unlock = unlock(wire, Kind::Advisory, name).inspect_ok(|()| _ = done.send(()));
            try_join4(unlock, show(wire, claim, "-"), lock, count).await?.3
        }
    };
    Ok(Some(token))
}

/// Locks the row of a name, in a transaction; `false` if a try found it locked.
async fn row_lock(wire: &Wire, session: &Wire, claim: &Claim, how: How) -> Result<bool, Error> {
    let name = &*claim.name;
    let is_try = matches!(how, How::Try);
    if let How::After(done) = how {
        let first = wire.client.query_typed_opt(FIRST_WAITER, &[]);
        let unlock = unlock(wire, Kind::Row, name);
        let (first, ..) = try_join3(first, unlock, show(wire, claim, "-")).await?;
        _ = done.send(());
        if let Some(first) = first {
            let_pass(wire, first.try_get(0)?).await?;
        }
    }
    let params: &[(&(dyn ToSql + Sync), Type)] = &[(&name, Type::TEXT)];
    let make = wire.client.execute_typed(MAKE_ROW, params);
    let begin = wire.client.batch_execute("BEGIN");
    let lock = async {
        if is_try {
            return Ok(wire.client.query_typed_opt(TRY_LOCK_ROW, params).await?.is_some());
        }
        let lock = try_join(ask(wire, LOCK_ROW, name), wire.end_without(session));
        lock.await.map(|_| true)
    };
    Ok(try_join3(make, begin, lock).await?.2)
}

/// Releases what this connection holds.
async fn unlock(wire: &Wire, kind: Kind, name: &str) -> Result<(), Error> {
    match kind {
        Kind::Advisory => ask(wire, UNLOCK, name).await.map(drop),
        Kind::Row => wire.client.batch_execute(UNLOCK_ROW).await,
    }
}

async fn ask(wire: &Wire, sql: &str, name: &str) -> Result<Row, Error> {
    wire.client.query_typed_one(sql, &[(&name, Type::TEXT)]).await
}

/// Shows a claim, with this token.
async fn show(wire: &Wire, claim: &Claim, token: &str) -> Result<(), Error> {
    ask(wire, SHOW, &application_name(claim, token)).await.map(drop)
}

/// Waits until the process that was woken has taken the row.
async fn let_pass(wire: &Wire, first: i32) -> Result<(), Error> {
    let until = Instant::now() + HEAD_START;
    let params: &[(&(dyn ToSql + Sync), Type)] = &[(&first, Type::INT4)];
    while wire.client.query_typed_opt(IS_WOKEN, params).await?.is_some() && Instant::now() < until {
        sleep(HEAD_START_POLL).await;
    }
    Ok(())
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
    fn start(
        options: &PostgresOptions,
        kind: Kind,
    ) -> Result<(Arc<Self>, OwnThread), BackendError> {
        let runtime = OwnThread::start("postgres-lock")?;
        let table = match kind {
            Kind::Advisory => "fenced_lock.names",
            Kind::Row => "fenced_lock.row_locks",
        };
        let access = Arc::new(Access::new(options, runtime.clone(), table)?);
        let requests = Link::new(&access, NAME, None);
        let (leases, seats) = (Mutex::default(), Mutex::default());
        Ok((
            Arc::new(Self { kind, access, waiters: Waiters::new(), requests, leases, seats }),
            runtime,
        ))
    }

    /// Has the claim lock on this connection, in the background.
    fn lock(self: &Arc<Self>, claim: &Claim, wire: Arc<Wire>, how: How) -> Ticket {
        let ticket = self.waiters.expect(claim);
        self.seats().insert(claim.clone(), Arc::clone(&wire));
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
        let wire = self.sit(claim).await?;
        let ticket = self.waiters.expect(claim);
        self.seats().insert(claim.clone(), Arc::clone(&wire));
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
        let wire = self.seat(held).filter(|wire| !wire.ended.is_cancelled());
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
        let token = match self.kind {
            Kind::Advisory => advisory_lock(wire, &session, claim, how).await.map_err(failure)?,
            Kind::Row if !row_lock(wire, &session, claim, how).await.map_err(failure)? => None,
            Kind::Row => {
                let token = self.count(claim, wire).await?;
                sent_at = Instant::now();
                show(wire, claim, &token.to_string()).await.map_err(failure)?;
                Some(token)
            }
        };
        // A renewal in the meantime has sent no word on this connection, and counts for the claim all the same. So the
        // server must have heard of it lately.
        while token.is_some() && sent_at.elapsed() > slack(ttl) {
            sent_at = Instant::now();
            wire.client.batch_execute("").await.map_err(failure)?;
        }
        Ok(token)
    }

    /// Counts the grant of a row, which this connection holds, for as long as that lives.
    async fn count(&self, claim: &Claim, holding: &Wire) -> Result<i64, BackendError> {
        let mut backoff = Backoff::default();
        loop {
            let counted = async {
                let wire = self.requests.wire().await?;
                wire.ask(async { ask(&wire, COUNT, &claim.name).await?.try_get(0) }).await
            };
            match counted.await {
                Err(error)
                    if error.kind == BackendErrorKind::Transient
                        && !holding.ended.is_cancelled() =>
                {
                    sleep(backoff.next()).await;
                }
                counted => return counted,
            }
        }
    }

    fn leases(&self) -> MutexGuard<'_, HashMap<i64, (Arc<Wire>, Duration)>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lease(&self, id: i64) -> Result<(Arc<Wire>, Duration), BackendError> {
        self.leases().get(&id).cloned().ok_or_else(lease_gone)
    }

    fn seats(&self) -> MutexGuard<'_, HashMap<Claim, Arc<Wire>>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seat(&self, claim: &Claim) -> Option<Arc<Wire>> {
        self.seats().get(claim).cloned()
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
            "-c idle_session_timeout={idle_ms} -c idle_in_transaction_session_timeout={idle_ms} \
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
        if self.kind == Kind::Row {
            wire.ask(wire.client.batch_execute(CHECK_RIGHTS_TO_ROWS)).await?;
        }
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
    async fn sit(&self, claim: &Claim) -> Result<Arc<Wire>, BackendError> {
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
        let Some(wire) = self.seat(claim) else { return Ok(Released::Gone) };
        let mut released = Released::Gone;
        if self.waiters.holding(claim.lease).contains(claim) && !wire.ended.is_cancelled() {
            let limit = self.access.request_timeout;
            match timeout(limit, unlock(&wire, self.kind, &claim.name)).await {
                Ok(Ok(())) => {
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
        let sql = match self.kind {
            Kind::Advisory => QUEUE,
            Kind::Row => ROW_QUEUE,
        };
        let mut rows = wire.ask(wire.client.query_typed(sql, &[(&name, Type::TEXT)])).await?;
        // one that takes its row just now is both holder and first waiter
        rows.dedup_by_key(|row| row.get::<_, i32>(0));
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
