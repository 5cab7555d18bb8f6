//! Advisory locks of PostgreSQL: the server itself makes its clients wait.
//!
//! A claim is a connection whose server process waits for, or holds, the session-level advisory lock `hashtextextended(NAME, 0)`.
//! Any client that takes the same lock is a peer:
//!
//! ```sql
//! SELECT pg_advisory_lock(hashtextextended('stock-lock', 0));
//! SELECT pg_advisory_unlock(hashtextextended('stock-lock', 0));
//! ```
//!
//! In a database whose encoding is neither UTF-8 nor `SQL_ASCII`, this is true only of names in ASCII.
//!
//! The server process that gets the lock then counts up the token in `fenced_lock.names`, so a later grant has a larger token. A
//! peer that does not do this has no token.
//!
//! A connection alone is no lease: a server notices a vanished client late, and a paused one never. Therefore the server ends
//! each connection that is idle for a little more than the TTL, and a renewal sends a request on the session's connection and on
//! those of the holders. A waiter's connection is not idle; if it dies silently, TCP notices within half a minute. The server
//! grants the lock also to a waiter whose process is paused or whose host is gone. Therefore each claim sends a second request
//! behind its lock request: it ends the claim's connection if the session's connection has ended.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{join, join_all, try_join, try_join_all};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, Row};

use super::PostgresOptions;
use super::link::{Access, Connection, IS_OWN, Link, SHARED, failure};
use crate::asked::{Answered, Asked, AskedBackend};
use crate::waiters::{Answer, Waiters};
use crate::{
    BackendError, BackendErrorKind, Claim, ClaimStatus, Clock, ClusterId, Ends, Lease, Order,
    Promises, PutMode, QueueEntry, Released, Token, Wake,
};

const LOCK: &str = "pg_advisory_lock(hashtextextended($1, 0)) IS NOT NULL";
const TRY_LOCK: &str = "pg_try_advisory_lock(hashtextextended($1, 0))";
/// Unlocks, and shows in the queue that the claim has no token.
const UNLOCK: &str = "
    SELECT pg_advisory_unlock(hashtextextended($1, 0)), set_config('application_name', $2, false)";

/// Takes the lock with the function `lock`, counts up the grants of its name, and shows the claim with its new number. Returns
/// that number, or NULL without the lock, and whether the server process has this mark. Without the mark it takes nothing.
fn take_by(lock: &str) -> String {
    let is_own = IS_OWN.replace("$1", "$3");
    format!(
        "WITH ticket AS (
            INSERT INTO fenced_lock.names AS n SELECT $1, 1 WHERE CASE WHEN {is_own} THEN {lock} END
            ON CONFLICT (name) DO UPDATE SET last = n.last + 1 RETURNING last
        )
        SELECT last, {is_own}, set_config('application_name', format($2, last), false)
        FROM (SELECT) AS one LEFT JOIN ticket ON true"
    )
}

/// Takes nothing. The server refuses it for the same reasons as the lock.
const NO_LOCK: &str = "false";

/// Counts nothing. Fails without the rights to count.
const CHECK_RIGHTS: &str = "
    INSERT INTO fenced_lock.names SELECT '', 0 WHERE false;
    UPDATE fenced_lock.names SET last = last WHERE false";
/// The holder of the lock and its waiters. `pg_locks` shows a lock's key in two halves, and no process where a prepared transaction
/// holds the lock; `pg_stat_get_activity` of no process shows all processes.
const QUEUE: &str = "
    SELECT l.pid, a.application_name, EXTRACT(EPOCH FROM clock_timestamp() - l.waitstart)::float8
    FROM hashtextextended($1, 0) AS key
    JOIN pg_locks l ON l.locktype = 'advisory' AND l.objsubid = 1
        AND l.classid::bigint = (key >> 32) & 4294967295 AND l.objid::bigint = key & 4294967295
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    LEFT JOIN pg_stat_get_activity(l.pid) a ON a.pid = l.pid
    ORDER BY l.granted DESC, l.waitstart NULLS LAST";

/// The most signs of life that a granted claim asks of its connection while each answer takes longer than a tenth of the TTL.
const MOST_WORDS: usize = 10;

/// The prefix of our connections' names.
const NAME: &str = "fenced-lock";

