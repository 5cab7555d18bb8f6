//! Connections, requests on a lost connection, and the meaning of PostgreSQL's errors.

use std::borrow::Cow;
use std::collections::HashMap;
use std::error::Error as _;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use std::{io, iter};

use futures_util::StreamExt as _;
use futures_util::future::try_join_all;
use futures_util::stream::FuturesUnordered;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Mutex, OnceCell};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, Error, Row, Socket, Statement};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::options::{PostgresOptions, Tls};
use crate::random::random;
use crate::shared::Shared;
use crate::waiters::Waiters;
use crate::{BackendError, BackendErrorKind, ClusterId, Token};

/// The tables, for a database that has none.
const SCHEMA: &str = include_str!("schema.sql");

/// Identifies the server process and the tables of a connection. Process ids are reused, so the start of the process is part of
/// its name. Version 14 is the first with `idle_session_timeout`, and the first whose `pg_terminate_backend` can wait.
const IDENTIFY: &str = "
    SELECT (
            SELECT concat_ws(' ', pid, EXTRACT(EPOCH FROM backend_start))
            FROM pg_stat_get_activity(pg_backend_pid())
        ),
        current_setting('server_version_num')::integer < 140000,
        pg_is_in_recovery(),
        current_setting('default_transaction_read_only')::boolean,
        (SELECT system_identifier FROM pg_control_system()),
        to_regclass('fenced_lock.names')::oid,
        CASE WHEN NOT pg_is_in_recovery()
            THEN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer END,
        CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
            THEN set_config('synchronous_commit', 'on', false) END,
        CASE WHEN coalesce(current_setting('fenced_lock.connection', true), '') IN ('', $1)
            THEN set_config('fenced_lock.connection', $1, false) <> $1
            ELSE true END,
        current_setting('server_encoding') NOT IN ('UTF8', 'SQL_ASCII')";

/// The columns of [`IDENTIFY`] that rule a server out. The refusal of a standby is transient: it may be promoted, or the address
/// may lead to the primary later.
const REFUSALS: [(usize, BackendErrorKind, &str); 4] = [
    (8, BackendErrorKind::Permanent, SHARED),
    (1, BackendErrorKind::Permanent, "PostgreSQL 14 or later is needed"),
    (2, BackendErrorKind::Transient, "this PostgreSQL is a standby, which grants no locks"),
    (3, BackendErrorKind::Permanent, READ_ONLY),
];
const READ_ONLY: &str = "PostgreSQL accepts no writes: set default_transaction_read_only to off for this user, this \
    database or the server";

pub(super) const SHARED: &str = "the address leads to a pooler that gives one connection of PostgreSQL to several clients, which takes \
    locks and settings away: lead it to PostgreSQL itself, or to a pooler in session mode";

/// Whether the server process has this connection's mark. If it has another mark, a pooler gave the process to two clients
/// without a reset: the second client would have the first one's locks.
pub(super) const IS_OWN: &str =
    "current_setting('fenced_lock.connection', true) IS NOT DISTINCT FROM $1";

/// Sets these settings to these values, if the process has this mark. Returns the values in the server's form. Poolers refuse or
/// drop such settings in a start packet.
const SET: &str = "
    SELECT set_config(name, value, false) FROM unnest($2::text[], $3::text[]) AS s (name, value)
    WHERE current_setting('fenced_lock.connection', true) IS NOT DISTINCT FROM $1";

/// Whether the process has this mark, and these settings have these values.
const IS_SET: &str = "
    SELECT current_setting('fenced_lock.connection', true) IS NOT DISTINCT FROM $1 AND NOT EXISTS (
        SELECT FROM unnest($2::text[], $3::text[]) AS s (name, value)
        WHERE current_setting(name) IS DISTINCT FROM value)";

/// Writes to the server's log, so that this commit syncs the log up to here. A commit that writes nothing syncs nothing.
pub(super) const SYNC: &str = "SELECT pg_logical_emit_message(true, 'fenced_lock', '')";

