//! One connection to Redis that reconnects by itself.
//!
//! The `ConnectionManager` of the Redis client does not fit, for two reasons. It does not distinguish a command that was never
//! sent from a command without an answer; for an order, that is the difference between "not sold" and "unknown". And it returns
//! the failure of one attempt to later callers, for ever if the failure was not one of I/O, such as too many clients.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, FromRedisValue, InfoDict, PushInfo, PushKind,
    RedisError, RedisResult, ServerErrorKind, Value,
};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::InventoryError;
use super::access::TargetKind;
use super::directory::{Directory, Node};
use super::error::Effect;
use crate::backoff::Backoff;
use crate::process::spawn;

/// After a connection that lived this long, the next attempt has no pause.
const GOOD_AFTER: Duration = Duration::from_secs(1);

/// After this silence, a connection must answer within `SIGN_WITHIN` before it is used. A router, such as a NAT, may
/// drop idle connections without a word.
const IDLE_AFTER: Duration = Duration::from_secs(5);
const SIGN_WITHIN: Duration = Duration::from_millis(500);

/// The answers to a command, and to the second command if there was one.
pub(super) type Answers = (Value, Option<RedisResult<Value>>);

/// How long to wait for the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InventoryOptions {
    /// The longest that one attempt to connect may take. The handshake may take `response_timeout` more.
    pub connect_timeout: Duration,
    /// The longest that the answer to one command may take. It should exceed the stalls of a disk that syncs each write: giving
    /// up early turns a slow answer into an unknown one.
    pub response_timeout: Duration,
}

impl Default for InventoryOptions {
    /// One second to connect, two to answer.
    fn default() -> Self {
        Self { connect_timeout: Duration::from_secs(1), response_timeout: Duration::from_secs(2) }
    }
}

/// One multiplexed connection to a server, opened when it is needed. If it was idle and then gives no sign of life, it
/// is opened anew before anything is sent. Clones share it.
///
/// A call makes at most one attempt to connect, and sends each command at most once. Calls wait for the short pauses
/// between consecutive attempts.
#[derive(Clone)]
pub(super) struct Connection {
    directory: Arc<Directory>,
    node: Node,
    options: InventoryOptions,
    /// The attempt under way, or its connection. Callers share it, so none waits for more than one attempt.
    slot: Arc<Mutex<Slot>>,
}

#[derive(Default)]
struct Slot {
    attempt: Option<Attempt>,
    pauses: Pauses,
    /// The latest answer, question for a sign of life, or begin of the attempt. A sent command does not count: callers may
    /// go before they notice that no answer comes.
    heard_at: Option<Instant>,
}

/// The pauses between consecutive attempts.
#[derive(Default)]
pub(super) struct Pauses {
    /// When the latest attempt began.
    begun_at: Option<Instant>,
    /// Counts attempts in a row that failed, or whose connection soon broke.
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
    /// The latest question for a sign of life. Callers share it.
    sign_of_life: Option<SharedResult<()>>,
    /// Cancelled when the attempt fails or its connection breaks, also between commands. The next caller then makes a
    /// new attempt.
    broken: CancellationToken,
}

pub(super) type SharedResult<T> = Shared<BoxFuture<'static, RedisResult<T>>>;

