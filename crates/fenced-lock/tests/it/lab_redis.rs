//! Redis for the contract.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fenced_lock::{Backend, RedisBackend, RedisOptions, RedlockBackend, Token, Unfenced};
use testkit::shared::{Raw, fresh_database};
use testkit::{PrivateRedis, RedisOptions as ServerOptions};
use tokio::sync::OnceCell;

use super::lab::{FoundLab, Lab, ServerLab};

pub(crate) struct RedisLab {
    url: String,
}

impl RedisLab {
    /// A database of its own in a Redis that the tests of this process share.
    pub(crate) async fn shared() -> Self {
        Self { url: fresh_database().await }
    }

    pub(crate) fn of(redis: &PrivateRedis) -> Self {
        Self { url: redis.url() }
    }

    /// A connection of the server itself, past the library.
    pub(crate) async fn raw(&self) -> Raw {
        Raw::connect(&self.url).await
    }
}

impl Lab for RedisLab {
    type Token = Token;

    fn backend(&self) -> Arc<dyn Backend<Token = Token>> {
        Arc::new(RedisBackend::new(RedisOptions::new(&self.url)).unwrap())
    }

    async fn revoke(&self, lease: i64) {
        let key = format!("{{fenced-lock}}:session:{lease:x}");
        assert!(self.raw().await.run_with::<bool>("DEL", &key).await);
    }

    async fn delete(&self, key: &str) {
        let (name, claim) = key.rsplit_once('/').unwrap();
        let zrem = format!("ZREM {{fenced-lock}}:queue:{name}");
        assert!(self.raw().await.run_with::<bool>(&zrem, claim).await);
    }
}

impl FoundLab for RedisLab {
    fn address(&self) -> String {
        self.url.clone()
    }

    fn at(address: &str) -> Self {
        Self { url: address.to_owned() }
    }
}

impl ServerLab for RedisLab {
    type Kind = testkit::redis::Redis;

    const REQUESTS_OF_A_WAITER: u64 = 2;

    async fn start() -> (PrivateRedis, Self) {
        let redis = PrivateRedis::start(ServerOptions::default()).await.unwrap();
        let lab = Self::of(&redis);
        (redis, lab)
    }

    async fn requests(&self, redis: &PrivateRedis) -> u64 {
        let stats: String = redis.run("INFO commandstats").await.unwrap();
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        line.map_or(0, |line| line.split_once(',').unwrap().0.parse().unwrap())
    }

    /// All keys but the number of the latest grant.
    async fn claims_and_sessions(&self, redis: &PrivateRedis) -> (u64, u64) {
        let keys: Vec<String> = redis.run("KEYS *").await.unwrap();
        let (mut claims, mut sessions) = (0, 0);
        for key in keys {
            if key.contains(":queue:") {
                claims += redis.run::<u64>(&format!("ZCARD {key}")).await.unwrap();
            } else if key != "{fenced-lock}:last" {
                sessions += 1;
            }
        }
        (claims, sessions)
    }
}

/// Three Redis servers that know nothing of each other.
pub(crate) struct RedlockLab {
    urls: Vec<String>,
}

impl RedlockLab {
    /// A database of its own at each of three nodes that the tests of this process share.
    pub(crate) async fn shared() -> Self {
        static NODES: OnceCell<Vec<PrivateRedis>> = OnceCell::const_new();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let options = ServerOptions { databases: Some(256), volatile: true, ..Default::default() };
        let start = async || {
            let start = || PrivateRedis::start(options.clone());
            let nodes = tokio::try_join!(start(), start(), start()).unwrap();
            <[_; 3]>::from(nodes).into()
        };
        let nodes = NODES.get_or_init(start).await;
        let database = NEXT.fetch_add(1, Ordering::Relaxed);
        Self::new(nodes.iter().map(|node| format!("{}/{database}", node.url())))
    }

    pub(crate) fn of(nodes: &[PrivateRedis]) -> Self {
        Self::new(nodes.iter().map(PrivateRedis::url))
    }

    pub(crate) fn new(urls: impl IntoIterator<Item = String>) -> Self {
        Self { urls: urls.into_iter().collect() }
    }

    pub(crate) fn urls(&self) -> &[String] {
        &self.urls
    }
}

impl Lab for RedlockLab {
    type Token = Unfenced;

    fn backend(&self) -> Arc<dyn Backend<Token = Unfenced>> {
        Arc::new(RedlockBackend::new(self.urls.iter().map(RedisOptions::new)).unwrap())
    }

    /// The nodes know of no leases; an operator deletes the claims of one.
    async fn revoke(&self, _lease: i64) {
        for url in &self.urls {
            Raw::connect(url).await.run::<()>("FLUSHDB").await;
        }
    }

    async fn delete(&self, key: &str) {
        let (name, _) = key.rsplit_once('/').unwrap();
        for url in &self.urls {
            Raw::connect(url).await.run_with::<()>("DEL", name).await;
        }
    }
}

impl FoundLab for RedlockLab {
    fn address(&self) -> String {
        self.urls.join(" ")
    }

    fn at(address: &str) -> Self {
        Self::new(address.split(' ').map(str::to_owned))
    }
}
