//! One connection to Redis that comes back by itself.
//!
//! The Redis client brings such a thing, its `ConnectionManager`. It does not serve here, for two
//! reasons. It does not tell a command that was never sent from one that got no answer, and for an
//! order that is the difference between "not sold" and "unknown". And it keeps the failure of a
//! connection attempt for the next caller, for good if the failure was not one of I/O (too many
//! clients, say).

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, Cmd, FromRedisValue, IntoConnectionInfo, ProtocolVersion,
    PushInfo, PushKind, RedisError,
};

use super::InventoryError;

/// How long to wait for the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InventoryOptions {
    /// How long one attempt to connect may take.
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
/// A call makes at most one attempt to connect and sends each command at most once.
#[derive(Clone)]
pub(super) struct Connection(Arc<Link>);

struct Link {
    client: Client,
    options: InventoryOptions,
    /// The attempt under way, or the connection that it led to. Callers share one attempt, so that
    /// none waits longer than one attempt takes, however many there are.
    attempt: Mutex<Option<Attempt>>,
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
    pub(super) fn new(url: &str, options: InventoryOptions) -> Result<Self, InventoryError> {
        let invalid = |source| InventoryError::InvalidUrl { source };
        let info = url.into_connection_info().map_err(invalid)?;
        // With RESP3 the client tells when the connection breaks, not only when it is next used.
        let redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        // A small command must not wait for the acknowledgement of the one before.
        let tcp = TcpSettings::default().set_nodelay(true);
        let info = info.set_redis_settings(redis).set_tcp_settings(tcp);
        let client = Client::open(info).map_err(invalid)?;
        Ok(Self(Arc::new(Link { client, options, attempt: Mutex::new(None) })))
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
        if let Err(error) = &answer
            && (error.is_io_error() || error.is_unrecoverable_error())
        {
            // Also after a timeout: the other end may have gone without a word, and a new
            // connection finds out.
            self.forget(&attempt);
        }
        Ok(answer)
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
        let mut slot = self.slot();
        match &*slot {
            Some(attempt) if !attempt.broken.load(Ordering::Acquire) => attempt.clone(),
            _ => slot.insert(self.start_attempt()).clone(),
        }
    }

    fn start_attempt(&self) -> Attempt {
        let broken = Arc::new(AtomicBool::new(false));
        let told = broken.clone();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.0.options.connect_timeout))
            .set_response_timeout(Some(self.0.options.response_timeout))
            .set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    told.store(true, Ordering::Release);
                }
                Ok::<_, redis::aio::SendError>(())
            });
        let client = self.0.client.clone();
        // A task of its own: an attempt whose first caller gave up goes on for the others.
        let task = tokio::spawn(async move {
            client.get_multiplexed_async_connection_with_config(&config).await
        });
        let connection = task.map(|joined| {
            joined.unwrap_or_else(|_| Err(std::io::Error::other("the runtime stops").into()))
        });
        Attempt { connection: connection.boxed().shared(), broken }
    }

    /// Has the next caller connect anew, unless somebody did so already.
    fn forget(&self, attempt: &Attempt) {
        let mut slot = self.slot();
        if slot.as_ref().is_some_and(|now| Arc::ptr_eq(&now.broken, &attempt.broken)) {
            *slot = None;
        }
    }

    fn slot(&self) -> MutexGuard<'_, Option<Attempt>> {
        // Nothing panics while it is held; and if it did, the slot would still be whole.
        self.0.attempt.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Connection {
    /// The address alone: the URL may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({})", self.0.client.get_connection_info().addr())
    }
}
