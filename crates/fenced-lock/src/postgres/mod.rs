//! PostgreSQL as a lock service: a queue in a table.
//!
//! ```no_run
//! use std::{sync::Arc, time::Duration};
//! use fenced_lock::{LockError, PostgresBackend, PostgresOptions, SessionKeeper, SessionOptions};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), LockError> {
//!     let options = PostgresOptions::new("postgres://app:secret@127.0.0.1/app");
//!     let postgres = PostgresBackend::new(&options)?;
//!     let locks = SessionKeeper::start(Arc::new(postgres), SessionOptions::new(Duration::from_secs(10)));
//!     locks.with("nightly-report", async |guard| println!("mine, under token {}", guard.token())).await?;
//!     locks.close().await;
//!     Ok(())
//! }
//! ```
//!
//! **Promises**: those [of etcd](crate#what-it-promises), except that the server measures leases by its wall clock: setting it
//! forward ends them early. A holder learns at the next renewal that its claim was deleted. A [standby](crate::Mutex::standby)
//! asks for a turn as any other claim does.
//!
//! # How it works
//!
//! A claim is a row of `fenced_lock.claims` with a ticket, and the lowest ticket on a name holds the lock. The tickets of a name
//! come from its row in `fenced_lock.names`: each claim counts the row up and keeps it locked until the commit. Whoever sees a
//! claim therefore sees all claims before it, and a first claim stays the first until it goes. (A sequence would number the
//! claims in the order of the requests, not of the commits: a claim with a lower ticket could appear in front of a holder.)
//! Nothing else is locked for longer than a statement, and no transaction has two statements.
//!
//! A claim refers to its session's row in `fenced_lock.leases`, and is deleted with that row. Waiters delete the leases that have
//! expired by the server's clock. Until then an expired lease counts and can be renewed, so setting the clock back gives nobody a
//! lock that is held.
//!
//! `NOTIFY` tells a waiter that it is the first, on the channel of its lease. A lost connection can lose messages, so a waiter
//! also asks again when a lease before it could expire.
//!
//! A claim and a release are committed without a sync of the server's log. They are answered after a later sync, which all
//! requests on a connection share, so fifty names cost few more syncs than one. Before that sync others already see the claim or
//! the release, and a crash can still undo it. This is sound because the log is synced in order: a commit that is based on what
//! its client saw syncs that, too, so no ticket is granted twice. A waiter is granted the lock when its own claim is synced and
//! all claims before it are gone. A claim before it can go in two ways. Either its holder released it. If a crash brings that
//! claim back, the release was not answered and is repeated, or the claim's lease ends; until then the claim stands in front of
//! the new holder's, and nobody else is granted the lock. Or its lease was deleted as expired, perhaps while the holder still
//! believed in it. That commit is synced on this server before anybody sees it, as are all commits except claims and releases.
//! Logical decoding sees each sync as an empty message with the prefix `fenced_lock`.
//!
//! The costs: an uncontended lock takes one round trip and one sync, a release the same, and a handover one of each for both. A
//! process has one connection for messages and renewals, so that no slow claim delays these, and up to eight for requests, each
//! for a part of the names. Tickets are as durable as commits: this needs `fsync` and, if a standby can take over, synchronous
//! replication. After a failover to a lagging standby a ticket may repeat, under another [`ClusterId`].
//!
//! It makes these tables if they are missing and it has the right to do so:
//!
//! ```sql
#![doc = include_str!("schema.sql")]
//! ```

mod advisory;
mod link;
mod options;

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{join, join3, join4, try_join};
use tokio::runtime::Handle;
use tokio_postgres::{Error, Row};

pub use self::advisory::PostgresAdvisoryBackend;
pub use self::options::PostgresOptions;

use self::link::{Access, Connection, Link, Params, SYNC, listen};
use super::asked::{Answered, Asked, AskedBackend};
use super::waiters::{Answer, Waiters};
use super::{
    BackendError, Claim, ClaimStatus, Clock, ClusterId, Ends, Lease, Loss, Promises, PutMode,
    QueueEntry, Released, Token,
};

