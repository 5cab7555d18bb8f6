//! A Redis that many tests share, and databases in it that they do not.

use std::sync::atomic::{AtomicU32, Ordering};

use flash_sale::inventory::{Inventory, InventoryOptions, Item, Order, OrderId, Quantity, User};
use redis::FromRedisValue;
use testkit::{PrivateRedis, RedisOptions};
use tokio::sync::OnceCell;

/// Never dropped, as statics are not; it ends with the process, by its guardian.
static SHARED: OnceCell<PrivateRedis> = OnceCell::const_new();
static NEXT_DATABASE: AtomicU32 = AtomicU32::new(0);
const DATABASES: u32 = 256;

/// The URL of an empty database that no other test uses.
pub(crate) async fn fresh_database() -> String {
    let options = RedisOptions { databases: Some(DATABASES), ..RedisOptions::default() };
    let redis = SHARED.get_or_init(async || PrivateRedis::start(options).await.unwrap()).await;
    let database = NEXT_DATABASE.fetch_add(1, Ordering::Relaxed);
    assert!(database < DATABASES, "as many tests as databases");
    format!("{}/{database}", redis.url())
}

/// A connection to look and meddle with, past the inventory.
pub(crate) struct Raw(redis::aio::MultiplexedConnection);

impl Raw {
    pub(crate) async fn connect(url: &str) -> Self {
        let client = redis::Client::open(url).unwrap();
        Self(client.get_multiplexed_async_connection().await.unwrap())
    }

    /// Runs `line`, split at spaces.
    pub(crate) async fn run<T: FromRedisValue>(&mut self, line: &str) -> T {
        let mut command = redis::Cmd::new();
        command.arg(line.split(' ').collect::<Vec<_>>());
        command.query_async(&mut self.0).await.unwrap()
    }

    /// [`run`](Self::run), with a last argument that may have spaces.
    pub(crate) async fn run_with<T: FromRedisValue>(&mut self, line: &str, last: &str) -> T {
        let mut command = redis::Cmd::new();
        command.arg(line.split(' ').collect::<Vec<_>>()).arg(last);
        command.query_async(&mut self.0).await.unwrap()
    }

    /// Everything in the database, as Redis serializes it: equal dumps, nothing was written.
    pub(crate) async fn dump(&mut self) -> Vec<(String, Vec<u8>)> {
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

pub(crate) async fn connect(url: &str) -> Inventory {
    Inventory::connect(url, InventoryOptions::default()).await.unwrap()
}

/// An order of the default item for nobody in particular.
pub(crate) fn order(id: &str, units: u32) -> Order {
    Order {
        id: OrderId::new(id).unwrap(),
        item: Item::DEFAULT,
        quantity: Quantity::new(units).unwrap(),
        user: User::default(),
    }
}