/// PostgreSQL as a lock service, with the advisory locks that `psql` and other libraries use.
///
/// ```no_run
/// use std::{sync::Arc, time::Duration};
/// use fenced_lock::{LockError, PostgresAdvisoryBackend, PostgresOptions, SessionKeeper, SessionOptions};
///
/// #[tokio::main]
/// async fn main() -> Result<(), LockError> {
///     let options = PostgresOptions::new("postgres://app:secret@127.0.0.1/app");
///     let postgres = PostgresAdvisoryBackend::new(&options)?;
///     let locks = SessionKeeper::start(Arc::new(postgres), SessionOptions::new(Duration::from_secs(10)));
///     locks.with("nightly-report", async |guard| println!("mine, under token {}", guard.token())).await?;
///     locks.close().await;
///     Ok(())
/// }
/// ```
///
/// `psql` takes the same lock by `SELECT pg_advisory_lock(hashtextextended('nightly-report', 0))`.
///
/// **Promises**: those [of etcd](crate#what-it-promises), except that a waiter that loses its connection queues again, at the
/// end. The server measures leases by its wall clock. A [standby](crate::Mutex::standby) asks for a turn as any other claim does.
///
/// Each claim, also a waiting one, takes a connection of its own. A server allows 100 by default, and refuses more with
/// [`BackendErrorKind::Refused`]. A name is one lock only within one database, and is not the lock of that name in another
/// backend.
///
/// A session ends with its own connection, and a claim with its connection. A paused holder has a successor after 1.1 times the
/// TTL, or after at most twice that if other claims of its process wait. A holder whose process ends has one at once.
///
/// While claims wait, `VACUUM` keeps every row that is deleted meanwhile, in all tables of the database, since a waiting
/// statement has a snapshot. Waits of seconds do no harm.
pub type PostgresAdvisoryBackend = AskedBackend<Advisory>;

impl AskedBackend<Advisory> {
    /// A backend for these options. Sends nothing before a session is opened, so a server that is not running yet is no error.
    ///
    /// # Errors
    /// [`BackendErrorKind::Permanent`] if an option cannot be used, or the thread cannot be started.
    pub fn new(options: &PostgresOptions) -> Result<Self, BackendError> {
        let options = options.checked()?;
        let connector = options.connector()?;
        let make = |_: &Handle, this: &Weak<Advisory>| {
            let access = Arc::new(Access::new(options, connector, &[]));
            Advisory {
                requests: Link::new(&access, NAME, None),
                access,
                waiters: Waiters::default(),
                sessions: Mutex::default(),
                connections: Mutex::default(),
                this: Weak::clone(this),
            }
        };
        Self::start("postgres-lock", make)
    }
}

/// The connections that wait and hold. The server answers each of them by itself, so nothing has to be asked.
pub struct Advisory {
    access: Arc<Access>,
    waiters: Waiters<Token>,
    /// Looks at queues, and ends the connections of claims.
    requests: Link,
    /// The connection of each session, with its TTL.
    sessions: Mutex<HashMap<i64, (Arc<Connection>, Duration)>>,
    connections: Mutex<HashMap<Claim, Arc<Connection>>>,
    /// For tasks that outlive a request.
    this: Weak<Self>,
}

/// The answer to a claim whose grant will come by itself.
const WAITING: Answer<Token> =
    Answer { status: ClaimStatus::Waiting, ask_again_in: Duration::from_secs(3600) };

/// How much longer than the TTL the server's timeout is.
fn slack(ttl: Duration) -> Duration {
    ttl / 10
}

/// Unlocks on this connection, which belongs to this claim from now on. Returns whether the connection held the lock.
async fn unlock(conn: &Connection, claim: &Claim) -> Result<bool, Error> {
    let shown = application_name(claim, "-");
    let params: &[(&(dyn ToSql + Sync), Type)] =
        &[(&&*conn.name(&claim.name), Type::TEXT), (&shown, Type::TEXT)];
    conn.client.query_typed_one(UNLOCK, params).await?.try_get(0)
}

/// A claim as the queue shows it: its lease, its number, its token when it has one, and as much of the label as the server keeps.
fn application_name(claim: &Claim, token: &str) -> String {
    // the server shows other letters as question marks, and refuses letters that the database's encoding lacks
    let label = claim.label.replace(|c: char| c.is_control() || c == '%' || !c.is_ascii(), "_");
    format!("{NAME} {:x}-{} {token} {label}", claim.lease, claim.number)
}