/// Puts a claim at the end of its queue; a repetition changes nothing. With `$5` it first releases that claim, and puts nothing
/// if that claim is gone. A try (`$6`) puts a claim only into an empty queue, and its own commit syncs it.
const PUT: &str = "
    WITH released AS (
        DELETE FROM fenced_lock.claims WHERE lease = $2 AND number = $5 RETURNING 1
    ), ticket AS (
        INSERT INTO fenced_lock.names AS n SELECT $1, 1
        WHERE ($5 IS NULL OR EXISTS (SELECT FROM released)) AND CASE
            WHEN $6 THEN NOT EXISTS (SELECT FROM fenced_lock.claims WHERE name = $1)
            ELSE set_config('synchronous_commit', 'off', true) = 'off'
        END
        ON CONFLICT (name) DO UPDATE SET last = n.last + 1 RETURNING last
    )
    INSERT INTO fenced_lock.claims (name, ticket, lease, number, label)
    SELECT $1, last, $2, $3, $4 FROM ticket
    ON CONFLICT (lease, number) DO NOTHING";

const RELEASE: &str = "
    DELETE FROM fenced_lock.claims WHERE lease = $1 AND number = $2
    RETURNING set_config('synchronous_commit', 'off', true)";

/// The place of a claim: its ticket, how many claims are before it, when the first of their leases can expire, the last ticket of
/// its name at that moment, and whether a claim is behind it.
const STANDING: &str = "
    SELECT c.ticket, b.count, b.expires_in, n.last, EXISTS (
        SELECT FROM fenced_lock.claims a WHERE a.name = c.name AND a.ticket > c.ticket
    )
    FROM fenced_lock.claims c JOIN fenced_lock.names n ON n.name = c.name, LATERAL (
        SELECT count(*), EXTRACT(EPOCH FROM min(l.expires_at) - clock_timestamp())::float8 AS expires_in
        FROM fenced_lock.claims b LEFT JOIN fenced_lock.leases l ON l.id = b.lease
        WHERE b.name = c.name AND b.ticket < c.ticket
    ) b
    WHERE c.lease = $1 AND c.number = $2";

/// Tells the first claim on each name, except the claim `($2, $3)`, that its queue has changed. The message has the claim's
/// number, the last ticket of the name, and whether a claim is behind it.
const NOTIFY_FIRST: &str = "
    SELECT pg_notify('fenced_lock_' || c.lease, concat_ws(' ', c.number, n.last, EXISTS (
        SELECT FROM fenced_lock.claims a WHERE a.name = c.name AND a.ticket > c.ticket
    )))
    FROM fenced_lock.names n, LATERAL (
        SELECT * FROM fenced_lock.claims WHERE name = n.name ORDER BY ticket LIMIT 1
    ) c
    WHERE n.name = ANY ($1) AND (c.lease, c.number) <> ($2, $3)";

const OPEN: &str = "
    INSERT INTO fenced_lock.leases VALUES ($1, clock_timestamp() + $2 * interval '1 second')";

/// Renews a lease. Returns no row if the lease is gone. Otherwise returns a row for each of its claims, with the last ticket of
/// the name and whether a claim is behind it, or one row of NULLs without claims.
const RENEW: &str = "
    WITH renewed AS (
        UPDATE fenced_lock.leases SET expires_at = clock_timestamp() + $2 * interval '1 second'
        WHERE id = $1 RETURNING id
    )
    SELECT c.number, n.last, EXISTS (
        SELECT FROM fenced_lock.claims a WHERE a.name = c.name AND a.ticket > c.ticket
    )
    FROM renewed LEFT JOIN (
        fenced_lock.claims c JOIN fenced_lock.names n ON n.name = c.name
    ) ON c.lease = renewed.id";

/// Deletes a lease, and its claims with it.
const CLOSE: &str = "DELETE FROM fenced_lock.leases WHERE id = $1 RETURNING 1";