/// Begins `work` at this time, in a task of its own: the work goes on for other callers if the first one gives up.
pub(super) fn shared_task<T: Clone + Send + 'static>(
    begins_at: Instant,
    work: impl Future<Output = RedisResult<T>> + Send + 'static,
) -> (AbortHandle, SharedResult<T>) {
    let task = spawn(async move {
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
    /// A connection to this server of the store. Does not connect yet.
    pub(super) fn new(directory: &Arc<Directory>, node: &Node, options: InventoryOptions) -> Self {
        let (directory, node) = (Arc::clone(directory), node.clone());
        Self { directory, node, options, slot: Arc::default() }
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
        let (answer, _) = self.send(command, None).await?.map_err(|error| effect.failed(error))?;
        redis::from_redis_value(answer).map_err(|error| effect.failed(error.into()))
    }

    /// Sends a command and, if there is one, the command `then` in the same round trip.
    ///
    /// The outer error means that nothing was sent. The inner result is the server's.
    pub(super) async fn send(
        &self,
        command: &Cmd,
        then: Option<&Cmd>,
    ) -> Result<RedisResult<Answers>, InventoryError> {
        let mut attempt = self.attempt();
        if let Some(sign) = attempt.sign_of_life.clone()
            && sign.await.is_err()
        {
            attempt.broken.cancel();
            attempt = self.attempt();
        }
        let connected = attempt.connection.clone().await;
        let mut connection = connected.map_err(InventoryError::not_sent)?;
        let answer = match then {
            None => command.query_async(&mut connection).await.map(|answer| (answer, None)),
            Some(then) => {
                let mut both = redis::pipe();
                both.add_command(command.clone()).add_command(then.clone());
                let answers = connection.send_packed_commands(&both, 0, 2).await;
                answers.and_then(|answers| {
                    let missing = (ErrorKind::UnexpectedReturnType, "an answer is missing");
                    let [first, second] = answers.try_into().map_err(|_| missing)?;
                    Ok((first.extract_error()?, Some(second.extract_error())))
                })
            }
        };
        if !answer.as_ref().is_err_and(RedisError::is_io_error) {
            self.slot.lock().heard_at = Some(Instant::now());
        }
        // connect anew after a timeout, since the server may be gone without having closed the connection; if the
        // server became a replica, since the address may lead to a new primary; and if it was rolled back, since it may
        // be the wrong server (then rarely, since its other items may be whole)
        if let Err(error) = &answer
            && (error.is_io_error()
                || error.is_unrecoverable_error()
                || error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
                || error.code() == Some("ROLLEDBACK") && self.is_old())
        {
            attempt.broken.cancel();
        }
        Ok(answer)
    }

    /// Whether the latest attempt began so long ago that a new one needs no pause.
    fn is_old(&self) -> bool {
        let slot = self.slot.lock();
        slot.pauses.begun_at.is_some_and(|begun_at| Instant::now() >= begun_at + GOOD_AFTER)
    }

    fn attempt(&self) -> Attempt {
        let mut slot = self.slot.lock();
        let now = Instant::now();
        let Slot { attempt, pauses, heard_at } = &mut *slot;
        match attempt {
            Some(attempt) if !attempt.broken.is_cancelled() => {
                if heard_at.is_some_and(|at| now - at >= IDLE_AFTER) {
                    *heard_at = Some(now);
                    let sign = sign_of_life(attempt.connection.clone());
                    attempt.sign_of_life = Some(shared_task(now, sign).1);
                }
                attempt.clone()
            }
            _ => {
                let begins_at = pauses.begin(now);
                *heard_at = Some(begins_at);
                attempt.insert(self.start_attempt(begins_at)).clone()
            }
        }
    }

    fn start_attempt(&self, begins_at: Instant) -> Attempt {
        // this covers all: resolving the name, connecting, TLS and the handshake
        let InventoryOptions { connect_timeout, response_timeout } = self.options;
        let broken = CancellationToken::new();
        // the task notes its failure itself: its callers may be gone
        let (is_broken, unless_connected) = (broken.clone(), broken.clone().drop_guard());
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(connect_timeout + response_timeout))
            .set_response_timeout(Some(response_timeout))
            .set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    is_broken.cancel();
                }
                Ok::<_, redis::aio::SendError>(())
            });
        let Self { directory, node, .. } = self.clone();
        let connect = async move {
            let server = directory.server(&node).await?;
            let mut connection = directory.connect(server, &config).await?;
            // within the time for one answer, like any other command
            check_role(&mut connection, directory.kind == TargetKind::Cluster).await?;
            unless_connected.disarm();
            Ok(connection)
        };
        let (_, connection) = shared_task(begins_at, connect);
        Attempt { connection, broken, sign_of_life: None }
    }

    /// The server's address, without the password.
    pub(super) fn address(&self) -> &str {
        &self.node
    }
}

/// Succeeds if the server answers anything, even a refusal.
async fn sign_of_life(connection: SharedResult<MultiplexedConnection>) -> RedisResult<()> {
    let mut connection = connection.await?;
    let ping = redis::cmd("PING");
    let answer = timeout(SIGN_WITHIN, ping.query_async::<Value>(&mut connection)).await;
    let late = || io::Error::from(io::ErrorKind::TimedOut);
    answer.map_err(|_| late())?.map(drop).or_else(|error| match error.code() {
        Some(_) => Ok(()),
        None => Err(error),
    })
}

