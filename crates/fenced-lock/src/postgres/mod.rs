//! PostgreSQL as a lock service: a queue in a table.
//!
//! A claim is a row of `fenced_lock.claims` with a ticket, and the lowest ticket on a name holds the lock. The
//! tickets of a name come from its row in `fenced_lock.names`, which each claim counts up and keeps locked until it
//! commits. (A sequence gives numbers in the order in which it is asked, not that of the commits: a claim with a lower
//! ticket could appear before a holder.) So whoever sees a claim sees all that were before it, and a claim
//! that is once first stays first until it goes. Nothing else is locked for longer than a statement, and no
//! transaction spans two of them.
//!
//! A claim refers to its session's row in `fenced_lock.leases`, and goes with it. Waiters delete the leases that have
//! expired by the server's clock. Until then an expired lease counts and can be renewed, so a clock that is set back
//! gives nobody a lock that is held.
//!
//! A waiter is told by `NOTIFY` when it is first; the channel is its lease's. Messages can get lost with a
//! connection, so it asks as well when a lease before it could expire.
//!
//! What it costs: an uncontended lock takes one round trip and one commit, a release the same, and a hand-over one
//! for both. A process has a connection for messages and renewals, so that no slow claim delays these, and up to eight for
//! requests, each for a part of the names. Tickets are as durable as commits are: with
//! `fsync` and, where a standby can take over, synchronous replication. After a failover to a standby that lags, a ticket may
//! come again, under another [`ClusterId`].
//!
//! It makes these tables, if they are missing and it may:
//!
//! ```sql
#![doc = include_str!("schema.sql")]
//! ```

mod advisory;
mod failure;
mod link;
mod options;

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use futures_util::future::{join, try_join};
use tokio::runtime::Handle;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, Row};

pub use self::advisory::PostgresAdvisoryBackend;
pub use self::options::PostgresOptions;

use self::failure::{failure, is_final};
use self::link::{Access, Link, Wire, listen};
use super::asked::{Asked, AskedBackend, Driver};
use super::waiters::{Answer, Waiters};
use super::{
    BackendError, BackendErrorKind, Claim, ClaimStatus, Clock, ClusterId, Ends, Lease, Loss, Order,
    Promises, PutMode, QueueEntry, QueueView, Released, Token, TokenLife, Wake,
};

/// Puts a claim at the end of its queue, once, if this condition gives a row.
fn put_if(condition: &str) -> String {
    format!(
        "WITH condition AS ({condition}), ticket AS (
            INSERT INTO fenced_lock.names AS n SELECT $1, 1 FROM condition
            ON CONFLICT (name) DO UPDATE SET last = n.last + 1 RETURNING last
        )
        INSERT INTO fenced_lock.claims (name, ticket, lease, number, label)
        SELECT $1, last, $2, $3, $4 FROM ticket
        ON CONFLICT (lease, number) DO NOTHING"
    )
}

const ALWAYS: &str = "SELECT 1";
const FREE: &str = "SELECT 1 WHERE NOT EXISTS (SELECT FROM fenced_lock.claims WHERE name = $1)";
const RELEASED: &str =
    "DELETE FROM fenced_lock.claims WHERE lease = $2 AND number = $5 RETURNING 1";

const RELEASE: &str = "DELETE FROM fenced_lock.claims WHERE lease = $1 AND number = $2";

/// Where a claim stands: how many are before it, when the first of their leases can expire, whether one is behind
/// it, and the last ticket of its name as of which this is so.
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

/// Tells the first claim on each name, except one, that its queue has changed: its number, and what [`STANDING`] says
/// of those behind it.
const TELL_FIRST: &str = "
    SELECT pg_notify('fenced_lock_' || c.lease, concat_ws(' ', c.number, n.last, EXISTS (
        SELECT FROM fenced_lock.claims a WHERE a.name = c.name AND a.ticket > c.ticket
    )))
    FROM fenced_lock.names n, LATERAL (
        SELECT * FROM fenced_lock.claims WHERE name = n.name ORDER BY ticket LIMIT 1
    ) c
    WHERE n.name = ANY ($1) AND (c.lease, c.number) <> ($2, $3)";

const OPEN: &str = "
    INSERT INTO fenced_lock.leases VALUES ($1, clock_timestamp() + $2 * interval '1 second')";
const RENEW: &str = "
    UPDATE fenced_lock.leases SET expires_at = clock_timestamp() + $2 * interval '1 second'
    WHERE id = $1";

/// The claims on a lease, and whether others are behind them.
const HELD: &str = "
    SELECT c.number, n.last, EXISTS (
        SELECT FROM fenced_lock.claims a WHERE a.name = c.name AND a.ticket > c.ticket
    )
    FROM fenced_lock.claims c JOIN fenced_lock.names n ON n.name = c.name WHERE c.lease = $1";