/// Reads a claim of this library from its connection's name.
fn parse(application_name: &str, name: &str, cluster: ClusterId) -> Option<QueueEntry> {
    let mut words = application_name.strip_prefix(NAME)?.trim_start().splitn(3, ' ');
    let (claim, token) = (words.next()?, words.next()?.parse().ok());
    let lease = i64::from_str_radix(claim.split_once('-')?.0, 16).ok()?;
    Some(QueueEntry {
        token: token.map(|token| Token::new(cluster, token)),
        label: Some(words.next().unwrap_or_default().to_owned()),
        ..QueueEntry::new(lease, format!("{name}/{claim}"))
    })
}

impl Advisory {
    fn connection(&self, claim: &Claim) -> Option<Arc<Connection>> {
        self.connections.lock().get(claim).cloned()
    }

    fn session(&self, lease: i64) -> Result<(Arc<Connection>, Duration), BackendError> {
        self.sessions.lock().get(&lease).cloned().ok_or_else(BackendError::lease_gone)
    }

    /// A connection that the server ends if nothing is sent on it for the TTL and this slack.
    async fn connect(
        &self,
        name: &str,
        ttl: Duration,
        slack: Duration,
    ) -> Result<Arc<Connection>, BackendError> {
        let settings = vec![
            ("idle_session_timeout", (ttl + slack).as_millis().to_string()),
            // the server checks every second whether a waiting client is still there
            ("client_connection_check_interval", "1000".to_owned()),
            ("statement_timeout", "0".to_owned()),
            ("lock_timeout", "0".to_owned()),
        ];
        let conn = self.access.connect(name, settings, None).await?;
        let (ended, this) = (conn.ended.clone(), Weak::clone(&self.this));
        tokio::spawn(async move {
            ended.cancelled().await;
            if let Some(this) = this.upgrade() {
                this.tell_ended();
            }
        });
        Ok(Arc::new(conn))
    }

    /// Ends the claims whose connections have ended. The server may not have noticed yet. A claim whose put has no answer stays:
    /// its connection may be that of an earlier try.
    fn tell_ended(&self) {
        for (claim, _) in
            self.connections.lock().iter().filter(|(_, conn)| conn.ended.is_cancelled())
        {
            if self.waiters.is_put(claim) {
                self.waiters.note(claim, ClaimStatus::Gone);
            }
        }
    }

    /// Asks for a sign of life on the session's connection. Keeps the connection if none comes.
    async fn check(&self, lease: i64) -> Result<(), BackendError> {
        let (conn, _) = self.session(lease)?;
        let is_alive = conn.in_time(conn.is_alive()).await?.unwrap_or(false);
        if is_alive { Ok(()) } else { Err(BackendError::lease_gone()) }
    }

    /// Takes the lock on this connection with the function `lock`. Returns `None` if the connection did not get it.
    async fn take(
        &self,
        claim: &Claim,
        conn: &Connection,
        lock: &str,
    ) -> Result<Option<Token>, BackendError> {
        let (mut sent_at, (session, ttl)) = (Instant::now(), self.session(claim.lease)?);
        let taken = async {
            let (sql, shown) = (take_by(lock), application_name(claim, "%s"));
            let name = conn.name(&claim.name);
            let params: &[(&(dyn ToSql + Sync), Type)] =
                &[(&&*name, Type::TEXT), (&shown, Type::TEXT), (&conn.mark, Type::TEXT)];
            let take = conn.client.query_typed_one(&sql, params);
            let (row, ()) = try_join(take, conn.end_without(&session)).await?;
            let (token, is_own) = (row.try_get::<_, Option<_>>(0)?, row.try_get(1)?);
            let Some(token) = token else { return Ok((None, is_own)) };
            // renewals during the wait sent nothing on this connection, though they count for this claim: ask for a sign of life
            for _ in 0..MOST_WORDS {
                if sent_at.elapsed() <= slack(ttl) {
                    break;
                }
                sent_at = Instant::now();
                conn.client.batch_execute("").await?;
            }
            if sent_at.elapsed() > slack(ttl) {
                // the server is too far away for this TTL: others must not wait for a holder that does not know yet that it holds
                return Ok((None, is_own));
            }
            Ok((Some(Token::new(conn.cluster, token)), is_own))
        };
        match taken.await.map_err(failure)? {
            (granted, true) => Ok(granted),
            _ => Err(BackendError::permanent(SHARED)),
        }
    }