/// Deletes the leases that have expired, and returns the names on which they had claims. Skips a lease that another client renews
/// or ends at this moment. The commit is synced before others see it: no crash of this server gives a lease back to a holder that
/// has a successor.
const REAP: &str = "
    WITH dead AS (
        DELETE FROM fenced_lock.leases WHERE id IN (
            SELECT id FROM fenced_lock.leases WHERE expires_at <= clock_timestamp() FOR UPDATE SKIP LOCKED
        ) RETURNING id
    )
    SELECT DISTINCT name FROM fenced_lock.claims WHERE lease IN (SELECT id FROM dead)";

const QUEUE: &str = "
    SELECT ticket, lease, number, label, EXTRACT(EPOCH FROM clock_timestamp() - made_at)::float8
    FROM fenced_lock.claims WHERE name = $1 ORDER BY ticket LIMIT $2";

/// The shortest pause before a waiter asks again. Waiters delete the leases that have expired.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);

/// How many connections share the requests for the queues. On each, the server does one request after the other: eight serve
/// fifty names as fast as several processes do.
const CONNECTIONS: usize = 8;

/// The statements that a connection prepares.
const STATEMENTS: &[&str] =
    &[PUT, RELEASE, STANDING, NOTIFY_FIRST, OPEN, RENEW, CLOSE, REAP, QUEUE, SYNC];

/// PostgreSQL as a lock service, with a queue in a table. It may serve several sessions, which then share a thread and two
/// connections, or up to nine with many names.
///
/// The server keeps the queues when it is stopped or crashes; a session lives on if the server is back within the TTL. The server
/// measures leases by its wall clock: setting the clock forward ends them early. A name is one lock only within one database.
pub type PostgresBackend = AskedBackend<Postgres>;

impl AskedBackend<Postgres> {
    /// A backend for these options. Sends nothing before a session is opened, so a server that is not running yet is no error.
    ///
    /// # Errors
    /// [`Permanent`](crate::BackendErrorKind::Permanent) if an option cannot be used, or the thread cannot be started.
    pub fn new(options: &PostgresOptions) -> Result<Self, BackendError> {
        let options = options.checked()?;
        let connector = options.connector()?;
        let make = |_: &Handle, _: &Weak<Postgres>| {
            let access = Arc::new(Access::new(options, connector, STATEMENTS));
            let waiters = Arc::new(Waiters::default());
            let requests = [(); CONNECTIONS].map(|()| Link::new(&access, "fenced-lock", None));
            let events = Link::new(&access, "fenced-lock events", Some(Arc::clone(&waiters)));
            Postgres { waiters, requests, events: Arc::new(events) }
        };
        Self::start("postgres-lock", make)
    }
}

/// The queues in a table.
pub struct Postgres {
    waiters: Arc<Waiters<Token>>,
    /// For requests about queues. Each name uses one of these.
    requests: [Link; CONNECTIONS],
    /// For messages and renewals, which no queue may delay.
    events: Arc<Link>,
}

impl Postgres {
    /// The connection for the queue of this name. All requests for a claim go through one connection, in order.
    async fn connection(&self, name: &str) -> Result<Arc<Connection>, BackendError> {
        let hash = |hash: usize, byte| hash.wrapping_mul(31).wrapping_add(usize::from(byte));
        self.requests[name.bytes().fold(0, hash) % CONNECTIONS].connection().await
    }

    /// Deletes the leases that have expired, and tells the claims that have become the first.
    async fn reap(&self, conn: &Connection) -> Result<(), BackendError> {
        let rows = conn.ask(conn.query(REAP, &[])).await?;
        let names: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
        // the leases are gone also if this fails, and the claims that have become the first soon ask by themselves
        drop(conn.ask(notify_first(conn, &names, None)).await);
        Ok(())
    }