/// The claims on a lease go with it.
const CLOSE: &str = "DELETE FROM fenced_lock.leases WHERE id = $1";

/// Ends the leases that have expired, and returns the names on which they had claims. A lease that another client renews or
/// ends just now is left to that client.
const REAP: &str = "
    WITH dead AS (
        DELETE FROM fenced_lock.leases WHERE id IN (
            SELECT id FROM fenced_lock.leases WHERE expires_at <= clock_timestamp() FOR UPDATE SKIP LOCKED
        ) RETURNING id
    )
    SELECT DISTINCT name FROM fenced_lock.claims WHERE lease IN (SELECT id FROM dead)";

const QUEUE: &str = "
    SELECT ticket, lease, number, label, EXTRACT(EPOCH FROM clock_timestamp() - made_at)::float8
    FROM fenced_lock.claims WHERE name = $1 ORDER BY ticket";

/// How soon a waiter asks again at the earliest: a lease that has expired is deleted by one of those who wait.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);

/// How many connections the requests for the queues are spread over. Each commits one request after the other, and the
/// server syncs its log once for commits that come together: eight serve fifty names as fast as several processes do.
const CONNECTIONS: usize = 8;

type Params<'a> = [(&'a (dyn ToSql + Sync), Type)];

/// PostgreSQL as a lock service, with a queue in a table. It may serve several sessions, which then share a thread and two
/// connections, or up to nine with many names.
///
/// The server keeps the queues when it is stopped or crashes; a session lives on if it is back within the TTL.
/// Leases are measured by its wall clock: one that is set forward ends them early. Locks of one name
/// are the same lock only in one database.
///
/// ```no_run
/// use std::sync::Arc;
/// use std::time::Duration;
/// use fenced_lock::{PostgresBackend, PostgresOptions, Session, SessionOptions};
///
/// # async fn example() -> Result<(), fenced_lock::LockError> {
/// let options = PostgresOptions::new("postgres://app:secret@127.0.0.1/sale");
/// let postgres = Arc::new(PostgresBackend::new(&options)?);
/// let session = Session::open(postgres, SessionOptions::new(Duration::from_secs(30))).await?;
/// let guard = session.mutex("stock-lock")?.lock().await?;
/// println!("held under token {}", guard.token());
/// guard.unlock().await?;
/// session.close().await
/// # }
/// ```
#[derive(Debug)]
pub struct PostgresBackend(Driver<Postgres>);

impl PostgresBackend {
    /// A backend for these options. Nothing is sent before a session is opened, so a server that is not
    /// there yet is no error.
    ///
    /// # Errors
    /// [`BackendErrorKind::Permanent`] if the address or a certificate cannot be read, or the thread cannot be
    /// started.
    pub fn new(options: &PostgresOptions) -> Result<Self, BackendError> {
        let connector = options.connector()?;
        let make = |runtime: &Handle, _: &Weak<Postgres>| {
            let (options, runtime, table) =
                (options.clone(), runtime.clone(), "fenced_lock.claims");
            let access = Arc::new(Access { options, connector, table, runtime });
            let waiters = Arc::new(Waiters::default());
            let requests = [(); CONNECTIONS].map(|()| Link::new(&access, "fenced-lock", None));
            let events = Link::new(&access, "fenced-lock events", Some(Arc::clone(&waiters)));
            Postgres { waiters, requests, events: Arc::new(events), listening: OnceLock::new() }
        };
        Ok(Self(Driver::start("postgres-lock", make)?))
    }
}

impl AskedBackend for PostgresBackend {
    type Service = Postgres;

    fn driver(&self) -> &Driver<Postgres> {
        &self.0
    }
}

/// The queues in a table.
pub struct Postgres {
    waiters: Arc<Waiters<Token>>,
    /// For the queues, each on one of them.
    requests: [Link; CONNECTIONS],
    /// For messages and renewals: what holds up a queue holds up none of these.
    events: Arc<Link>,
    /// Set when it listens.
    listening: OnceLock<()>,
}

impl Postgres {
    /// The connection for the queue of this name. What is sent for a claim goes through one, in its order.
    async fn wire(&self, name: &str) -> Result<Arc<Wire>, BackendError> {
        let hash = |hash: usize, byte| hash.wrapping_mul(31).wrapping_add(usize::from(byte));
        self.requests[name.bytes().fold(0, hash) % CONNECTIONS].wire().await
    }

