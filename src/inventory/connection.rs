//! One connection to Redis that reconnects by itself.
//!
//! The `ConnectionManager` of the Redis client does not fit, for two reasons. It does not distinguish a command
//! that was never sent from one without an answer, which for an order is the difference between "not sold" and
//! "unknown". And it returns the failure of one attempt to later callers, for ever if the failure was not one
//! of I/O, such as too many clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, FromRedisValue, InfoDict, PushInfo, PushKind,
    RedisResult, ServerErrorKind, Value,
};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use super::access::TargetKind;
use super::error::Effect;
use super::sentinel::Watched;
use super::{InventoryError, RedisAccess, sentinel};
use crate::backoff::Backoff;

/// After a connection that lived this long, the next attempt counts as a first one.
const GOOD_AFTER: Duration = Duration::from_secs(1);

/// The answer to a command, and to the second one if there was one.
pub(super) type Answers = (Value, Option<RedisResult<Value>>);

/// How long to wait for the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InventoryOptions {
    /// How long one attempt to connect may take. The handshake has the time of one answer more.
    pub connect_timeout: Duration,
    /// How long the answer to one command may take. It should exceed the stalls of a disk that syncs each
    /// write: giving up early turns a slow answer into an unknown one.
    pub response_timeout: Duration,
}

impl InventoryOptions {
    /// The same options with more time for answers.
    pub(super) fn with_longer_timeout(self, longer: Duration) -> Self {
        Self { response_timeout: self.response_timeout + longer, ..self }
    }
}

impl Default for InventoryOptions {
    /// One second to connect, two to answer.
    fn default() -> Self {
        Self { connect_timeout: Duration::from_secs(1), response_timeout: Duration::from_secs(2) }
    }
}

/// One multiplexed connection, opened when needed. Clones share it.
///
/// A call makes at most one attempt to connect and sends each command at most once. Attempts in a row
/// have a pause between them; calls wait for it, since it is short.
#[derive(Clone)]
pub(super) struct Connection {
    server: Arc<Server>,
    options: InventoryOptions,
    /// The attempt under way, or its connection. Callers share one attempt, so none waits longer than one
    /// attempt takes.
    slot: Arc<Mutex<Slot>>,
}

/// Where a connection leads.
struct Server {
    access: RedisAccess,
    /// The address as first read, without the password.
    address: String,
    /// Whether it is that of a node of a cluster.
    is_node: bool,
    /// The run id of the process that answered last, by its own account; each start has another one.
    run_id: Mutex<Option<String>>,
    /// The open connections, if sentinels named their server.
    watched: Arc<Watched>,
}

impl Server {
    /// Asks the server of a new connection for its process and role. Another process is logged; whether it has all
    /// acknowledged data is checked by each call.
    ///
    /// # Errors
    /// No answer; the server is a replica, which takes no orders and may have old data; or it is a node of a
    /// Redis Cluster, where other nodes have other items, and the address is not that of the cluster. A server that
    /// hides its role is accepted.
    async fn identify(&self, connection: &mut MultiplexedConnection) -> RedisResult<()> {
        let info: InfoDict = match redis::cmd("INFO").query_async(connection).await {
            Ok(info) => info,
            Err(error) if error.is_io_error() => return Err(error),
            Err(_) => return Ok(()),
        };
        let field = |name| info.get::<String>(name);
        let (Some(run_id), Some(role)) = (field("run_id"), field("role")) else { return Ok(()) };
        // the second name is Valkey's
        let mode = field("redis_mode").or_else(|| field("server_mode"));
        if mode.is_some_and(|mode| mode == "cluster") && !self.is_node {
            let kind = ErrorKind::InvalidClientConfig;
            let what =
                "this Redis is a node of a Redis Cluster: write redis-cluster:// for all of it";
            return Err((kind, what).into());
        }
        let before = self.run_id.lock().replace(run_id.clone());
        if let Some(before) = before.filter(|before| *before != run_id) {
            let what = "another Redis process answers: after a restart or a failover";
            tracing::warn!(before, now = run_id, "{what}");
        }
        if role == "slave" {
            let kind = ErrorKind::Server(ServerErrorKind::ReadOnly);
            return Err((kind, "this Redis is a replica, which takes no orders").into());
        }
        Ok(())
    }
}

#[derive(Default)]
struct Slot {
    attempt: Option<Attempt>,
    pauses: Pauses,
}