/// Ends a server process and waits for its end. Returns no row if it had ended before.
const TERMINATE: &str = "
    SELECT pg_terminate_backend(pid, $2) FROM pg_stat_get_activity(split_part($1, ' ', 1)::integer)
    WHERE concat_ws(' ', pid, EXTRACT(EPOCH FROM backend_start)) = $1";

/// Ends the connection's own server process if the process `$1` has ended.
const END_WITHOUT: &str = "
    SELECT pg_terminate_backend(pg_backend_pid()) WHERE NOT EXISTS (
        SELECT FROM pg_stat_get_activity(split_part($1, ' ', 1)::integer)
        WHERE concat_ws(' ', pid, EXTRACT(EPOCH FROM backend_start)) = $1)";

/// The prefix of each lease's channel.
const CHANNEL: &str = "fenced_lock_";

/// The statements that listen to the channels of all open leases, and of no others.
pub(super) fn listen(waiters: &Waiters<Token>) -> String {
    let leases = waiters.leases();
    let channels = leases.keys().map(|lease| format!(";LISTEN {CHANNEL}{lease}"));
    iter::once("UNLISTEN *".to_owned()).chain(channels).collect()
}

/// Handles the message that the queue of this claim, the first in it, has changed. Any user of the database can send a message,
/// so the claim only asks the server again.
fn on_message(waiters: &Waiters<Token>, channel: &str, payload: &str) -> Option<()> {
    let lease = channel.strip_prefix(CHANNEL)?.parse().ok()?;
    let mut words = payload.split(' ');
    let claim = waiters.find(lease, words.next()?.parse().ok()?)?;
    if let (Some(as_of), Some(contended)) = (words.next(), words.next()) {
        waiters.note_contended_as_of(&claim, as_of.parse().ok()?, contended == "t");
    }
    waiters.wake(&claim);
    Some(())
}

/// The parameters of a statement.
pub(super) type Params<'a> = [&'a (dyn ToSql + Sync)];

/// The options and the state that all connections share.
pub(super) struct Access {
    pub(super) options: PostgresOptions,
    pub(super) connector: (Vec<Config>, Tls),
    /// The statements that each connection prepares: parsing and planning a statement costs more than running it.
    pub(super) statements: &'static [&'static str],
    /// How many consecutive attempts to connect took too long.
    late: AtomicU32,
    /// Set after two connections had different server processes.
    is_direct: OnceCell<()>,
}

/// How often the time limit of an attempt to connect is doubled at most: connecting takes several round trips, and a distant
/// server needs more time for them than for one.
const MOST_DOUBLINGS: u32 = 3;

