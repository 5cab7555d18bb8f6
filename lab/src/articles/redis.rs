//! The locks on Redis.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fenced_lock::{LockError, RedisBackend, RedisOptions, RedlockBackend, Token};
use flash_sale::inventory::{Inventory, InventoryOptions};
use redis::aio::MultiplexedConnection;
use redis::{Script, cmd};
use testkit::{OwnedDir, PrivateRedis, Proxy, RedisOptions as Server, ReplicatedRedis};
use tokio::time::sleep;
use uuid::Uuid;

use super::redlock::Redlock;
use super::story::{
    Buyer, Ending, LOCK, Ours, POLL, Shop, TTL, Waiting, connect, need, next_buys, no_accident,
    ours_buys, ours_dies, ours_gives_back_late, proxy_to, two_buy, until,
};
use super::{Flaw, Floor};
use crate::error::LabError;
use demo::store_fence::StoreFence;

/// The TTL of an article's lock in these stories. The articles have 5 to 30 s.
const ARTICLE_TTL: Duration = Duration::from_millis(400);

/// A TTL that does not end in a story.
const LONG: Duration = Duration::from_secs(30);

/// Deletes the key if it has this value.
pub(crate) const COMPARE_AND_DELETE: &str = "
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0";

/// `SET key value NX EX` with a random value, and a script that deletes the key only with this value: the pages "SET" and
/// "Distributed Locks with Redis" of Redis's documentation, and the last step of articles such as "Mastering Redis
/// Distributed Locks: From SETNX+Lua to Redisson with Go Examples".
struct SetNx {
    redis: MultiplexedConnection,
    key: String,
    value: String,
    ttl: Duration,
}

impl SetNx {
    async fn new(url: &str, key: &str, ttl: Duration) -> Result<Self, LabError> {
        let (redis, value) = (connect(url).await?, Uuid::new_v4().to_string());
        Ok(Self { redis, key: key.to_owned(), value, ttl })
    }
}

impl Buyer for SetNx {
    async fn lock(&mut self) -> Result<Option<Token>, LabError> {
        let mut set = cmd("SET");
        set.arg(&self.key).arg(&self.value).arg("NX").arg("PX").arg(millis(self.ttl));
        while !set.query_async(&mut self.redis).await? {
            sleep(POLL).await;
        }
        Ok(None)
    }

    async fn unlock(&mut self) -> Result<(), LabError> {
        let script = Script::new(COMPARE_AND_DELETE);
        script.key(&self.key).arg(&self.value).invoke_async::<()>(&mut self.redis).await?;
        Ok(())
    }
}

/// `SETNX`, then `EXPIRE`: "482.基于 Redis 分布式锁" and other collections for interviews, and the step that "Why Redis
/// Distributed Locks Fail and How to Fix Leak and Mis-Release Issues" corrects. The value is the user, the time 30 s.
struct SetNxExpire {
    redis: MultiplexedConnection,
    key: String,
    user: &'static str,
}

impl SetNxExpire {
    async fn setnx(&mut self) -> Result<bool, LabError> {
        Ok(cmd("SETNX").arg(&self.key).arg(self.user).query_async(&mut self.redis).await?)
    }
}

impl Buyer for SetNxExpire {
    async fn lock(&mut self) -> Result<Option<Token>, LabError> {
        while !self.setnx().await? {
            sleep(POLL).await;
        }
        cmd("EXPIRE").arg(&self.key).arg(30).query_async::<()>(&mut self.redis).await?;
        Ok(None)
    }

    async fn unlock(&mut self) -> Result<(), LabError> {
        Ok(cmd("DEL").arg(&self.key).query_async(&mut self.redis).await?)
    }
}

/// `SETEX`, which sets the value and the time in one step: an answer to "如何使用Redis实现分布式锁?" (how to lock with Redis) on
/// nowcoder.com. It always succeeds, since it overwrites.
struct SetEx {
    redis: MultiplexedConnection,
    key: String,
    user: &'static str,
}

impl Buyer for SetEx {
    async fn lock(&mut self) -> Result<Option<Token>, LabError> {
        let mut setex = cmd("SETEX");
        setex.arg(&self.key).arg(30).arg(self.user);
        while !setex.query_async::<String>(&mut self.redis).await?.eq("OK") {
            sleep(POLL).await;
        }
        Ok(None)
    }

    async fn unlock(&mut self) -> Result<(), LabError> {
        Ok(cmd("DEL").arg(&self.key).query_async(&mut self.redis).await?)
    }
}

