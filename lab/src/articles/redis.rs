//! The locks on Redis.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use fenced_lock::Token;
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, RedisResult, Script, ToRedisArgs, cmd};
use rslock::{LockGuard, LockManager};
use tokio::time::sleep;
use uuid::Uuid;

use super::story::{Accident, LONG, TTL};
use super::{Article, Part, Role};
use crate::clients::Client;

/// The TTL of a lock that expires during a story. The articles have 5 to 30 s.
const SHORT: Duration = Duration::from_millis(400);

const HOUR: Duration = Duration::from_hours(1);

/// How often a waiter asks: the default of `Lock` in `redis-py`.
pub(super) const POLL: Duration = Duration::from_millis(100);

/// For a command whose only argument is the key.
const ALONE: Option<&str> = None;

/// Deletes the key if it has this value.
const COMPARE_AND_DELETE: &str = "
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0";

/// The locks that are one key of one Redis, each with a few commands. A waiter asks again and again.
///
/// - `redis-set-nx`: `SET key value NX EX` with a random value, and a script that deletes the key only with this value:
///   the pages "SET" and "Distributed Locks with Redis" of Redis's documentation, and the last step of articles such as
///   "Mastering Redis Distributed Locks: From SETNX+Lua to Redisson with Go Examples".
/// - `redis-setnx-expire`: `SETNX`, then `EXPIRE`: "482.基于 Redis 分布式锁" and other collections for interviews, and the step that
///   "Why Redis Distributed Locks Fail and How to Fix Leak and Mis-Release Issues" corrects. The time is 30 s.
/// - `redis-setex`: sets the value and the time in one step: an answer to "如何使用Redis实现分布式锁?" (how to lock with Redis)
///   on nowcoder.com. It always succeeds, since it overwrites.
/// - `redis-own-clock`: `SET key value NX EX`, and a release by the holder's own clock: if the lock has not expired by this clock,
///   the release takes it for the holder's and deletes it. The check and the deletion are two steps besides.
/// - `redis-getset`: `SETNX` and `GETSET` with time stamps: "Design pattern: Locking with SETNX" on the page "SETNX" of Redis's
///   documentation. The value is when the lock expires, by its holder's clock. When that time is over by a waiter's clock, the
///   waiter's `GETSET` wins if it returns the value that the waiter saw.
pub(super) struct OneKey {
    article: Article,
    redis: MultiplexedConnection,
    key: String,
    value: String,
    ttl: Duration,
    /// When its lock expires, by the client's own clock.
    expires_at: i64,
    /// How far the client's clock is ahead.
    ahead: Duration,
    /// Whether the client dies while it has the lock.
    dies: bool,
}

impl OneKey {
    pub(super) async fn open(part: &Part<'_>) -> Result<Self> {
        let expires = matches!(part.accident, Accident::Freeze | Accident::HolderDies);
        let is_fast = part.accident == Accident::TimePasses && part.role == Role::Second;
        Ok(Self {
            article: part.article,
            redis: connect(&part.at[0]).await?,
            key: part.lock.to_owned(),
            value: Uuid::new_v4().to_string(),
            ttl: if expires || part.role == Role::Early { SHORT } else { LONG },
            expires_at: 0,
            ahead: if is_fast { HOUR } else { Duration::ZERO },
            dies: part.accident == Accident::HolderDies && part.role == Role::First,
        })
    }

    async fn ask<T: FromRedisValue>(&self, command: &str, args: impl ToRedisArgs) -> Result<T> {
        Ok(cmd(command).arg(&self.key).arg(args).query_async(&mut self.redis.clone()).await?)
    }

    async fn try_lock(&mut self) -> Result<bool> {
        let expiry = self.now() + millis(self.ttl);
        match self.article {
            Article::RedisSetnxExpire => {
                let is_set = self.ask("SETNX", "user").await?;
                // a client that dies, dies between the two commands
                if is_set && !self.dies {
                    self.ask::<()>("EXPIRE", 30).await?;
                }
                Ok(is_set)
            }
            Article::RedisSetex => {
                self.ask::<()>("SETEX", (30, "user")).await?;
                Ok(true)
            }
            Article::RedisGetset => {
                if self.ask("SETNX", expiry).await? {
                    return Ok(true);
                }
                let seen: Option<i64> = self.ask("GET", ALONE).await?;
                Ok(seen.is_some_and(|until| until < self.now())
                    && seen == self.ask::<Option<i64>>("GETSET", expiry).await?)
            }
            _ => {
                self.expires_at = expiry;
                self.ask("SET", (&self.value, "NX", "PX", millis(self.ttl))).await
            }
        }
    }

    /// Milliseconds since 1970 by its clock.
    fn now(&self) -> i64 {
        millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + self.ahead)
    }
}

#[async_trait]
impl Client for OneKey {
    async fn lock(&mut self) -> Result<Option<Token>> {
        while !self.try_lock().await? {
            sleep(POLL).await;
        }
        Ok(None)
    }

    async fn unlock(&mut self) -> Result<()> {
        match self.article {
            Article::RedisSetNx => {
                let script = Script::new(COMPARE_AND_DELETE);
                let mut delete = script.key(&self.key);
                Ok(delete.arg(&self.value).invoke_async(&mut self.redis).await?)
            }
            // meanwhile the client's clock was set back by an hour
            Article::RedisOwnClock if self.now() - millis(HOUR) >= self.expires_at => Ok(()),
            _ => self.ask("DEL", ALONE).await,
        }
    }

    async fn why_locked(&mut self) -> Result<&'static str> {
        let left: i64 = self.ask("PTTL", ALONE).await?;
        // Redis' answer for a key without a TTL
        ensure!(left == -1, "the key has a TTL");
        Ok("locked for ever")
    }
}

/// Redlock of the crate `rslock`: "Distributed Locks with Redis" in Redis's documentation.
pub(super) struct RsLock {
    manager: LockManager,
    lock: String,
    ttl: Duration,
    guard: Option<LockGuard>,
}

impl RsLock {
    pub(super) fn of(part: &Part<'_>) -> Self {
        let ttl = if part.accident == Accident::Freeze { TTL } else { LONG };
        let manager = LockManager::new(part.at.clone());
        Self { manager, lock: part.lock.to_owned(), ttl, guard: None }
    }
}

#[async_trait]
impl Client for RsLock {
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

/// A connection of one client.
pub(super) async fn connect(url: &str) -> RedisResult<MultiplexedConnection> {
    testkit::redis::connect(&redis::Client::open(url)?).await
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