/// A setting of the server and its value.
type Setting = (&'static str, String);

impl Access {
    pub(super) fn new(
        options: PostgresOptions,
        connector: (Vec<Config>, Tls),
        statements: &'static [&'static str],
    ) -> Self {
        let (late, is_direct) = (AtomicU32::default(), OnceCell::new());
        Self { options, connector, statements, late, is_direct }
    }

    /// Connects under `name`, which `pg_stat_activity` shows, with these settings of the server. Messages go to the waiters.
    pub(super) async fn connect(
        &self,
        name: &str,
        mut settings: Vec<Setting>,
        waiters: Option<Arc<Waiters<Token>>>,
    ) -> Result<Connection, BackendError> {
        let (mut hosts, tls) = self.connector.clone();
        for host in &mut hosts {
            host.application_name(name);
        }
        settings.push(("default_transaction_isolation", "read committed".to_owned()));
        let mark = format!("{:016x}", random());
        let connecting = async {
            // half of the time is for reaching the hosts, the other half for the steps that follow
            let share = self.options.request_timeout / 2 / u32::try_from(hosts.len()).unwrap_or(1);
            let mut connected = connect_any(&hosts, &tls, share).await;
            if connected.as_ref().is_err_and(is_read_only) {
                // connect all the same, to ask the server why it is read-only
                for host in &mut hosts {
                    host.target_session_attrs(TargetSessionAttrs::Any);
                }
                connected = connect_any(&hosts, &tls, share).await;
            }
            let (host, (client, connection)) = connected.map_err(connect_failure)?;
            let (ended, ended_by_server) = (CancellationToken::new(), Arc::<AtomicBool>::default());
            let (guard, by_server) = (ended.clone().drop_guard(), Arc::clone(&ended_by_server));
            let driver = AbortOnDropHandle::new(tokio::spawn(async move {
                by_server.store(drive(connection, waiters).await, Ordering::Relaxed);
                drop(guard);
            }));
            let identity = self.identify(&client, &mark).await?;
            self.is_direct.get_or_try_init(|| check_second(host, &tls)).await?;
            set(&client, &mark, &settings).await?;
            let lacks_letters = identity.get(9);
            let (process, cluster) = self.tables(&client, &mark, identity).await?;
            let prepare = async |sql: &&'static str| Ok((*sql, client.prepare(sql).await?));
            let prepared = try_join_all(self.statements.iter().map(prepare)).await;
            Ok(Connection {
                statements: prepared.map_err(failure)?.into_iter().collect(),
                client,
                cluster,
                ended,
                ended_by_server,
                process,
                mark,
                lacks_letters,
                driver: driver.detach(),
                answers: AtomicU64::new(0),
                synced: Shared::new(),
                limit: self.options.request_timeout,
            })
        };
        let doublings = self.late.load(Ordering::Relaxed).min(MOST_DOUBLINGS);
        let limit = self.options.request_timeout.saturating_mul(1 << doublings);
        let limited = timeout(limit, Box::pin(connecting)).await;
        self.late.store(if limited.is_err() { doublings + 1 } else { 0 }, Ordering::Relaxed);
        limited.map_err(BackendError::transient)?
    }

    /// Identifies the server process and the tables, and marks the process.
    async fn identify(&self, client: &Client, mark: &str) -> Result<Row, BackendError> {
        let params: &[(&(dyn ToSql + Sync), Type)] = &[(&mark, Type::TEXT)];
        let row = client.query_typed_one(IDENTIFY, params).await.map_err(failure)?;
        for (column, kind, what) in REFUSALS {
            if row.get(column) {
                return Err(BackendError::new(kind, what));
            }
        }
        Ok(row)
    }

    /// The server process and the cluster of a connection. Makes the tables if they are missing.
    async fn tables(
        &self,
        client: &Client,
        mark: &str,
        mut row: Row,
    ) -> Result<(String, ClusterId), BackendError> {
        if row.get::<_, Option<u32>>(5).is_none() {
            client.batch_execute(SCHEMA).await.map_err(failure)?;
            row = self.identify(client, mark).await?;
        }
        let (system, table): (i64, Option<u32>) = (row.get(4), row.get(5));
        let timeline: Option<i32> = row.get(6);
        let timeline =
            timeline.filter(|_| !self.options.standby_is_synchronous).map_or(0, i32::cast_unsigned);
        let tables = u64::from(timeline) << 32 | u64::from(table.unwrap_or_default());
        Ok((row.get(0), ClusterId(system.cast_unsigned() ^ tables)))
    }
}

