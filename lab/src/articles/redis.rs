//! The locks on Redis.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use fenced_lock::Token;
use redis::aio::MultiplexedConnection;
use redis::{RedisError, RedisResult, Script, cmd};
use rslock::{LockGuard, LockManager};
use tokio::time::sleep;
use uuid::Uuid;

use super::story::{Accident, LONG, TTL};
use super::{Part, Role};
use crate::clients::Client;

/// The TTL of a lock that is to end in a story. The articles have 5 to 30 s.
const SHORT: Duration = Duration::from_millis(400);

const HOUR: Duration = Duration::from_hours(1);

/// How often a lock is asked for that an article polls.
pub(super) const POLL: Duration = Duration::from_millis(10);

/// Deletes the key if it has this value.
const COMPARE_AND_DELETE: &str = "
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0";

/// `SET key value NX EX` with a random value, and a script that deletes the key only with this value: the pages "SET" and
/// "Distributed Locks with Redis" of Redis's documentation, and the last step of articles such as "Mastering Redis
/// Distributed Locks: From SETNX+Lua to Redisson with Go Examples".
pub(crate) struct SetNx {
    redis: MultiplexedConnection,
    key: String,
    value: String,
    ttl: Duration,
    poll: Duration,
    /// Whether a request failed: the connection may be gone.
    pub(crate) has_failed: Arc<AtomicBool>,
}

impl SetNx {
    pub(crate) fn new(
        redis: MultiplexedConnection,
        key: &str,
        ttl: Duration,
        poll: Duration,
    ) -> Self {
        let (value, has_failed) = (Uuid::new_v4().to_string(), Arc::default());
        Self { redis, key: key.to_owned(), value, ttl, poll, has_failed }
    }

    fn failed(&self, error: RedisError) -> RedisError {
        self.has_failed.store(true, Ordering::Relaxed);
        error
    }
}

pub(super) async fn set_nx(part: &Part) -> Result<Box<dyn Client>> {
    let ttl = if part.accident == Accident::FailOver { LONG } else { SHORT };
    Ok(Box::new(SetNx::new(part.redis().await?, &part.lock, ttl, POLL)))
}

#[async_trait]
impl Client for SetNx {
    async fn lock(&mut self) -> Result<Option<Token>> {
        let mut set = cmd("SET");
        set.arg(&self.key).arg(&self.value).arg("NX").arg("PX").arg(millis(self.ttl));
        loop {
            let is_set = set.query_async(&mut self.redis).await;
            if is_set.map_err(|error| self.failed(error))? {
                return Ok(None);
            }
            sleep(self.poll).await;
        }
    }

    async fn unlock(&mut self) -> Result<()> {
        let script = Script::new(COMPARE_AND_DELETE);
        let mut delete = script.key(&self.key);
        let deleted = delete.arg(&self.value).invoke_async::<()>(&mut self.redis).await;
        Ok(deleted.map_err(|error| self.failed(error))?)
    }
}

/// `SETNX`, then `EXPIRE`: "482.基于 Redis 分布式锁" and other collections for interviews, and the step that "Why Redis
/// Distributed Locks Fail and How to Fix Leak and Mis-Release Issues" corrects. The value is the user, the time 30 s.
struct SetNxExpire {
    redis: MultiplexedConnection,
    key: String,
    dies_in_between: bool,
}

pub(super) async fn setnx_expire(part: &Part) -> Result<Box<dyn Client>> {
    let (redis, key) = (part.redis().await?, part.lock.clone());
    Ok(Box::new(SetNxExpire { redis, key, dies_in_between: part.role == Role::First }))
}

#[async_trait]
impl Client for SetNxExpire {
    async fn lock(&mut self) -> Result<Option<Token>> {
        let mut setnx = cmd("SETNX");
        setnx.arg(&self.key).arg("user");
        while !setnx.query_async(&mut self.redis).await? {
            sleep(POLL).await;
        }
        if !self.dies_in_between {
            cmd("EXPIRE").arg(&self.key).arg(30).query_async::<()>(&mut self.redis).await?;
        }
        Ok(None)
    }