    /// Waits for the lock on this connection; if `is_release`, first releases it. Reports through `waits` when the claim waits:
    /// the server has then accepted a request that takes nothing but needs the same rights.
    async fn wait(
        self: Arc<Self>,
        claim: Claim,
        conn: Arc<Connection>,
        is_release: bool,
        waits: oneshot::Sender<Result<(), BackendError>>,
    ) {
        let released = async {
            if is_release && !unlock(&conn, &claim).await.map_err(failure)? {
                return Err(BackendError::transient("the lock was not held any more"));
            }
            Ok(())
        };
        // an error means that the claim ended before it waited, which `put` reports
        let queued = async {
            let queued = try_join(released, self.take(&claim, &conn, NO_LOCK)).await.map(drop);
            let is_queued = queued.is_ok();
            waits.send(queued).map_err(drop).and(is_queued.then_some(()).ok_or(()))
        };
        let (queued, granted) = join(queued, self.take(&claim, &conn, LOCK)).await;
        match granted {
            _ if queued.is_err() => conn.give_up(),
            Ok(Some(token)) => self.waiters.note(&claim, ClaimStatus::Granted(token)),
            failed => {
                tracing::debug!(%claim, ?failed, "lost the connection of a claim");
                conn.give_up();
                // the connection may have ended before it was stored for this claim
                self.waiters.note(&claim, ClaimStatus::Gone);
            }
        }
    }

    /// Forgets leases that ended without being closed.
    fn forget_ended(&self) {
        let leases = self.waiters.leases();
        self.sessions.lock().retain(|lease, _| leases.contains_key(lease));
        self.connections.lock().retain(|claim, _| leases.contains_key(&claim.lease));
    }
}

#[async_trait]
impl Asked for Advisory {
    type Token = Token;

    const PROMISES: Promises = Promises {
        order: Order::Arrival,
        wake: Wake::ServerWait,
        ends: Ends::Lease(Clock::Wall),
        standby: false,
        ..Promises::MOST
    };

    fn waiters(&self) -> &Waiters<Token> {
        &self.waiters
    }

    async fn open(&self, id: i64, ttl: Duration) -> Result<ClusterId, BackendError> {
        self.forget_ended();
        // this connection is the first: it can end claims when the server has no connection left, and it uses no setting that an
        // old server does not know
        self.requests.connection().await?;
        // this connection times out before those of its claims, so that no waiter of a dead session is granted the lock
        let conn = self.connect(&format!("{NAME} {id:x}"), ttl, slack(ttl) / 2).await?;
        conn.ask(conn.client.batch_execute(CHECK_RIGHTS)).await?;
        let cluster = conn.cluster;
        self.sessions.lock().insert(id, (conn, ttl));
        Ok(cluster)
    }

    async fn renew(&self, lease: Lease, held: &[Claim]) -> Result<Vec<bool>, BackendError> {
        let (session, _) = self.session(lease.id)?;
        let conns: Vec<_> = held.iter().filter_map(|claim| self.connection(claim)).collect();
        // a connection that has ended took its claim with it; a silent one makes the renewal fail
        let answers = join_all(conns.iter().map(async |conn| conn.is_alive().await));
        try_join(session.in_time(answers), self.check(lease.id)).await?;
        Ok(vec![true; held.len()])
    }

    async fn close(&self, lease: Lease, _claims: Vec<Claim>) -> Result<(), BackendError> {
        let of_lease = |(claim, conn): (&Claim, &Arc<Connection>)| {
            (claim.lease == lease.id).then(|| Arc::clone(conn))
        };
        let conns: Vec<_> = self.connections.lock().iter().filter_map(of_lease).collect();
        for conn in &conns {
            conn.give_up();
        }
        let requests = self.requests.connection().await?;
        try_join_all(conns.iter().map(|conn| requests.terminate(conn))).await?;
        self.connections.lock().retain(|claim, _| claim.lease != lease.id);
        self.sessions.lock().remove(&lease.id);
        Ok(())
    }

