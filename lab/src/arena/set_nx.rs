//! The plainest lock: `SET NX PX` on one Redis.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fenced_lock::{
    BackendError, BackendErrorKind, Clock, Ends, LockError, Loss, Order, Promises, QueueView,
    Token, TokenLife, Wake,
};
use futures_util::future::BoxFuture;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError, RedisResult, Script, cmd};
use testkit::server::START_TIMEOUT;
use tokio::time::sleep;
use uuid::Uuid;

use super::seat::{Held, Seat};
use crate::articles::COMPARE_AND_DELETE;

/// How often a waiter asks: the default of `Lock` in `redis-py`, which is this lock.
const PAUSE: Duration = Duration::from_millis(100);

/// What it promises.
pub(super) const PROMISES: Promises = Promises {
    order: Order::Unordered,
    wake: Wake::Polled,
    token: TokenLife::None,
    ends: Ends::Lease(Clock::Wall),
    loss: Loss::Never,
    queue: QueueView::HolderOnly,
};

/// A process that takes it. It renews nothing.
#[derive(Clone)]
pub(super) struct SetNx {
    redis: MultiplexedConnection,
    ttl: Duration,
    /// Whether a request failed: the connection may be gone.
    has_failed: Arc<AtomicBool>,
}

impl SetNx {
    pub(super) async fn connect(url: &str, ttl: Duration) -> RedisResult<Self> {
        let patient = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(START_TIMEOUT))
            .set_response_timeout(Some(START_TIMEOUT));
        let client = Client::open(url)?;
        let redis = client.get_multiplexed_async_connection_with_config(&patient).await?;
        Ok(Self { redis, ttl, has_failed: Arc::default() })
    }

    fn failed(&self, error: RedisError) -> LockError {
        self.has_failed.store(true, Ordering::Relaxed);
        BackendError::new(BackendErrorKind::Transient, error).into()
    }
}

impl Seat for SetNx {
    fn take<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Box<dyn Held>, LockError>> {
        Box::pin(async move {
            let (mut redis, value) = (self.redis.clone(), Uuid::new_v4().to_string());
            let ttl_ms = u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX);
            let mut set = cmd("SET");
            set.arg(name).arg(&value).arg("NX").arg("PX").arg(ttl_ms);
            while !set.query_async(&mut redis).await.map_err(|error| self.failed(error))? {
                sleep(PAUSE).await;
            }
            Ok(Box::new(Grant { seat: self.clone(), name: name.to_owned(), value }) as _)
        })
    }

    fn queue_length<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<usize, LockError>> {
        Box::pin(async { Ok(0) })
    }

    fn is_lost(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    fn close(&self) -> BoxFuture<'_, Result<(), LockError>> {
        Box::pin(async { Ok(()) })
    }
}

struct Grant {
    seat: SetNx,
    name: String,
    value: String,
}

impl Held for Grant {
    /// Nobody tells it, and it looks at no clock.
    fn is_lost(&self) -> bool {
        false
    }

    fn token(&self) -> Option<Token> {
        None
    }

    fn give_back(self: Box<Self>) -> BoxFuture<'static, Result<(), LockError>> {
        Box::pin(async move {
            let script = Script::new(COMPARE_AND_DELETE);
            let mut delete = script.key(&self.name);
            let deleted = delete.arg(&self.value).invoke_async(&mut self.seat.redis.clone()).await;
            deleted.map_err(|error| self.seat.failed(error))
        })
    }
}