    async fn unlock(&mut self) -> Result<()> {
        delete(&mut self.redis, &self.key).await
    }

    async fn why_locked(&mut self) -> Result<&'static str> {
        let left: i64 = cmd("PTTL").arg(&self.key).query_async(&mut self.redis).await?;
        // that is the answer for a key without a TTL
        ensure!(left == -1, "the key has a TTL");
        Ok("locked for ever")
    }
}

/// `SETEX`, which sets the value and the time in one step: an answer to "如何使用Redis实现分布式锁?" (how to lock with Redis) on
/// nowcoder.com. It always succeeds, since it overwrites.
struct SetEx {
    redis: MultiplexedConnection,
    key: String,
}

pub(super) async fn setex(part: &Part) -> Result<Box<dyn Client>> {
    Ok(Box::new(SetEx { redis: part.redis().await?, key: part.lock.clone() }))
}

#[async_trait]
impl Client for SetEx {
    async fn lock(&mut self) -> Result<Option<Token>> {
        let mut setex = cmd("SETEX");
        setex.arg(&self.key).arg(30).arg("user");
        setex.query_async::<()>(&mut self.redis).await?;
        Ok(None)
    }

    async fn unlock(&mut self) -> Result<()> {
        delete(&mut self.redis, &self.key).await
    }
}

/// `SET key value NX EX`, and a release by the holder's own clock: what has not expired must be one's own, so it is
/// deleted. Check and deletion are two steps besides.
struct OwnClock {
    redis: MultiplexedConnection,
    key: String,
    ttl: Duration,
    /// By how much the clock is set back while it has the lock.
    set_back: Duration,
    expires_at: i64,
}

pub(super) async fn own_clock(part: &Part) -> Result<Box<dyn Client>> {
    let (ttl, set_back) =
        if part.role == Role::Early { (SHORT, HOUR) } else { (LONG, Duration::ZERO) };
    let (redis, key) = (part.redis().await?, part.lock.clone());
    Ok(Box::new(OwnClock { redis, key, ttl, set_back, expires_at: 0 }))
}

#[async_trait]
impl Client for OwnClock {
    async fn lock(&mut self) -> Result<Option<Token>> {
        let mut set = cmd("SET");
        set.arg(&self.key).arg("locked").arg("NX").arg("PX").arg(millis(self.ttl));
        while !set.query_async(&mut self.redis).await? {
            sleep(POLL).await;
        }
        self.expires_at = now() + millis(self.ttl);
        Ok(None)
    }

    async fn unlock(&mut self) -> Result<()> {
        if now() - millis(self.set_back) < self.expires_at {
            delete(&mut self.redis, &self.key).await?;
        }
        Ok(())
    }
}

/// `SETNX` and `GETSET` with time stamps: "Design pattern: Locking with SETNX" on the page "SETNX" of Redis's
/// documentation. The value is when the lock expires, by its holder's clock. When that is over by a waiter's clock, its
/// `GETSET` wins if the old value is still the one that it saw.
#[derive(Clone)]
struct GetSet {
    redis: MultiplexedConnection,
    key: String,
    ttl: Duration,
    /// How fast its clock is.
    ahead: Duration,
}

impl GetSet {
    fn now(&self) -> i64 {
        now() + millis(self.ahead)
    }

    /// The lock's expiry, if it is over.
    async fn seen_expired(&mut self) -> Result<Option<i64>> {
        let seen: Option<i64> = cmd("GET").arg(&self.key).query_async(&mut self.redis).await?;
        Ok(seen.filter(|expiry| *expiry < self.now()))
    }

    /// Tries to be the successor of the holder with this expiry.
    async fn getset(&mut self, seen: i64) -> Result<bool> {
        let mut getset = cmd("GETSET");
        getset.arg(&self.key).arg(self.now() + millis(self.ttl));
        Ok(getset.query_async::<Option<i64>>(&mut self.redis).await? == Some(seen))
    }
}

