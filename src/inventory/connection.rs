//! One connection to Redis that comes back by itself.
//!
//! The Redis client brings such a thing, its `ConnectionManager`. It does not serve here, for two
//! reasons. It does not tell a command that was never sent from one that got no answer, and for an
//! order that is the difference between "not sold" and "unknown". And it keeps the failure of a
//! connection attempt for the next caller, for good if the failure was not one of I/O (too many
//! clients, say).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, FromRedisValue, PushInfo, PushKind, RedisError,
    RedisResult, ServerErrorKind, Value,
};
use tokio::time::{Instant, sleep_until, timeout};

use super::script::RedisAnswer;
use super::server::LastServer;
use super::{InventoryError, RedisAccess};

/// How long the pause before a second attempt to connect is at first, and at the most. The first
/// attempt is made at once.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// A connection that lived so long was a good one: the next attempt is a first one again.
const GOOD_AFTER: Duration = Duration::from_secs(1);

/// How long to wait for the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InventoryOptions {
    /// How long one attempt to connect may take. The handshake has the time of one answer more.
    pub connect_timeout: Duration,
    /// How long the answer to one command may take. Well above the stalls of a disk that syncs each
    /// write: to give up early turns a slow answer into an unknown one.
    pub response_timeout: Duration,
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
pub(super) struct Connection(Arc<Link>);

struct Link {
    access: RedisAccess,
    /// Where it led to when it was first read, without the password.
    address: String,
    options: InventoryOptions,
    /// The attempt under way, or the connection that it led to. Callers share one attempt, so that
    /// none waits longer than one attempt takes, however many there are.
    slot: Mutex<Slot>,
    last_server: Arc<LastServer>,
}

#[derive(Default)]
struct Slot {
    attempt: Option<Attempt>,
    /// When the latest attempt was begun.
    begun_at: Option<Instant>,
    /// How many attempts in a row led to no connection that lived.
    failures: u32,
}

impl Slot {
    /// When the next attempt may begin. Many instances wait for the same server: they must not come all
    /// at once, hence the chance in it.
    fn begin(&mut self, now: Instant) -> Instant {
        let begun_at = self.begun_at.filter(|begun_at| now < *begun_at + GOOD_AFTER);
        self.failures = begun_at.map_or(0, |_| self.failures.saturating_add(1));
        let pause = match self.failures {
            0 => Duration::ZERO,
            failures => FIRST_PAUSE.saturating_mul(1 << (failures - 1).min(16)).min(LONGEST_PAUSE),
        };
        // 50 to 100 of a hundred parts
        let chance = u32::from(uuid::Uuid::new_v4().as_bytes()[0]) * 50 / 255;
        let begins_at = begun_at.map_or(now, |begun_at| begun_at + pause * (50 + chance) / 100);
        let begins_at = begins_at.max(now);
        self.begun_at = Some(begins_at);
        begins_at
    }
}

#[derive(Clone)]
struct Attempt {
    connection: Shared<BoxFuture<'static, Result<MultiplexedConnection, RedisError>>>,
    /// Set as soon as the connection is seen to break, also between commands.
    broken: Arc<AtomicBool>,
}

/// Whether a command changes anything, which decides what a missing answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Read,
    Write,
}

impl Connection {
    /// Connects nothing yet.
    pub(super) fn new(
        access: RedisAccess,
        options: InventoryOptions,
    ) -> Result<Self, InventoryError> {
        // also to say at once what is wrong with it
        let address = access.client()?.get_connection_info().addr().to_string();
        let last_server = Arc::default();
        Ok(Self(Arc::new(Link { access, address, options, slot: Mutex::default(), last_server })))
    }

    /// A connection of its own to the same server, which waits longer for answers.
    pub(super) fn patient_by(&self, longer: Duration) -> Self {
        let Link { access, address, options, last_server, .. } = &*self.0;
        let (access, address) = (access.clone(), address.clone());
        let last_server = Arc::clone(last_server);
        let response_timeout = options.response_timeout + longer;
        let options = InventoryOptions { response_timeout, ..*options };
        Self(Arc::new(Link { access, address, options, slot: Mutex::default(), last_server }))
    }

    /// Connects, unless connected.
    pub(super) async fn open(&self) -> Result<(), InventoryError> {
        self.ready().await.map(|_| ())
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
        self.try_query(command).await?.map_err(|error| match effect {
            Effect::Read => InventoryError::read(error),
            Effect::Write => InventoryError::write(error),
        })
    }

    /// The outer error: nothing was sent. The inner error: what came of it.
    pub(super) async fn try_query<T: FromRedisValue>(
        &self,
        command: &Cmd,
    ) -> Result<Result<T, RedisError>, InventoryError> {
        let (attempt, mut connection) = self.ready().await?;
        let answer = command.query_async(&mut connection).await;
        self.judge(&attempt, &answer);
        Ok(answer)
    }