/// `SET key value NX EX`, and a release by the holder's own clock: what has not expired must be one's own, so it is
/// deleted. Check and deletion are two steps besides.
struct OwnClock {
    redis: MultiplexedConnection,
    key: String,
    clock: Clock,
    expires_at: i64,
}

impl OwnClock {
    async fn new(url: &str, key: &str) -> Result<Self, LabError> {
        let redis = connect(url).await?;
        Ok(Self { redis, key: key.to_owned(), clock: Clock::default(), expires_at: 0 })
    }
}

impl Buyer for OwnClock {
    async fn lock(&mut self) -> Result<Option<Token>, LabError> {
        let mut set = cmd("SET");
        set.arg(&self.key).arg("locked").arg("NX").arg("PX").arg(millis(ARTICLE_TTL));
        while !set.query_async(&mut self.redis).await? {
            sleep(POLL).await;
        }
        self.expires_at = self.clock.now() + millis(ARTICLE_TTL);
        Ok(None)
    }

    async fn unlock(&mut self) -> Result<(), LabError> {
        if self.clock.now() < self.expires_at {
            cmd("DEL").arg(&self.key).query_async::<()>(&mut self.redis).await?;
        }
        Ok(())
    }
}

/// `SETNX` and `GETSET` with time stamps: "Design pattern: Locking with SETNX" on the page "SETNX" of Redis's
/// documentation. The value is when the lock expires, by its holder's clock. When that is over by a waiter's clock, its
/// `GETSET` wins if the old value is still the one that it saw.
struct GetSet {
    redis: MultiplexedConnection,
    key: String,
    clock: Clock,
    ttl: Duration,
}

impl GetSet {
    async fn new(url: &str, key: &str, ahead: Duration) -> Result<Self, LabError> {
        let clock = Clock { offset: millis(ahead) };
        Ok(Self { redis: connect(url).await?, key: key.to_owned(), clock, ttl: ARTICLE_TTL })
    }

    fn expiry(&self) -> i64 {
        self.clock.now() + millis(self.ttl)
    }

    /// The lock's expiry, if it is over.
    async fn seen_expired(&mut self) -> Result<Option<i64>, LabError> {
        let seen: Option<i64> = cmd("GET").arg(&self.key).query_async(&mut self.redis).await?;
        Ok(seen.filter(|expiry| *expiry < self.clock.now()))
    }

    /// Tries to be the successor of the holder with this expiry.
    async fn getset(&mut self, seen: i64) -> Result<bool, LabError> {
        let mut getset = cmd("GETSET");
        getset.arg(&self.key).arg(self.expiry());
        Ok(getset.query_async::<Option<i64>>(&mut self.redis).await? == Some(seen))
    }
}

impl Buyer for GetSet {
    async fn lock(&mut self) -> Result<Option<Token>, LabError> {
        loop {
            let mut setnx = cmd("SETNX");
            setnx.arg(&self.key).arg(self.expiry());
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

    async fn unlock(&mut self) -> Result<(), LabError> {
        Ok(cmd("DEL").arg(&self.key).query_async(&mut self.redis).await?)
    }
}

/// The wall clock of one process, which NTP or an operator has set so many milliseconds wrong.
#[derive(Clone, Copy, Default)]
struct Clock {
    offset: i64,
}

impl Clock {
    /// Milliseconds since 1970.
    fn now(self) -> i64 {
        millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()) + self.offset
    }
}

/// The servers: one Redis for the locks, and the stock's.
pub(super) struct RedisFloor {
    dir: OwnedDir,
    shop: PrivateRedis,
    lock: PrivateRedis,
}

impl Floor for RedisFloor {
    const NAME: &str = "Redis";