    async fn put(&self, claim: &Claim, mode: &PutMode) -> Answered<Option<Answer<Token>>> {
        let conn = if let PutMode::After(held) = mode {
            let Some(conn) = self.connection(held).filter(|conn| !conn.ended.is_cancelled()) else {
                // the server may not have noticed yet
                self.release(held).await?;
                return Ok(None);
            };
            self.connections.lock().remove(held);
            conn
        } else {
            // an earlier connection of this claim ends first
            if let Some(earlier) = self.connection(claim) {
                self.requests.connection().await?.terminate(&earlier).await?;
            }
            let (_, ttl) = self.session(claim.lease)?;
            let name = application_name(claim, "-");
            try_join(self.check(claim.lease), self.connect(&name, ttl, slack(ttl))).await?.1
        };
        self.connections.lock().insert(claim.clone(), Arc::clone(&conn));
        // `tell_ended` passes over this claim until its put is answered
        let lives = || {
            let error = BackendError::transient("the claim's connection has ended");
            if conn.ended.is_cancelled() { Err(error) } else { Ok(()) }
        };
        if matches!(mode, PutMode::IfEmpty) {
            let tried = conn.in_time(self.take(claim, &conn, TRY_LOCK)).await.flatten();
            match &tried {
                Ok(Some(_)) => lives()?,
                Err(error) if error.kind == BackendErrorKind::Transient => conn.give_up(),
                // the server answers, so it notices that the dropped connection ends
                _ => drop(self.connections.lock().remove(claim)),
            }
            let granted = |token| Answer { status: ClaimStatus::Granted(token), ..WAITING };
            return Ok(tried?.map(granted));
        }
        let (waits, is_waiting) = oneshot::channel();
        let is_release = matches!(mode, PutMode::After(_));
        if let Some(this) = self.this.upgrade() {
            let wait = this.wait(claim.clone(), Arc::clone(&conn), is_release, waits);
            tokio::spawn(wait);
        }
        // `wait` drops its end without an answer only when the runtime ends
        let queued = conn
            .in_time(is_waiting)
            .await
            .and_then(|queued| queued.unwrap_or_else(|ended| Err(BackendError::transient(ended))));
        if queued.as_ref().is_err_and(|error| error.kind != BackendErrorKind::Transient) {
            self.connections.lock().remove(claim);
        }
        queued.and_then(|()| lives()).map(|()| Some(WAITING))
    }

    async fn ask(&self, _claim: &Claim) -> Result<Answer<Token>, BackendError> {
        Ok(WAITING)
    }

    async fn release(&self, claim: &Claim) -> Result<Released, BackendError> {
        let Some(conn) = self.connection(claim) else { return Ok(Released::Gone) };
        let mut released = Released::Gone;
        let holds = matches!(self.waiters.status(claim), ClaimStatus::Granted(_));
        if holds && !conn.ended.is_cancelled() {
            match conn.in_time(unlock(&conn, claim)).await {
                Ok(Ok(true)) => {
                    self.connections.lock().remove(claim);
                    return Ok(Released::Done);
                }
                // a pooler has replaced the server process that holds the lock
                Ok(Ok(false)) => {}
                Ok(Err(error))
                    if error.code().is_some() || conn.ended_by_server.load(Ordering::Relaxed) => {}
                // the server may have released the lock before the connection was lost
                _ => released = Released::Unknown,
            }
        }
        // the claim waits, or the server may not know that its connection is lost
        let was_there = self.requests.connection().await?.terminate(&conn).await?;
        self.connections.lock().remove(claim);
        Ok(if was_there && released == Released::Gone { Released::Done } else { released })
    }

    async fn queue(&self, name: &str, most: usize) -> Result<Vec<QueueEntry>, BackendError> {
        let conn = self.requests.connection().await?;
        let rows =
            conn.ask(conn.client.query_typed(QUEUE, &[(&&*conn.name(name), Type::TEXT)])).await?;
        let entry = |row: &Row| {
            let shown = row.get::<_, Option<&str>>(1).unwrap_or_default();
            let Some(entry) = parse(shown, name, conn.cluster) else {
                let pid = row.get::<_, Option<i32>>(0).map(|pid| format!("pid-{pid}"));
                let claim = pid.unwrap_or_else(|| "prepared".to_owned());
                return QueueEntry::new(0, format!("{name}/{claim}"));
            };
            let age = row.get::<_, Option<f64>>(2);
            QueueEntry { age: age.and_then(|age| Duration::try_from_secs_f64(age).ok()), ..entry }
        };
        Ok(rows.iter().take(most).map(entry).collect())
    }
}
