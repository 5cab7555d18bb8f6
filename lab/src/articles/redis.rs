//! The locks on Redis.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use fenced_lock::Token;
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, RedisError, RedisResult, Script, ToRedisArgs, cmd};
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

/// For a command that has a key and no more.
const ALONE: Option<&str> = None;

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
    Ok(Box::new(SetNx::new(connect(&part.at[0]).await?, &part.lock, ttl, POLL)))
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
    key: Key,
    dies_in_between: bool,
}

pub(super) async fn setnx_expire(part: &Part) -> Result<Box<dyn Client>> {
    let dies_in_between = part.role == Role::First;
    Ok(Box::new(SetNxExpire { key: Key::of(part).await?, dies_in_between }))
}

#[async_trait]
impl Client for SetNxExpire {
    async fn lock(&mut self) -> Result<Option<Token>> {
        while !self.key.ask("SETNX", "user").await? {
            sleep(POLL).await;
        }
        if !self.dies_in_between {
            self.key.ask::<()>("EXPIRE", 30).await?;
        }
        Ok(None)
    }

    async fn unlock(&mut self) -> Result<()> {
        self.key.delete().await
    }

    async fn why_locked(&mut self) -> Result<&'static str> {
        let left: i64 = self.key.ask("PTTL", ALONE).await?;
        // that is the answer for a key without a TTL
        ensure!(left == -1, "the key has a TTL");
        Ok("locked for ever")
    }
}

/// `SETEX`, which sets the value and the time in one step: an answer to "如何使用Redis实现分布式锁?" (how to lock with Redis) on
/// nowcoder.com. It always succeeds, since it overwrites.
struct SetEx(Key);

pub(super) async fn setex(part: &Part) -> Result<Box<dyn Client>> {
    Ok(Box::new(SetEx(Key::of(part).await?)))
}

#[async_trait]
impl Client for SetEx {
    async fn lock(&mut self) -> Result<Option<Token>> {
        self.0.ask::<()>("SETEX", (30, "user")).await?;
        Ok(None)
    }

    async fn unlock(&mut self) -> Result<()> {
        self.0.delete().await
    }
}

/// `SET key value NX EX`, and a release by the holder's own clock: what has not expired must be one's own, so it is
/// deleted. Check and deletion are two steps besides.
struct OwnClock {
    key: Key,
    ttl: Duration,
    /// By how much the clock is set back while it has the lock.
    set_back: Duration,
    expires_at: i64,
}

pub(super) async fn own_clock(part: &Part) -> Result<Box<dyn Client>> {
    let (ttl, set_back) =
        if part.role == Role::Early { (SHORT, HOUR) } else { (LONG, Duration::ZERO) };
    Ok(Box::new(OwnClock { key: Key::of(part).await?, ttl, set_back, expires_at: 0 }))
}

#[async_trait]
impl Client for OwnClock {
    async fn lock(&mut self) -> Result<Option<Token>> {
        while !self.key.ask("SET", ("locked", "NX", "PX", millis(self.ttl))).await? {
            sleep(POLL).await;
        }
        self.expires_at = now() + millis(self.ttl);
        Ok(None)
    }

    async fn unlock(&mut self) -> Result<()> {
        if now() - millis(self.set_back) < self.expires_at {
            self.key.delete().await?;
        }
        Ok(())
    }
}

/// `SETNX` and `GETSET` with time stamps: "Design pattern: Locking with SETNX" on the page "SETNX" of Redis's
/// documentation. The value is when the lock expires, by its holder's clock. When that is over by a waiter's clock, its
/// `GETSET` wins if the old value is still the one that it saw.
#[derive(Clone)]
struct GetSet {
    key: Key,
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
        let seen: Option<i64> = self.key.ask("GET", ALONE).await?;
        Ok(seen.filter(|expiry| *expiry < self.now()))
    }

    /// Tries to be the successor of the holder with this expiry.
    async fn getset(&mut self, seen: i64) -> Result<bool> {
        let expiry = self.now() + millis(self.ttl);
        Ok(self.key.ask::<Option<i64>>("GETSET", expiry).await? == Some(seen))
    }
}

pub(super) async fn getset(part: &Part) -> Result<Box<dyn Client>> {
    let (ttl, ahead) = match (part.accident, part.role) {
        (Accident::HolderDies, _) => (SHORT, Duration::ZERO),
        (_, Role::First) => (LONG, Duration::ZERO),
        _ => (LONG, HOUR),
    };
    let client = GetSet { key: Key::of(part).await?, ttl, ahead };
    Ok(match (part.accident, part.role) {
        (Accident::HolderDies, Role::First) => Box::new(Race(client)),
        _ => Box::new(client),
    })
}

#[async_trait]
impl Client for GetSet {
    async fn lock(&mut self) -> Result<Option<Token>> {
        loop {
            if self.key.ask("SETNX", self.now() + millis(self.ttl)).await? {
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
        self.key.delete().await
    }

    async fn why_locked(&mut self) -> Result<&'static str> {
        let expiry: i64 = self.key.ask("GET", ALONE).await?;
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

/// The key of a lock, over a connection of one client.
#[derive(Clone)]
struct Key {
    redis: MultiplexedConnection,
    name: String,
}

impl Key {
    async fn of(part: &Part) -> Result<Self> {
        Ok(Self { redis: connect(&part.at[0]).await?, name: part.lock.clone() })
    }

    /// Sends a command about the key.
    async fn ask<T: FromRedisValue>(&mut self, command: &str, args: impl ToRedisArgs) -> Result<T> {
        Ok(cmd(command).arg(&self.name).arg(args).query_async(&mut self.redis).await?)
    }

    async fn delete(&mut self) -> Result<()> {
        self.ask("DEL", ALONE).await
    }
}

/// A connection of one client.
pub(crate) async fn connect(url: &str) -> RedisResult<MultiplexedConnection> {
    testkit::redis::connect(&redis::Client::open(url)?).await
}

/// Milliseconds since 1970.
fn now() -> i64 {
    millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