/// Connects to one of the hosts: asks the next host when an earlier one has failed or been silent for `share`, and takes the
/// first that connects. If all fail, returns the error of a host that may serve later, if there is one.
#[allow(clippy::clone_on_copy, reason = "without TLS there is nothing to copy")]
async fn connect_any<'a>(
    hosts: &'a [Config],
    tls: &Tls,
    share: Duration,
) -> Result<(&'a Config, Connected), Error> {
    let connect = async |host: &'a Config| Ok((host, host.connect(tls.clone()).await?));
    let (mut left, mut asked, mut failed) = (hosts.iter(), FuturesUnordered::new(), None);
    loop {
        asked.extend(left.next().map(connect));
        tokio::select! {
            biased;
            connected = asked.next() => match (connected, failed.take()) {
                (Some(Err(error)), earlier) => {
                    let is_permanent = connect_kind(&error) == BackendErrorKind::Permanent;
                    failed = Some(earlier.filter(|_| is_permanent).unwrap_or(error));
                }
                // there is at least one host
                (None, Some(error)) => return Err(error),
                (None, None) => {}
                (Some(connected), _) => return connected,
            },
            () = sleep(share), if left.len() > 0 => {}
        }
    }
}

/// Sets these settings, and checks in another transaction that they were kept.
async fn set(client: &Client, mark: &str, settings: &[Setting]) -> Result<(), BackendError> {
    let (names, values): (Vec<_>, Vec<_>) = settings.iter().map(|(n, v)| (*n, v.clone())).unzip();
    let ask = async |sql: &str, values: &Vec<String>| {
        let params: &[(&(dyn ToSql + Sync), Type)] =
            &[(&mark, Type::TEXT), (&names, Type::TEXT_ARRAY), (values, Type::TEXT_ARRAY)];
        client.query_typed(sql, params).await.map_err(failure)
    };
    let values: Vec<String> = ask(SET, &values).await?.iter().map(|row| row.get(0)).collect();
    if values.len() == names.len() && ask(IS_SET, &values).await?.iter().all(|row| row.get(0)) {
        return Ok(());
    }
    Err(BackendError::permanent(SHARED))
}

/// Makes a second connection, and checks that its server process does not have the mark of the first one's. A pooler without
/// other clients gives both connections the same process. A pooler with other clients moves the first connection to another
/// process, as [`set`] notices.
#[allow(clippy::clone_on_copy, reason = "without TLS there is nothing to copy")]
async fn check_second(config: &Config, tls: &Tls) -> Result<(), BackendError> {
    let (client, connection) = config.connect(tls.clone()).await.map_err(connect_failure)?;
    let _driver = AbortOnDropHandle::new(tokio::spawn(drive(connection, None)));
    let is_unmarked = "SELECT coalesce(current_setting('fenced_lock.connection', true), '') = ''";
    let row = client.query_typed_one(is_unmarked, &[]).await.map_err(failure)?;
    if row.get(0) { Ok(()) } else { Err(BackendError::permanent(SHARED)) }
}

/// A new connection: the client, and the part that reads and writes.
type Connected =
    (Client, tokio_postgres::Connection<Socket, <Tls as MakeTlsConnect<Socket>>::Stream>);

/// Reads and writes until the connection ends. Returns whether the server announced the end: the server then carries out no
/// request that it has not answered.
async fn drive<S, T>(
    mut connection: tokio_postgres::Connection<S, T>,
    waiters: Option<Arc<Waiters<Token>>>,
) -> bool
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        match poll_fn(|cx| connection.poll_message(cx)).await {
            Some(Ok(AsyncMessage::Notification(message))) => {
                if let Some(waiters) = &waiters {
                    on_message(waiters, message.channel(), message.payload());
                }
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => return error.code().is_some(),
            None => return false,
        }
    }
}

/// One connection. The server answers its requests in turn.
pub(super) struct Connection {
    pub(super) client: Client,
    statements: HashMap<&'static str, Statement>,
    /// The identity of the tables: another server has another system identifier; other tables, in another database or made anew,
    /// have another object id; a promoted standby has another timeline.
    pub(super) cluster: ClusterId,
    /// Cancelled when the connection has ended.
    pub(super) ended: CancellationToken,
    /// Whether the server announced the end.
    pub(super) ended_by_server: Arc<AtomicBool>,
    process: String,
    /// The mark of its own server process, which no other process has.
    pub(super) mark: String,
    /// Whether the database's encoding may lack letters beyond ASCII.
    lacks_letters: bool,
    driver: JoinHandle<()>,
    answers: AtomicU64,
    /// When the latest answered sync was sent.
    synced: Shared<Instant>,
    pub(super) limit: Duration,
}