/// Asks the server of a new connection for its role.
///
/// # Errors
/// If there is no answer; if the server is a replica, which takes no orders and may have old data; or if it is a node
/// of a Redis Cluster and the address does not say so. A server that hides its role is accepted.
async fn check_role(connection: &mut MultiplexedConnection, in_cluster: bool) -> RedisResult<()> {
    let info: InfoDict = match redis::cmd("INFO").query_async(connection).await {
        Ok(info) => info,
        Err(error) if error.is_io_error() => return Err(error),
        Err(_) => return Ok(()),
    };
    let is = |field, value: &str| info.get::<String>(field).is_some_and(|found| found == value);
    // Valkey calls it `server_mode`
    if !in_cluster && (is("redis_mode", "cluster") || is("server_mode", "cluster")) {
        let kind = ErrorKind::InvalidClientConfig;
        let what = "this Redis is a node of a Redis Cluster: write redis-cluster:// for all of it";
        return Err((kind, what).into());
    }
    if is("role", "slave") {
        let kind = ErrorKind::Server(ServerErrorKind::ReadOnly);
        return Err((kind, "this Redis is a replica, which takes no orders").into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use testkit::Proxy;
    use testkit::shared::fresh_database;
    use testkit::wait::{eventually, within};

    use super::*;
    use crate::backoff::{FIRST, LONGEST};
    use crate::inventory::{Action, Inventory, Item, Order, Outcome};

    /// Goal: if an idle connection was dropped without a word, no call loses its answer, be it a read or a write, and however
    /// many calls there are, also if earlier calls were given up before their answers were due; nor does an attempt to connect
    /// that failed after its caller was gone harm the next call.
    /// Method: a proxy that swallows everything on its open connections, and for a while leads nowhere.
    #[tokio::test]
    async fn an_idle_connection_is_not_trusted() {
        let redis = fresh_database().await;
        let (address, database) = redis.rsplit_once('/').expect("a database");
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        let proxy = Proxy::to(port.expect("a port")).await.expect("a proxy");
        let address = format!("redis://127.0.0.1:{}/{database}", proxy.port());
        let options = InventoryOptions::default();
        let inventory = Inventory::new(&address, options).expect("a valid address");
        inventory.start(&Item::DEFAULT, None, 9).await.expect("a sale");
        let connection = inventory.shards.all().await.expect("one server").remove(0);
        let hear_nothing_for = |time| {
            proxy.silence();
            connection.slot.lock().heard_at = Instant::now().checked_sub(time);
        };
        hear_nothing_for(IDLE_AFTER);
        let looks = (0..9).map(|_| inventory.available(&Item::DEFAULT));
        for look in within("they are answered", futures_util::future::join_all(looks)).await {
            assert_eq!(look.expect("an answer"), 9);
        }
        assert_eq!(proxy.connections(), 2, "they share the new connection");
        // nor do questions that are given up keep such a connection in use
        let soon = Duration::from_millis(200);
        hear_nothing_for(IDLE_AFTER.saturating_sub(soon));
        for _ in 0..3 {
            timeout(soon / 2, inventory.available(&Item::DEFAULT)).await.expect_err("no answer");
        }
        let look = within("it is answered", inventory.available(&Item::DEFAULT));
        assert_eq!(look.await.expect("an answer"), 9);
        assert_eq!(proxy.connections(), 3);
        hear_nothing_for(IDLE_AFTER);
        let orders = [Order { action: Action::Reserve, ..Order::expiring(Item::DEFAULT) }];
        let sold = within("it is answered", inventory.reduce(&Item::DEFAULT, None, "a", &orders));
        assert!(matches!(sold.await.expect("an answer")[..], [Outcome::Reserved(_)]));
        // a connection that works is kept
        connection.slot.lock().heard_at = Instant::now().checked_sub(IDLE_AFTER);
        assert_eq!(inventory.available(&Item::DEFAULT).await.expect("an answer"), 8);
        assert_eq!(proxy.connections(), 4);

        let attempt = || connection.slot.lock().attempt.clone().expect("an attempt");
        proxy.redirect_to(1);
        proxy.cut();
        let is_broken = async || attempt().broken.is_cancelled();
        eventually("the break is noticed", is_broken).await;
        assert!(inventory.available(&Item::DEFAULT).now_or_never().is_none(), "it is given up");
        attempt().connection.await.expect_err("nothing listens there");
        proxy.redirect_to(port.expect("a port"));
        assert_eq!(inventory.available(&Item::DEFAULT).await.expect("an answer"), 8);
    }

    /// Goal: the first attempt has no pause; later ones have pauses up to a bound; after a connection that lived, the
    /// next attempt counts as the first again.
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