pub(super) async fn getset(part: &Part) -> Result<Box<dyn Client>> {
    let (ttl, ahead) = match (part.accident, part.role) {
        (Accident::HolderDies, _) => (SHORT, Duration::ZERO),
        (_, Role::First) => (LONG, Duration::ZERO),
        _ => (LONG, HOUR),
    };
    let client = GetSet { redis: part.redis().await?, key: part.lock.clone(), ttl, ahead };
    Ok(match (part.accident, part.role) {
        (Accident::HolderDies, Role::First) => Box::new(Race(client)),
        _ => Box::new(client),
    })
}

#[async_trait]
impl Client for GetSet {
    async fn lock(&mut self) -> Result<Option<Token>> {
        loop {
            let mut setnx = cmd("SETNX");
            setnx.arg(&self.key).arg(self.now() + millis(self.ttl));
            if setnx.query_async(&mut self.redis).await? {
                return Ok(None);
            }
            if let Some(seen) = self.seen_expired().await?
                && self.getset(seen).await?
            {
                return Ok(None);
            }
            sleep(POLL).await;
        }
    }

    async fn unlock(&mut self) -> Result<()> {
        delete(&mut self.redis, &self.key).await
    }

    async fn why_locked(&mut self) -> Result<&'static str> {
        let expiry: i64 = cmd("GET").arg(&self.key).query_async(&mut self.redis).await?;
        let minutes_left = (expiry - self.now()) / 60_000;
        ensure!(minutes_left >= 59, "{minutes_left} minutes are left, not 59");
        Ok("locked for an hour")
    }
}

/// A holder that won the lock of a dead one against another, whose clock is fast. Both saw the same expiry.
struct Race(GetSet);

#[async_trait]
impl Client for Race {
    async fn lock(&mut self) -> Result<Option<Token>> {
        let Self(winner) = self;
        let (mut dead, mut loser) = (winner.clone(), GetSet { ahead: HOUR, ..winner.clone() });
        dead.lock().await?;
        let seen = loop {
            if let Some(seen) = winner.seen_expired().await? {
                break seen;
            }
            sleep(POLL).await;
        };
        ensure!(winner.getset(seen).await?, "neither client wins");
        ensure!(!loser.getset(seen).await?, "both clients win");
        Ok(None)
    }

    async fn unlock(&mut self) -> Result<()> {
        self.0.unlock().await
    }
}

/// Redlock, as the crate `rslock` has it: "Distributed Locks with Redis" in Redis's documentation.
struct Redlock {
    manager: LockManager,
    lock: String,
    ttl: Duration,
    guard: Option<LockGuard>,
}

pub(super) fn redlock(part: &Part) -> Box<dyn Client> {
    let ttl = if part.accident == Accident::Freeze { TTL } else { LONG };
    let (manager, lock) = (LockManager::new(part.at.clone()), part.lock.clone());
    Box::new(Redlock { manager, lock, ttl, guard: None })
}

#[async_trait]
impl Client for Redlock {
    async fn lock(&mut self) -> Result<Option<Token>> {
        let granted = self.manager.acquire(self.lock.as_bytes(), self.ttl).await;
        self.guard = Some(granted.context("the lock was not granted")?);
        Ok(None)
    }

    async fn unlock(&mut self) -> Result<()> {
        if let Some(guard) = self.guard.take() {
            guard.release().await;
        }
        Ok(())
    }
}

impl Part {
    async fn redis(&self) -> Result<MultiplexedConnection> {
        Ok(connect(&self.at[0]).await?)
    }
}

/// A connection of one client.
pub(crate) async fn connect(url: &str) -> RedisResult<MultiplexedConnection> {
    testkit::redis::connect(&redis::Client::open(url)?).await
}

async fn delete(redis: &mut MultiplexedConnection, key: &str) -> Result<()> {
    Ok(cmd("DEL").arg(key).query_async(redis).await?)
}

/// Milliseconds since 1970.
fn now() -> i64 {
    millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