    /// Sends a request. Before that, deletes the leases that have expired, and tells those who come first now.
    async fn reap_and_ask<A>(
        &self,
        wire: &Wire,
        request: impl Future<Output = Result<A, Error>>,
    ) -> Result<A, BackendError> {
        let reap = wire.client.query_typed(REAP, &[]);
        let (rows, answer) = wire.ask(try_join(reap, request)).await?;
        let names: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
        wire.ask(tell_first(wire, &names, None)).await?;
        Ok(answer)
    }

    /// What the answer to [`STANDING`] says. Notes whether others wait.
    fn answer(&self, wire: &Wire, claim: &Claim, rows: &[Row]) -> Answer<Token> {
        let (status, ask_again_in) = match rows.first() {
            None => (ClaimStatus::Gone, Duration::ZERO),
            Some(row) if row.get::<_, i64>(1) == 0 => {
                self.waiters.note_contended_as_of(claim, row.get(3), row.get(4));
                (ClaimStatus::Granted(Token::new(wire.cluster, row.get(0))), Duration::ZERO)
            }
            Some(row) => {
                // without a lease before it there is nothing to wait for
                let expires_in = row.get::<_, Option<f64>>(2).unwrap_or_default();
                let expires_in = Duration::try_from_secs_f64(expires_in).unwrap_or_default();
                (ClaimStatus::Waiting, expires_in.max(SHORTEST_PAUSE))
            }
        };
        Answer { status, ask_again_in }
    }
}

/// Asks where a claim stands.
async fn standing(wire: &Wire, claim: &Claim) -> Result<Vec<Row>, Error> {
    let number = claim.number.cast_signed();
    let params: &Params<'_> = &[(&claim.lease, Type::INT8), (&number, Type::INT8)];
    wire.client.query_typed(STANDING, params).await
}

/// Tells the first claims on these names, but for this one, that their queues have changed. A message that is refused for
/// good is one that got lost: whoever waits for it asks.
async fn tell_first(wire: &Wire, names: &[&str], but: Option<&Claim>) -> Result<(), Error> {
    if names.is_empty() {
        return Ok(());
    }
    let (lease, number) = but.map_or((0, 0), |claim| (claim.lease, claim.number.cast_signed()));
    let params: &Params<'_> =
        &[(&names, Type::TEXT_ARRAY), (&lease, Type::INT8), (&number, Type::INT8)];
    match wire.client.execute_typed(TELL_FIRST, params).await {
        Err(error) if is_final(&error) => {
            tracing::debug!(?error, "a message to those who wait was refused");
            Ok(())
        }
        told => told.map(drop),
    }
}

impl Asked for Postgres {
    type Token = Token;

    const PROMISES: Promises = Promises {
        order: Order::Fifo,
        wake: Wake::Pushed,
        token: TokenLife::Durable,
        ends: Ends::Lease(Clock::Wall),
        loss: Loss::AtRenewal,
        queue: QueueView::Whole,
    };

    fn waiters(&self) -> &Waiters<Token> {
        &self.waiters
    }

    async fn open(&self, id: i64, ttl: Duration) -> Result<ClusterId, BackendError> {
        self.listening.get_or_init(|| Arc::clone(&self.events).keep_connected());
        let wire = self.wire("").await?;
        let params: &Params<'_> = &[(&id, Type::INT8), (&ttl.as_secs_f64(), Type::FLOAT8)];
        self.reap_and_ask(&wire, wire.client.execute_typed(OPEN, params)).await?;
        let events = self.events.wire().await?;
        events.ask(events.client.batch_execute(&listen(&self.waiters))).await?;
        Ok(wire.cluster)
    }

    async fn renew(&self, lease: Lease, held: &[Claim]) -> Result<Vec<bool>, BackendError> {
        let wire = self.events.wire().await?;
        let params: &Params<'_> =
            &[(&lease.id, Type::INT8), (&lease.ttl.as_secs_f64(), Type::FLOAT8)];
        let requests = try_join(
            wire.client.execute_typed(RENEW, params),
            wire.client.query_typed(HELD, &params[..1]),
        );
        // short, so that there is time to connect anew
        let limit = (lease.ttl / 8).min(wire.limit);
        let (renewed, rows) = wire.ask_within(limit, requests).await?;
        if renewed == 0 {
            let gone = "the lease has expired or was deleted";
            return Err(BackendError::new(BackendErrorKind::LeaseGone, gone));
        }
        let is_kept = |claim: &Claim| {
            let row = rows.iter().find(|row| row.get::<_, i64>(0) == claim.number.cast_signed());
            if let Some(row) = row {
                self.waiters.note_contended_as_of(claim, row.get(1), row.get(2));
            }
            row.is_some()
        };
        Ok(held.iter().map(is_kept).collect())
    }