impl Connection {
    /// The form of a lock's name that the database can keep: if the encoding may lack a letter, hexadecimal digits behind U+0001,
    /// which no lock's name has.
    pub(super) fn name<'a>(&self, name: &'a str) -> Cow<'a, str> {
        if !self.lacks_letters || name.is_ascii() {
            return name.into();
        }
        iter::once("\u{1}".to_owned())
            .chain(name.bytes().map(|byte| format!("{byte:02x}")))
            .collect()
    }

    /// The form of a label that the database can keep.
    pub(super) fn label(&self, label: &str) -> String {
        label.replace(|c: char| c == '\0' || self.lacks_letters && !c.is_ascii(), "_")
    }

    /// Sends a prepared statement at the first poll.
    pub(super) async fn query(&self, sql: &str, params: &Params<'_>) -> Result<Vec<Row>, Error> {
        self.client.query(&self.statements[sql], params).await
    }

    /// Waits for the answer to a request that goes out at its first poll.
    pub(super) async fn ask<A>(
        &self,
        request: impl Future<Output = Result<A, Error>>,
    ) -> Result<A, BackendError> {
        self.ask_within(self.limit, request).await
    }

    /// As [`ask`](Self::ask), with this limit. Gives the connection up if the server answers no request at all within the limit.
    pub(super) async fn ask_within<A>(
        &self,
        limit: Duration,
        request: impl Future<Output = Result<A, Error>>,
    ) -> Result<A, BackendError> {
        let mut request = pin!(request);
        loop {
            let answers = self.answers.load(Ordering::Relaxed);
            match timeout(limit, &mut request).await {
                Ok(answer) => {
                    self.answers.fetch_add(1, Ordering::Relaxed);
                    return answer.map_err(|error| {
                        // the server became read-only, or another server or process replaced it: the next connection finds out
                        // which
                        if [
                            Some(&SqlState::READ_ONLY_SQL_TRANSACTION),
                            Some(&SqlState::INVALID_SQL_STATEMENT_NAME),
                        ]
                        .contains(&error.code())
                        {
                            self.give_up();
                        }
                        failure(error)
                    });
                }
                // the server answered other requests meanwhile
                Err(_) if self.answers.load(Ordering::Relaxed) != answers => {}
                Err(_) => {
                    self.give_up();
                    let what = format!("PostgreSQL did not answer within {limit:?}");
                    return Err(BackendError::transient(what));
                }
            }
        }
    }

    /// Waits for `what` at most as long as for a request. Keeps the connection when the time is over.
    pub(super) async fn in_time<A>(
        &self,
        what: impl Future<Output = A>,
    ) -> Result<A, BackendError> {
        timeout(self.limit, what).await.map_err(BackendError::transient)
    }

    /// Makes everything durable that was sent before the first poll. One sync serves all callers that came while another one was
    /// under way.
    ///
    /// # Errors
    /// [`BackendErrorKind::Transient`], also for a refusal: the requests before the sync may be done.
    pub(super) async fn sync(&self) -> Result<(), BackendError> {
        let asked_at = Instant::now();
        let sync = async {
            let sent_at = Instant::now();
            self.ask(self.query(SYNC, &[])).await.map(|_| sent_at)
        };
        let synced = self.synced.get(|sent_at| *sent_at > asked_at, sync).await;
        synced.map(drop).map_err(BackendError::transient)
    }

    /// Ends the connection at once, with all requests under way.
    pub(super) fn give_up(&self) {
        self.driver.abort();
        self.ended.cancel();
    }

    /// Asks for a sign of life. Gives the connection up if a pooler has replaced its server process.
    pub(super) async fn is_alive(&self) -> Result<bool, Error> {
        let is_own = format!("SELECT {IS_OWN}");
        let row = self.client.query_typed_one(&is_own, &[(&self.mark, Type::TEXT)]).await?;
        let is_own: bool = row.get(0);
        if !is_own {
            self.give_up();
        }
        Ok(is_own)
    }

    /// Sends a request by which the server ends this connection if the other one has ended by then.
    pub(super) async fn end_without(&self, other: &Self) -> Result<(), Error> {
        self.client.query_typed_opt(END_WITHOUT, &[(&other.process, Type::TEXT)]).await.map(drop)
    }

    /// Ends the server process of another connection, so that the server carries out no earlier request of it later. Returns
    /// whether the process was still there.
    pub(super) async fn terminate(&self, other: &Self) -> Result<bool, BackendError> {
        other.give_up();
        let patience = i64::try_from(self.limit.as_millis() / 2).unwrap_or(i64::MAX);
        let params: &[(&(dyn ToSql + Sync), Type)] =
            &[(&other.process, Type::TEXT), (&patience, Type::INT8)];
        match self.ask(self.client.query_typed_opt(TERMINATE, params)).await? {
            Some(row) if !row.get::<_, bool>(0) => {
                let what = "an earlier connection does not end";
                Err(BackendError::transient(what))
            }
            row => Ok(row.is_some()),
        }
    }
}