    /// As [`try_query`](Self::try_query), and with it sends another command, if there is one, whose
    /// answer comes second.
    pub(super) async fn try_query_then(
        &self,
        command: &Cmd,
        then: Option<&Cmd>,
    ) -> Result<RedisResult<(Value, Option<RedisAnswer>)>, InventoryError> {
        let Some(then) = then else {
            return Ok(self.try_query(command).await?.map(|answer| (answer, None)));
        };
        let (attempt, mut connection) = self.ready().await?;
        let mut both = redis::pipe();
        both.add_command(command.clone()).add_command(then.clone());
        let answers = connection.send_packed_commands(&both, 0, 2).await;
        let answer = answers.and_then(|answers| {
            let mut answers = answers.into_iter().map(Value::extract_error);
            let missing = || (ErrorKind::UnexpectedReturnType, "two answers were expected").into();
            let first = answers.next().unwrap_or_else(|| Err(missing()))?;
            Ok((first, Some(answers.next().unwrap_or_else(|| Err(missing())))))
        });
        self.judge(&attempt, &answer);
        Ok(answer)
    }

    /// Has the next call connect anew if this connection is not worth keeping.
    fn judge<T>(&self, attempt: &Attempt, answer: &RedisResult<T>) {
        let Err(error) = answer else { return };
        // Also after a timeout: the other end may have gone without a word, and a new connection finds
        // out. And when the server became a replica: the address may lead to the new primary by now.
        let is_replica = error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly);
        // A store that lacks something may be the wrong one, too. It is asked who it is once in a while,
        // and not for each order: other items may be in good order there.
        let is_doubted = error.code() == Some("ROLLEDBACK") && self.is_old();
        if error.is_io_error() || error.is_unrecoverable_error() || is_replica || is_doubted {
            self.forget(attempt);
        }
    }

    async fn ready(&self) -> Result<(Attempt, MultiplexedConnection), InventoryError> {
        let attempt = self.attempt();
        match attempt.connection.clone().await {
            Ok(connection) => Ok((attempt, connection)),
            Err(error) => {
                self.forget(&attempt);
                Err(InventoryError::not_sent(error))
            }
        }
    }

    fn attempt(&self) -> Attempt {
        let mut slot = self.0.slot.lock();
        match &slot.attempt {
            Some(attempt) if !attempt.broken.load(Ordering::Acquire) => attempt.clone(),
            _ => {
                let begins_at = slot.begin(Instant::now());
                slot.attempt.insert(self.start_attempt(begins_at)).clone()
            }
        }
    }

    fn start_attempt(&self, begins_at: Instant) -> Attempt {
        // the client times the connection and the handshake over it as one
        let within = self.0.options.connect_timeout + self.0.options.response_timeout;
        let broken = Arc::new(AtomicBool::new(false));
        let told = broken.clone();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(within))
            .set_response_timeout(Some(self.0.options.response_timeout))
            .set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    told.store(true, Ordering::Release);
                }
                Ok::<_, redis::aio::SendError>(())
            });
        let (access, last_server) = (self.0.access.clone(), Arc::clone(&self.0.last_server));
        // A task of its own: an attempt whose first caller gave up goes on for the others.
        let task = tokio::spawn(async move {
            sleep_until(begins_at).await;
            let client = access.client().map_err(std::io::Error::other)?;
            let late = |_| RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
            let connect = client.get_multiplexed_async_connection_with_config(&config);
            let mut connection = timeout(within, connect).await.map_err(late)??;
            // as any other command, within the time for one answer
            last_server.meet(&mut connection).await?;
            Ok(connection)
        });
        let connection = task.map(|joined| {
            joined.unwrap_or_else(|_| Err(std::io::Error::other("the runtime stops").into()))
        });
        Attempt { connection: connection.boxed().shared(), broken }
    }

    /// Whether the latest attempt was made a while ago, so that another one need not wait.
    fn is_old(&self) -> bool {
        self.0.slot.lock().begun_at.is_some_and(|begun_at| Instant::now() >= begun_at + GOOD_AFTER)
    }

    /// Has the next caller connect anew, unless that was done already.
    fn forget(&self, attempt: &Attempt) {
        let mut slot = self.0.slot.lock();
        if slot.attempt.as_ref().is_some_and(|now| Arc::ptr_eq(&now.broken, &attempt.broken)) {
            slot.attempt = None;
        }
    }

    /// Where the server is, without the password.
    pub(super) fn address(&self) -> String {
        self.0.address.clone()
    }
}

impl fmt::Debug for Connection {
    /// The address alone: the URL may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({})", self.address())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first attempt is made at once; those after it have pauses between them that grow to a bound,
    /// none like the other; and after a connection that lived, the next one is a first one again.
    #[tokio::test(start_paused = true)]
    async fn attempts_in_a_row_have_pauses() {
        let mut slot = Slot::default();
        let mut now = Instant::now();
        assert_eq!(slot.begin(now), now);
        let mut bound = FIRST_PAUSE;
        let mut pauses = Vec::new();
        for _ in 0..40 {
            // it failed at once
            let pause = slot.begin(now) - now;
            assert!(pause >= bound / 2 && pause <= bound, "{pause:?} of {bound:?}");
            bound = (bound * 2).min(LONGEST_PAUSE);
            now += pause;
            pauses.push(pause);
        }
        pauses.sort();
        pauses.dedup();
        assert!(pauses.len() > 20, "they differ: {pauses:?}");
        now += GOOD_AFTER;
        assert_eq!(slot.begin(now), now);
    }
}