    async fn close(&self, lease: Lease, claims: Vec<Claim>) -> Result<(), BackendError> {
        let wire = self.wire("").await?;
        let names: Vec<&str> = claims.iter().map(|claim| &*claim.name).collect();
        let params: &Params<'_> = &[(&lease.id, Type::INT8)];
        let close = wire.client.execute_typed(CLOSE, params);
        wire.ask(try_join(close, tell_first(&wire, &names, None))).await.map(drop)
    }

    /// Where the claim stands after this. What it takes out of the queue, it tells the next of.
    async fn put(
        &self,
        claim: &Claim,
        mode: PutMode<'_>,
    ) -> Result<Option<Answer<Token>>, BackendError> {
        let wire = self.wire(&claim.name).await?;
        let (condition, held) = match mode {
            PutMode::AtEnd => (ALWAYS, None),
            PutMode::IfEmpty => (FREE, None),
            PutMode::After(held) => (RELEASED, Some(held.number.cast_signed())),
        };
        let sql = put_if(condition);
        let is_try = matches!(mode, PutMode::IfEmpty);
        // what the server cannot keep is shown as with advisory locks
        let label = claim.label.replace('\0', "_");
        let (name, number) = (&*claim.name, claim.number.cast_signed());
        let params: &Params<'_> = &[
            (&name, Type::TEXT),
            (&claim.lease, Type::INT8),
            (&number, Type::INT8),
            (&label, Type::TEXT),
            (&held, Type::INT8),
        ];
        let params = if held.is_some() { params } else { &params[..4] };
        let next = if held.is_some() { &[name][..] } else { &[] };
        let requests = async {
            let put = wire.client.execute_typed(&sql, params);
            let told = tell_first(&wire, next, Some(claim));
            let (put, standing) = join(put, try_join(told, standing(&wire, claim))).await;
            put.map(|_| standing)
        };
        // whatever fails beside the put, the claim may be there
        let left = |error: BackendError| BackendError::new(BackendErrorKind::Transient, error);
        let asked = if is_try {
            let answered = async { Ok(requests.await) };
            Box::pin(self.reap_and_ask(&wire, answered)).await.map_err(left)?.map_err(failure)?
        } else {
            wire.ask(requests).await?
        };
        let ((), rows) = asked.map_err(|error| left(failure(error)))?;
        let answer = self.answer(&wire, claim, &rows);
        if is_try && answer.status == ClaimStatus::Waiting {
            // another one came at the same moment
            self.release(claim).await.map_err(left)?;
            return Ok(None);
        }
        // the holder hears of the first who waits behind it
        let is_second = rows.first().is_some_and(|row| row.get::<_, i64>(1) == 1);
        if is_second && held.is_none() {
            wire.ask(tell_first(&wire, &[name], Some(claim))).await.map_err(left)?;
        }
        Ok(Some(answer))
    }

    async fn ask(&self, claim: &Claim) -> Result<Answer<Token>, BackendError> {
        let wire = self.wire(&claim.name).await?;
        let rows = self.reap_and_ask(&wire, standing(&wire, claim)).await?;
        Ok(self.answer(&wire, claim, &rows))
    }

    async fn release(&self, claim: &Claim) -> Result<Released, BackendError> {
        let wire = self.wire(&claim.name).await?;
        let (number, names) = (claim.number.cast_signed(), [&*claim.name]);
        let params: &Params<'_> = &[(&claim.lease, Type::INT8), (&number, Type::INT8)];
        // in two statements: the second one sees who came to wait before the first one was committed
        let release = wire.client.execute_typed(RELEASE, params);
        let told = tell_first(&wire, &names, Some(claim));
        let (deleted, ()) = wire.ask(try_join(release, told)).await?;
        Ok(if deleted == 0 { Released::Gone } else { Released::Done })
    }

    async fn queue(&self, name: &str, _most: u32) -> Result<Vec<QueueEntry>, BackendError> {
        let wire = self.wire(name).await?;
        let params: &Params<'_> = &[(&name, Type::TEXT)];
        let queue = wire.client.query_typed(QUEUE, params);
        let rows = self.reap_and_ask(&wire, queue).await?;
        let entry = |row: &Row| QueueEntry {
            token: Some(Token::new(wire.cluster, row.get(0))),
            lease: row.get(1),
            key: format!("{name}/{:x}-{}", row.get::<_, i64>(1), row.get::<_, i64>(2)),
            label: Some(row.get(3)),
            age: Duration::try_from_secs_f64(row.get(4)).ok(),
        };
        Ok(rows.iter().map(entry).collect())
    }
}