    /// Reads the answer to [`STANDING`]. Notes whether others wait.
    fn answer(&self, conn: &Connection, claim: &Claim, rows: &[Row]) -> Answer<Token> {
        let (status, ask_again_in) = match rows.first() {
            None => (ClaimStatus::Gone, Duration::ZERO),
            Some(row) if row.get::<_, i64>(1) == 0 => {
                self.waiters.note_contended_as_of(claim, row.get(3), row.get(4));
                (ClaimStatus::Granted(Token::new(conn.cluster, row.get(0))), Duration::ZERO)
            }
            Some(row) => {
                // without a lease before it, the claim has nothing to wait for
                let expires_in = row.get::<_, Option<f64>>(2).unwrap_or_default();
                let expires_in = Duration::try_from_secs_f64(expires_in).unwrap_or_default();
                (ClaimStatus::Waiting, expires_in.max(SHORTEST_PAUSE))
            }
        };
        Answer { status, ask_again_in }
    }
}

/// Tells the first claim on each of these names, except `but`, that its queue has changed.
async fn notify_first(
    conn: &Connection,
    names: &[impl AsRef<str>],
    but: Option<&Claim>,
) -> Result<(), Error> {
    if names.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    let (lease, number) = but.map_or((0, 0), |claim| (claim.lease, claim.number.cast_signed()));
    conn.query(NOTIFY_FIRST, &[&names, &lease, &number]).await.map(drop)
}

#[async_trait]
impl Asked for Postgres {
    type Token = Token;

    const PROMISES: Promises = Promises {
        ends: Ends::Lease(Clock::Wall),
        loss: Loss::AtRenewal,
        standby: false,
        ..Promises::MOST
    };

    fn waiters(&self) -> &Waiters<Token> {
        &self.waiters
    }

    async fn open(&self, id: i64, ttl: Duration) -> Result<ClusterId, BackendError> {
        // the connections may be older than the present tables
        let (cluster, _) = try_join(self.events.identify(), self.connection("")).await?;
        for link in self.requests.iter().chain([&*self.events]) {
            link.give_up_unless(cluster).await;
        }
        let conn = self.connection("").await?;
        let ttl = ttl.as_secs_f64();
        let open = async { conn.query(OPEN, &[&id, &ttl]).await };
        // a user without the right to sync gets the error at this point
        let opened = conn.ask(try_join(open, conn.query(SYNC, &[])));
        try_join(self.reap(&conn), opened).await?;
        let events = self.events.connection().await?;
        events.ask(events.client.batch_execute(&listen(&self.waiters))).await?;
        Ok(conn.cluster)
    }

    async fn renew(&self, lease: Lease, held: &[Claim]) -> Result<Vec<bool>, BackendError> {
        // a task of its own connects: this may take longer than the caller waits
        let events = Arc::clone(&self.events);
        let connecting = tokio::spawn(async move { events.connection().await }).await;
        let conn = connecting.map_err(BackendError::transient)??;
        // a short limit leaves time to connect anew
        let limit = (lease.ttl / 8).min(conn.limit);
        let ttl = lease.ttl.as_secs_f64();
        let rows = conn.ask_within(limit, conn.query(RENEW, &[&lease.id, &ttl])).await?;
        if rows.is_empty() {
            return Err(BackendError::lease_gone());
        }
        let rows: HashMap<Option<i64>, _> = rows.iter().map(|row| (row.get(0), row)).collect();
        let is_kept = |claim: &Claim| {
            let row = rows.get(&Some(claim.number.cast_signed()));
            if let Some(row) = row {
                self.waiters.note_contended_as_of(claim, row.get(1), row.get(2));
            }
            row.is_some()
        };
        Ok(held.iter().map(is_kept).collect())
    }

    async fn close(&self, lease: Lease, claims: Vec<Claim>) -> Result<(), BackendError> {
        let conn = self.connection("").await?;
        let names: Vec<_> = claims.iter().map(|claim| conn.name(&claim.name)).collect();
        let close = async { conn.query(CLOSE, &[&lease.id]).await };
        let told = notify_first(&conn, &names, None);
        let (closed, told) = join(conn.ask(close), conn.ask(told)).await;
        // a repetition only tells the next claims, which otherwise ask by themselves
        if closed?.is_empty() { Ok(()) } else { told.map_err(BackendError::transient) }
    }