    const FLAWS: &[Flaw<Self>] = &[
        Flaw {
            lock: "redis-set-nx",
            what: "the holder is paused past the TTL",
            story: |floor| Box::pin(paused(floor)),
        },
        Flaw {
            lock: "redis-set-nx",
            what: "a replica takes over before it has the lock",
            story: |floor| Box::pin(failed_over(floor)),
        },
        Flaw {
            lock: "redis-setnx-expire",
            what: "the client dies between the two commands",
            story: |floor| Box::pin(died_in_between(floor)),
        },
        Flaw {
            lock: "redis-setex",
            what: "it overwrites: everybody gets the lock",
            story: |floor| Box::pin(overwritten(floor)),
        },
        Flaw {
            lock: "redis-own-clock",
            what: "the holder's clock is set back: it deletes its successor's lock",
            story: |floor| Box::pin(deleted(floor)),
        },
        Flaw {
            lock: "redis-getset",
            what: "a client with a fast clock takes a live lock",
            story: |floor| Box::pin(fast_clock(floor)),
        },
        Flaw {
            lock: "redis-getset",
            what: "a loser whose clock is an hour fast moves the expiry of a winner that dies",
            story: |floor| Box::pin(moved_expiry(floor)),
        },
        Flaw {
            lock: "redlock",
            what: "the holder is paused past the TTL",
            story: |floor| Box::pin(redlock(floor, Accident::Pause)),
        },
        Flaw {
            lock: "redlock",
            what: "the clock of a node jumps",
            story: |floor| Box::pin(redlock(floor, Accident::ClockJump)),
        },
        Flaw {
            lock: "redlock",
            what: "a node without persistence is started again",
            story: |floor| Box::pin(redlock(floor, Accident::Restart)),
        },
    ];

    fn is_installed() -> bool {
        true
    }

    async fn start() -> Result<Self, LabError> {
        let dir = OwnedDir::create().map_err(LabError::system("no directory could be made"))?;
        let (shop, lock) = (volatile(&dir).await?, volatile(&dir).await?);
        Ok(Self { dir, shop, lock })
    }

    async fn stop(self) -> std::io::Result<()> {
        let Self { dir, shop, lock } = self;
        shop.stop().await?;
        lock.stop().await?;
        dir.remove().await
    }
}

impl RedisFloor {
    async fn shop(&self) -> Result<Shop, LabError> {
        Shop::open(&self.shop, 1).await
    }

    /// A buyer under `fenced-lock`.
    async fn ours(&self, shop: &Shop) -> Result<Ours, LabError> {
        ours(&self.lock.url(), &shop.lock, TTL).await
    }

