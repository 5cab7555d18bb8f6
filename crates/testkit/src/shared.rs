//! An etcd and a Redis for many tests, with a lock name and a database for each.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use ::redis::FromRedisValue;
use tokio::sync::OnceCell;

use crate::redis::{command, connect};
use crate::server::find_program;
use crate::{EtcdOptions, PrivateEtcd, PrivateRedis, RedisOptions};

/// Never dropped, because it is a static. Its guardian ends it with the process.
static ETCD: OnceCell<PrivateEtcd> = OnceCell::const_new();

/// The address of the etcd that tests share; no test stops it.
pub async fn shared_endpoint() -> String {
    let start = async || PrivateEtcd::start(EtcdOptions::default()).await.unwrap();
    ETCD.get_or_init(start).await.endpoint()
}

/// The `etcdctl` beside the etcd of the tests.
pub fn etcdctl() -> PathBuf {
    let etcd = find_program("FLASH_SALE_ETCD", &["etcd"]);
    etcd.expect("etcd is installed by `make setup`").with_file_name("etcdctl")
}

/// A lock name that no other test uses.
pub fn fresh_lock_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    format!("test-lock-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

static REDIS: OnceCell<PrivateRedis> = OnceCell::const_new();
static NEXT_DATABASE: AtomicU32 = AtomicU32::new(0);
const DATABASES: u32 = 256;

/// The URL of an empty database that no other test uses.
pub async fn fresh_database() -> String {
    let options = RedisOptions { databases: Some(DATABASES), ..RedisOptions::default() };
    let redis = REDIS.get_or_init(async || PrivateRedis::start(options).await.unwrap()).await;
    let database = NEXT_DATABASE.fetch_add(1, Ordering::Relaxed);
    assert!(database < DATABASES, "as many tests as databases");
    format!("{}/{database}", redis.url())
}

/// A connection to Redis that bypasses the inventory.
pub struct Raw(::redis::aio::MultiplexedConnection);

impl Raw {
    /// A connection to the database at this URL.
    pub async fn connect(url: &str) -> Self {
        let client = ::redis::Client::open(url).unwrap();
        Self(connect(&client).await.unwrap())
    }

    /// Runs `line`, split at spaces.
    pub async fn run<T: FromRedisValue>(&mut self, line: &str) -> T {
        command(line).query_async(&mut self.0).await.unwrap()
    }

    /// As [`run`](Self::run), with a last argument that may have spaces.
    pub async fn run_with<T: FromRedisValue>(&mut self, line: &str, last: &str) -> T {
        command(line).arg(last).query_async(&mut self.0).await.unwrap()
    }

    /// The serialized content of the database: equal dumps show that nothing was written.
    pub async fn dump(&mut self) -> Vec<(String, Vec<u8>)> {
        let mut keys: Vec<String> = self.run("KEYS *").await;
        keys.sort();
        let mut dump = Vec::new();
        for key in keys {
            let value: Vec<u8> = self.run(&format!("DUMP {key}")).await;
            dump.push((key, value));
        }
        dump
    }
}