    /// Puts the claim, and returns where it stands. If this releases another claim, tells the next one.
    async fn put(&self, claim: &Claim, mode: &PutMode) -> Answered<Option<Answer<Token>>> {
        let (_, conn) = try_join(self.events.connection(), self.connection(&claim.name)).await?;
        let (held, is_try) = match mode {
            PutMode::AtEnd => (None, false),
            PutMode::IfEmpty => (None, true),
            PutMode::After(held) => (Some(held.number.cast_signed()), false),
        };
        let label = conn.label(&claim.label);
        let (name, number) = (&*conn.name(&claim.name), claim.number.cast_signed());
        let next = if held.is_some() { &[name][..] } else { &[] };
        let params: &Params<'_> = &[&name, &claim.lease, &number, &label, &held, &is_try];
        let (reaped, put, standing, synced) = Box::pin(join4(
            async { if is_try { self.reap(&conn).await } else { Ok(()) } },
            conn.ask(conn.query(PUT, params)),
            conn.ask(try_join(
                notify_first(&conn, next, Some(claim)),
                conn.query(STANDING, &params[1..3]),
            )),
            async { if is_try { Ok(()) } else { conn.sync().await } },
        ))
        .await;
        put?;
        // if any part but the put failed, the claim may be in the queue
        let ((), rows) = reaped.and(synced).and(standing).map_err(BackendError::transient)?;
        let answer = self.answer(&conn, claim, &rows);
        if is_try && answer.status == ClaimStatus::Waiting {
            // another claim came at the same moment
            self.release(claim).await.map_err(BackendError::transient)?;
            return Ok(None);
        }
        // tell the holder that a claim waits
        let is_second = rows.first().is_some_and(|row| row.get::<_, i64>(1) == 1);
        if is_second && held.is_none() {
            conn.ask(notify_first(&conn, &[name], Some(claim)))
                .await
                .map_err(BackendError::transient)?;
        }
        Ok(Some(answer))
    }

    async fn ask(&self, claim: &Claim) -> Result<Answer<Token>, BackendError> {
        // try to connect for messages, but go on without them: a waiter that asks needs none
        let (_, conn) = join(self.events.connection(), self.connection(&claim.name)).await;
        let (conn, number) = (conn?, claim.number.cast_signed());
        let standing = async { conn.query(STANDING, &[&claim.lease, &number]).await };
        let ((), rows) = try_join(self.reap(&conn), conn.ask(standing)).await?;
        Ok(self.answer(&conn, claim, &rows))
    }

    async fn release(&self, claim: &Claim) -> Result<Released, BackendError> {
        let conn = self.connection(&claim.name).await?;
        // two statements: the second one also sees claims that were put before the first one was committed
        let (number, names) = (claim.number.cast_signed(), [conn.name(&claim.name)]);
        let release = async { conn.query(RELEASE, &[&claim.lease, &number]).await };
        let told = notify_first(&conn, &names, Some(claim));
        let (deleted, told, synced) = join3(conn.ask(release), conn.ask(told), conn.sync()).await;
        let deleted = deleted?;
        synced?;
        if deleted.is_empty() {
            // no more than a repetition tells the next claim, which otherwise asks by itself
            return Ok(Released::Gone);
        }
        // whatever the server refused, the release is done
        told.map_err(BackendError::transient)?;
        Ok(Released::Done)
    }

    async fn queue(&self, name: &str, most: usize) -> Result<Vec<QueueEntry>, BackendError> {
        let conn = self.connection(name).await?;
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let queue = async { conn.query(QUEUE, &[&&*conn.name(name), &most]).await };
        let ((), rows) = try_join(self.reap(&conn), conn.ask(queue)).await?;
        let key = |row: &Row| format!("{name}/{:x}-{}", row.get::<_, i64>(1), row.get::<_, i64>(2));
        let entry = |row: &Row| QueueEntry {
            token: Some(Token::new(conn.cluster, row.get(0))),
            label: Some(row.get(3)),
            age: Duration::try_from_secs_f64(row.get(4)).ok(),
            ..QueueEntry::new(row.get(1), key(row))
        };
        Ok(rows.iter().map(entry).collect())
    }
}