/// A connection that is replaced after it was lost.
pub(super) struct Link {
    access: Arc<Access>,
    name: String,
    waiters: Option<Arc<Waiters<Token>>>,
    current: Shared<Arc<Connection>>,
    /// The latest connection, also after its end.
    latest: Mutex<Option<Arc<Connection>>>,
}

impl Link {
    /// Sends nothing yet. With waiters, the connection listens for the messages to its leases.
    pub(super) fn new(
        access: &Arc<Access>,
        name: &str,
        waiters: Option<Arc<Waiters<Token>>>,
    ) -> Self {
        let (access, name) = (Arc::clone(access), name.to_owned());
        Self { access, name, waiters, current: Shared::new(), latest: Mutex::default() }
    }

    /// The present connection, or a new one.
    pub(super) async fn connection(&self) -> Result<Arc<Connection>, BackendError> {
        self.current.get(|conn| !conn.ended.is_cancelled(), self.connect()).await
    }

    /// The present identity of the tables. Makes the tables if they are missing.
    pub(super) async fn identify(&self) -> Result<ClusterId, BackendError> {
        let conn = self.connection().await?;
        let identify = async {
            let identity = self.access.identify(&conn.client, &conn.mark).await?;
            self.access.tables(&conn.client, &conn.mark, identity).await
        };
        Ok(conn.in_time(identify).await??.1)
    }

    /// Gives up a connection that was made to other tables than these.
    pub(super) async fn give_up_unless(&self, cluster: ClusterId) {
        if let Some(conn) = self.latest.lock().await.as_ref().filter(|conn| conn.cluster != cluster)
        {
            conn.give_up();
        }
    }

    async fn connect(&self) -> Result<Arc<Connection>, BackendError> {
        // a statement that waits for another one times out before its request does, so the request gets an answer
        let limit_ms = (self.access.options.request_timeout / 2).as_millis().max(1);
        // a prepared plan must still be good when a small table has grown
        let settings = vec![
            ("statement_timeout", limit_ms.to_string()),
            ("enable_seqscan", "off".to_owned()),
            ("jit", "off".to_owned()),
        ];
        let conn = self.access.connect(&self.name, settings, self.waiters.clone()).await?;
        let mut latest = self.latest.lock().await;
        if let Some(lost) = &*latest {
            conn.terminate(lost).await?;
        }
        if let Some(waiters) = &self.waiters {
            conn.ask(conn.client.batch_execute(&listen(waiters))).await?;
            waiters.missed_messages();
            // when the connection ends, waiters ask again, which connects anew
            let (ended, waiters) = (conn.ended.clone(), Arc::clone(waiters));
            tokio::spawn(async move {
                ended.cancelled().await;
                waiters.missed_messages();
            });
        }
        Ok(Arc::clone(latest.insert(Arc::new(conn))))
    }
}