/// The pauses between attempts in a row.
#[derive(Default)]
pub(super) struct Pauses {
    /// When the latest attempt was begun.
    begun_at: Option<Instant>,
    /// For attempts that failed, or led to a connection that soon broke.
    backoff: Backoff,
}

impl Pauses {
    /// When the next attempt may begin.
    pub(super) fn begin(&mut self, now: Instant) -> Instant {
        let begins_at = match self.begun_at {
            Some(begun_at) if now < begun_at + GOOD_AFTER => {
                now.max(begun_at + self.backoff.next())
            }
            _ => {
                self.backoff = Backoff::default();
                now
            }
        };
        self.begun_at = Some(begins_at);
        begins_at
    }
}

#[derive(Clone)]
struct Attempt {
    connection: SharedResult<MultiplexedConnection>,
    /// Set when the attempt fails or its connection breaks, also between commands: the next caller begins another one.
    broken: Arc<AtomicBool>,
}

/// A result that all callers share.
pub(super) type SharedResult<T> = Shared<BoxFuture<'static, RedisResult<T>>>;

/// Begins `work` at this time, in a task of its own: it goes on for other callers when the first one gives up.
pub(super) fn shared_task<T: Clone + Send + 'static>(
    begins_at: Instant,
    work: impl Future<Output = RedisResult<T>> + Send + 'static,
) -> (AbortHandle, SharedResult<T>) {
    let task = tokio::spawn(async move {
        sleep_until(begins_at).await;
        work.await
    });
    let handle = task.abort_handle();
    let result = task.map(|joined| {
        joined.unwrap_or_else(|_| Err(std::io::Error::other("the runtime stops").into()))
    });
    (handle, result.boxed().shared())
}

impl Connection {
    /// To the server of the address, or to the node of its cluster at this one. Connects nothing yet.
    pub(super) fn new(
        access: RedisAccess,
        address: String,
        is_node: bool,
        options: InventoryOptions,
    ) -> Self {
        let (run_id, watched) = (Mutex::default(), Arc::default());
        let server = Server { access, address, is_node, run_id, watched };
        Self { server: Arc::new(server), options, slot: Arc::default() }
    }

    /// Another connection to the same server, which waits longer for answers.
    pub(super) fn with_longer_timeout(&self, longer: Duration) -> Self {
        Self {
            options: self.options.with_longer_timeout(longer),
            slot: Arc::default(),
            ..self.clone()
        }
    }

    /// Sends one command and waits for its answer.
    ///
    /// # Cancel safety
    /// A dropped call may have been sent.
    pub(super) async fn query<T: FromRedisValue>(
        &self,
        command: &Cmd,
        effect: Effect,
    ) -> Result<T, InventoryError> {
        let answer = self.send(command, None, false).await?;
        let (answer, _) = answer.map_err(|error| effect.failed(error))?;
        redis::from_redis_value(answer).map_err(|error| effect.failed(error.into()))
    }

    /// Sends a command, and `then` another one in the same round trip. `asks`: with the command `ASKING` before
    /// them, by which a node of a cluster serves a slot that is on its way to it.
    ///
    /// The outer error means that nothing was sent. The inner result is that of the command.
    pub(super) async fn send(
        &self,
        command: &Cmd,
        then: Option<&Cmd>,
        asks: bool,
    ) -> Result<RedisResult<Answers>, InventoryError> {
        let (attempt, mut connection) = self.ready().await?;
        if then.is_none() && !asks {
            let answer = command.query_async(&mut connection).await.map(|answer| (answer, None));
            self.note(&attempt, &answer);
            return Ok(answer);
        }
        let mut all = redis::pipe();
        if asks {
            all.add_command(redis::cmd("ASKING"));
        }
        all.add_command(command.clone());
        if let Some(then) = then {
            all.add_command(then.clone());
        }
        // the answer to ASKING is left out: its error is also that of the command behind it
        let before = usize::from(asks);
        let answers = connection.send_packed_commands(&all, before, all.len() - before).await;
        let answer = answers.and_then(|answers| {
            let mut answers = answers.into_iter().map(Value::extract_error);
            let missing = || (ErrorKind::UnexpectedReturnType, "an answer is missing").into();
            let first = answers.next().unwrap_or_else(|| Err(missing()))?;
            Ok((first, then.map(|_| answers.next().unwrap_or_else(|| Err(missing())))))
        });
        self.note(&attempt, &answer);
        Ok(answer)
    }