    /// One whose process can be paused: it sends nothing while its proxy holds everything up.
    async fn ours_to_pause(&self, shop: &Shop) -> Result<(Ours, Proxy), LabError> {
        let proxy = proxy_to(self.lock.port()).await?;
        Ok((ours(&url(&proxy), &shop.lock, TTL).await?, proxy))
    }
}

async fn paused(floor: &RedisFloor) -> Result<[Ending; 2], LabError> {
    let (shop, url) = (floor.shop().await?, floor.lock.url());
    let first = SetNx::new(&url, &shop.lock, ARTICLE_TTL).await?;
    let second = SetNx::new(&url, &shop.lock, ARTICLE_TTL).await?;
    // it renews nothing, so it is paused for as long as it does not go on
    let article = no_accident(shop, first, second).await?;

    let shop = floor.shop().await?;
    let ((first, proxy), second) = (floor.ours_to_pause(&shop).await?, floor.ours(&shop).await?);
    let pause = async || {
        proxy.freeze();
        Ok(())
    };
    Ok([article, two_buy(shop, first, second, pause).await?])
}

/// Three units, of which one was sold before, so that the fence knows the cluster of the tokens.
async fn failed_over(floor: &RedisFloor) -> Result<[Ending; 2], LabError> {
    let pair = replicated(&floor.dir).await?;
    let mut shop = Shop::open(&floor.shop, 3).await?;
    let mut first = SetNx::new(&pair.url(), &shop.lock, LONG).await?;
    shop.sell_one(&mut first).await?;
    pair.hold_writes_back().await?;
    // it connects to the replica, once that is the primary
    let second = SetNx::new(&pair.replica.url(), &shop.lock, LONG).await?;
    let article = two_buy(shop, first, second, async || Ok(pair.fail_over().await?)).await?;

    let pair = replicated(&floor.dir).await?;
    let mut shop = Shop::open(&floor.shop, 3).await?;
    let mut first = ours(&pair.url(), &shop.lock, LONG).await?;
    let second = ours(&pair.url(), &shop.lock, LONG).await?;
    shop.sell_one(&mut first).await?;
    pair.hold_writes_back().await?;
    let ours = two_buy(shop, first, second, async || Ok(pair.fail_over().await?)).await?;
    Ok([article, ours])
}

async fn died_in_between(floor: &RedisFloor) -> Result<[Ending; 2], LabError> {
    let shop = floor.shop().await?;
    let buyer = async |user| {
        let redis = connect(&floor.lock.url()).await?;
        Ok::<_, LabError>(SetNxExpire { redis, key: shop.lock.clone(), user })
    };
    let (mut first, next) = (buyer("first").await?, buyer("next").await?);
    need("the lock was free", first.setnx().await?)?;
    drop(first);
    let ask = format!("PTTL {}", shop.lock);
    let why = async |_: &mut _| {
        // -1: it has no TTL
        need("the key has no TTL", floor.lock.run::<i64>(&ask).await? == -1)?;
        Ok("locked for ever")
    };
    let article = next_buys(shop, next, why).await?;

    let shop = floor.shop().await?;
    let (first, next) = (floor.ours_to_pause(&shop).await?, floor.ours(&shop).await?);
    Ok([article, ours_dies(shop, first, next).await?])
}

async fn overwritten(floor: &RedisFloor) -> Result<[Ending; 2], LabError> {
    let shop = floor.shop().await?;
    let buyer = async |user| {
        let redis = connect(&floor.lock.url()).await?;
        Ok::<_, LabError>(SetEx { redis, key: shop.lock.clone(), user })
    };
    let (first, second) = (buyer("first").await?, buyer("second").await?);
    let article = no_accident(shop, first, second).await?;

    let shop = floor.shop().await?;
    let (first, second) = (floor.ours(&shop).await?, floor.ours(&shop).await?);
    Ok([article, no_accident(shop, first, second).await?])
}

async fn deleted(floor: &RedisFloor) -> Result<[Ending; 2], LabError> {
    let (shop, url) = (floor.shop().await?, floor.lock.url());
    let mut early = OwnClock::new(&url, &shop.lock).await?;
    let first = OwnClock::new(&url, &shop.lock).await?;
    let second = OwnClock::new(&url, &shop.lock).await?;
    early.lock().await?;
    early.clock.offset = -millis(Duration::from_hours(1));
    // the first one of the others waits until the TTL is over, and is the successor
    let release = async || early.unlock().await;
    let article = two_buy(shop, first, second, release).await?;

    let shop = floor.shop().await?;
    let early = floor.ours_to_pause(&shop).await?;
    let others = [floor.ours(&shop).await?, floor.ours(&shop).await?];
    Ok([article, ours_gives_back_late(shop, early, others).await?])
}

async fn fast_clock(floor: &RedisFloor) -> Result<[Ending; 2], LabError> {
    let (shop, url) = (floor.shop().await?, floor.lock.url());
    let first = GetSet::new(&url, &shop.lock, Duration::ZERO).await?;
    let second = GetSet::new(&url, &shop.lock, Duration::from_hours(1)).await?;
    let article = no_accident(shop, first, second).await?;

    let shop = floor.shop().await?;
    let (first, second) = (floor.ours(&shop).await?, floor.ours(&shop).await?);
    Ok([article, no_accident(shop, first, second).await?])
}

async fn moved_expiry(floor: &RedisFloor) -> Result<[Ending; 2], LabError> {
    let (shop, url) = (floor.shop().await?, floor.lock.url());
    let mut dead = GetSet::new(&url, &shop.lock, Duration::ZERO).await?;
    let mut winner = GetSet::new(&url, &shop.lock, Duration::ZERO).await?;
    let mut loser = GetSet::new(&url, &shop.lock, Duration::from_hours(1)).await?;
    let next = GetSet::new(&url, &shop.lock, Duration::ZERO).await?;
    dead.lock().await?;
    drop(dead);
    let mut seen = None;
    until("the lock has expired", async || {
        seen = winner.seen_expired().await?;
        Ok(seen.is_some())
    })
    .await?;
    let seen = seen.expect("that is what was awaited");
    // both saw the same expiry
    need("one client wins", winner.getset(seen).await?)?;
    need("the other one loses", !loser.getset(seen).await?)?;
    drop((winner, loser));
    let why = async |next: &mut GetSet| {
        let expiry: i64 = cmd("GET").arg(&next.key).query_async(&mut next.redis).await?;
        let left = expiry - next.clock.now();
        need("59 minutes are left", left > millis(Duration::from_mins(59)))?;
        Ok("locked for an hour")
    };
    let article = next_buys(shop, next, why).await?;

    let shop = floor.shop().await?;
    let ((mut winner, proxy), loser) =
        (floor.ours_to_pause(&shop).await?, floor.ours(&shop).await?);
    let next = floor.ours(&shop).await?;
    winner.lock().await?;
    let loser = Waiting::start(loser);
    until("the loser asks", async || Ok(next.queue_length().await? == 2)).await?;
    loser.end().await;
    proxy.freeze();
    Ok([article, ours_buys(shop, next).await?])
}

/// What happens to the majority of a Redlock.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Accident {
    Pause,
    /// Of the node that both majorities share.
    ClockJump,
    Restart,
}