/// An error of a request that was sent.
pub(super) fn failure(error: Error) -> BackendError {
    BackendError::new(kind_of(&error).unwrap_or(BackendErrorKind::Transient), error)
}

/// An error while connecting.
fn connect_failure(error: Error) -> BackendError {
    BackendError::new(connect_kind(&error), error)
}

/// The meaning of an error while connecting. If neither the network nor the server made the error, it means another kind of
/// server or wrong settings.
fn connect_kind(error: &Error) -> BackendErrorKind {
    match kind_of(error) {
        // a pooler's refusal, for example of a setting that it does not know
        Some(BackendErrorKind::Transient)
            if error.code() == Some(&SqlState::PROTOCOL_VIOLATION) =>
        {
            BackendErrorKind::Permanent
        }
        kind => kind.unwrap_or(BackendErrorKind::Permanent),
    }
}

/// Whether the client library found, while connecting, that the server accepts no writes.
fn is_read_only(error: &Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
    cause.is_some_and(|cause| cause.to_string() == "database does not allow writes")
}

fn kind_of(error: &Error) -> Option<BackendErrorKind> {
    let Some(state) = error.code() else {
        let network = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
        return match network.map(io::Error::kind) {
            // an answer of another kind of server, an untrusted certificate, a malformed name
            Some(io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput) => {
                Some(BackendErrorKind::Permanent)
            }
            Some(_) => Some(BackendErrorKind::Transient),
            None => error.is_closed().then_some(BackendErrorKind::Transient),
        };
    };
    let says = error.as_db_error().map(DbError::message).unwrap_or_default();
    if *state == SqlState::PROTOCOL_VIOLATION && PASSING.iter().any(|cause| says.contains(cause)) {
        return Some(BackendErrorKind::Refused);
    }
    let code = state.code();
    Some(match code {
        // the claim's lease is gone
        "23503" => BackendErrorKind::LeaseGone,
        // out of memory, disk or connections
        _ if code.starts_with("53") => BackendErrorKind::Refused,
        _ if PERMANENT.iter().any(|begin| code.starts_with(begin)) => BackendErrorKind::Permanent,
        _ => BackendErrorKind::Transient,
    })
}

/// The beginnings of the codes of errors that waiting does not mend. All codes that [`kind_of`] does not know mean a state that
/// passes: the server starts, stops or became a standby; a statement took too long or conflicted with another one; or a pooler
/// lost its connection to the server during a request, which may be done (pgbouncer#714).
///
/// - `0A`: the server cannot do this;
/// - `0L`, `0P`: a role that may not be taken;
/// - `22`: a value that is not allowed, or that the database's encoding lacks;
/// - `23`, `44`: a rule on a table;
/// - `28`: wrong credentials;
/// - `3D`, `3F`, `55000`: the database or the schema is missing, or the database accepts no connections;
/// - `42`: a right or a table is missing, or the table is another one;
/// - `54`: beyond a limit of the server;
/// - `F0`: broken settings of the server;
/// - `P0`: a trigger's refusal.
///
/// The codes: <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
const PERMANENT: [&str; 14] =
    ["0A", "0L", "0P", "22", "23", "44", "28", "3D", "3F", "55000", "42", "54", "F0", "P0"];

/// Words in `PgBouncer`'s errors that have the code of a protocol violation but pass: `PgBouncer` is full, or PostgreSQL is away.
const PASSING: [&str; 4] =
    ["max_client_conn", "server_login_retry", "query_wait_timeout", "client_login_timeout"];