    /// Drops the connection after an error that makes it useless.
    fn note(&self, attempt: &Attempt, answer: &RedisResult<Answers>) {
        let Err(error) = answer else { return };
        // also after a timeout, since the server may be gone without closing the connection; and when it
        // became a replica, since the address may lead to the new primary by now
        let is_replica = error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly);
        // a store that was rolled back may be the wrong server, too: reconnect once in a while, but not for
        // each order, since other items may be whole
        let may_be_other = error.code() == Some("ROLLEDBACK") && self.is_old();
        if error.is_io_error() || error.is_unrecoverable_error() || is_replica || may_be_other {
            attempt.broken.store(true, Ordering::Release);
        }
    }

    async fn ready(&self) -> Result<(Attempt, MultiplexedConnection), InventoryError> {
        let attempt = self.attempt();
        let connected = attempt.connection.clone().await;
        let connection = connected.map_err(|error| {
            attempt.broken.store(true, Ordering::Release);
            InventoryError::not_sent(error)
        })?;
        Ok((attempt, connection))
    }

    fn attempt(&self) -> Attempt {
        let mut slot = self.slot.lock();
        match &slot.attempt {
            Some(attempt) if !attempt.broken.load(Ordering::Acquire) => attempt.clone(),
            _ => {
                let begins_at = slot.pauses.begin(Instant::now());
                slot.attempt.insert(self.start_attempt(begins_at)).clone()
            }
        }
    }

    fn start_attempt(&self, begins_at: Instant) -> Attempt {
        // the client times all of it as one: the name, the connection, TLS and the handshake
        let InventoryOptions { connect_timeout, response_timeout } = self.options;
        let broken = Arc::new(AtomicBool::new(false));
        let (is_broken, connected) = (broken.clone(), Arc::downgrade(&broken));
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(connect_timeout + response_timeout))
            .set_response_timeout(Some(response_timeout))
            .set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    is_broken.store(true, Ordering::Release);
                }
                Ok::<_, redis::aio::SendError>(())
            });
        let server = Arc::clone(&self.server);
        let (_, connection) = shared_task(begins_at, async move {
            let Server { access, address, is_node, watched, .. } = &*server;
            let target = access.target().map_err(std::io::Error::other)?;
            let found = match &target.kind {
                _ if *is_node => target.cluster_node(address)?,
                TargetKind::Sentinels(name) => {
                    // on a tie, the one that the first sentinel of the address names
                    sentinel::primaries(access, &target.nodes, name, connect_timeout)
                        .await?
                        .remove(0)
                }
                // a node of a cluster is refused below
                TargetKind::Server | TargetKind::Cluster => target.nodes[0].clone(),
            };
            let address = found.addr().clone();
            let mut connection = access.connect(found, &config).await?;
            // within the time for one answer, as any other command
            server.identify(&mut connection).await?;
            if let TargetKind::Sentinels(_) = target.kind {
                let (access, watched) = (access.clone(), Arc::clone(watched));
                sentinel::break_when_replaced(
                    access,
                    connect_timeout,
                    watched,
                    (address, connected),
                );
            }
            Ok(connection)
        });
        Attempt { connection, broken }
    }

    /// Whether the latest attempt is so old that another one would not wait.
    fn is_old(&self) -> bool {
        let slot = self.slot.lock();
        slot.pauses.begun_at.is_some_and(|begun_at| Instant::now() >= begun_at + GOOD_AFTER)
    }

    /// Where the server is, without the password.
    pub(super) fn address(&self) -> String {
        self.server.address.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backoff::{FIRST, LONGEST};

    /// Goal: the first attempt has no pause; later ones have pauses up to a bound; after a connection that lived, the next
    /// attempt is a first one again.
    #[tokio::test(start_paused = true)]
    async fn attempts_in_a_row_have_pauses() {
        let (mut attempts, mut now) = (Pauses::default(), Instant::now());
        assert_eq!(attempts.begin(now), now);
        let mut bound = FIRST;
        for _ in 0..40 {
            // each attempt fails at once
            let pause = attempts.begin(now) - now;
            assert!(pause >= bound / 2 && pause <= bound, "{pause:?} of {bound:?}");
            bound = (bound * 2).min(LONGEST);
            now += pause;
        }
        now += GOOD_AFTER;
        assert_eq!(attempts.begin(now), now);
    }
}