/// The first buyer has nodes 1 and 2, and does not reach node 3. What happens to node 2 lets the second one have nodes 2
/// and 3.
async fn redlock(floor: &RedisFloor, accident: Accident) -> Result<[Ending; 2], LabError> {
    let is_paused = accident == Accident::Pause;
    let mut nodes = Nodes::start(&floor.dir).await?;
    let shop = floor.shop().await?;
    let expiry = if is_paused { TTL } else { Redlock::EXPIRY };
    let first = Redlock::new(&nodes.proxied(), &shop.lock, expiry)?;
    nodes.proxies[2].refuse();
    let second = Redlock::new(&nodes.direct(), &shop.lock, expiry)?;
    let lock = shop.lock.clone();
    let happens = async || nodes.suffer(accident, &lock).await;
    let article = two_buy(shop, first, second, happens).await?;

    let mut nodes = Nodes::start(&floor.dir).await?;
    let shop = floor.shop().await?;
    let ttl = if is_paused { TTL } else { LONG };
    let first = redlock_of_ours(floor, &nodes.proxied(), &shop.lock, ttl).await?;
    nodes.proxies[2].refuse();
    let second = redlock_of_ours(floor, &nodes.direct(), &shop.lock, ttl).await?;
    let lock = shop.lock.clone();
    let happens = async || nodes.suffer(accident, &lock).await;
    Ok([article, two_buy(shop, first, second, happens).await?])
}

/// Our Redlock, with the tokens of the stock.
async fn redlock_of_ours(
    floor: &RedisFloor,
    urls: &[String],
    lock: &str,
    ttl: Duration,
) -> Result<Ours, LabError> {
    let node = |url: &String| RedisOptions {
        request_timeout: Duration::from_millis(150),
        ..RedisOptions::new(url)
    };
    let redlock = RedlockBackend::new(urls.iter().map(node)).map_err(LockError::from)?;
    let shop = Inventory::connect(&*floor.shop.url(), InventoryOptions::default()).await;
    let shop = shop.map_err(|error| LabError::System {
        what: "the stock cannot be reached",
        source: std::io::Error::other(error),
    })?;
    Ours::open(StoreFence::new(Arc::new(redlock), shop, LOCK), lock, ttl).await
}

/// Three Redis that know nothing of each other.
struct Nodes {
    servers: Vec<PrivateRedis>,
    /// The way of the first buyer to each.
    proxies: Vec<Proxy>,
}

impl Nodes {
    async fn start(dir: &OwnedDir) -> Result<Self, LabError> {
        let (mut servers, mut proxies) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let server = volatile(dir).await?;
            proxies.push(proxy_to(server.port()).await?);
            servers.push(server);
        }
        Ok(Self { servers, proxies })
    }

    fn proxied(&self) -> Vec<String> {
        self.proxies.iter().map(url).collect()
    }

    fn direct(&self) -> Vec<String> {
        self.servers.iter().map(PrivateRedis::url).collect()
    }

    async fn suffer(&mut self, accident: Accident, lock: &str) -> Result<(), LabError> {
        let node = &mut self.servers[1];
        match accident {
            Accident::Pause => self.proxies.iter().for_each(Proxy::freeze),
            // the key's date is over at once, which is all that a clock that is set forward does to it
            Accident::ClockJump => node.run(&format!("PEXPIREAT {lock} 1")).await?,
            Accident::Restart => node.restart().await?,
        }
        Ok(())
    }
}

async fn ours(url: &str, lock: &str, ttl: Duration) -> Result<Ours, LabError> {
    let backend = RedisBackend::new(RedisOptions::new(url)).map_err(LockError::from)?;
    Ours::open(backend, lock, ttl).await
}

async fn volatile(dir: &OwnedDir) -> Result<PrivateRedis, LabError> {
    Ok(PrivateRedis::start_in(dir, in_memory()).await?)
}

fn in_memory() -> Server {
    Server { volatile: true, ..Server::default() }
}

async fn replicated(dir: &OwnedDir) -> Result<ReplicatedRedis, LabError> {
    Ok(ReplicatedRedis::start_in(dir, in_memory()).await?)
}

fn url(proxy: &Proxy) -> String {
    proxy.url().replace("http:", "redis:")
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
