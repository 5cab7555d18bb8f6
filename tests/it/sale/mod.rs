//! Where lock meets stock: the sale over a real etcd and a real Redis.

mod combining;
mod sold_out;

use std::time::Duration;

use fenced_lock::SessionKeeper;
use flash_sale::inventory::{Accepted, Inventory, InventoryOptions, Item, Order, OrderId, Outcome};
use flash_sale::sale::{Sale, SaleOptions};
use testkit::Proxy;
use testkit::shared::fresh_database;
use testkit::shared::{fresh_lock_name, shared_endpoint};
use testkit::wait::eventually;

use crate::support::etcd::sessions;
use crate::support::store::order;

/// A stock of one's own, and the lock that guards it.
struct Market {
    etcd: String,
    redis: String,
    lock_name: String,
}

/// One instance's sale, and its sessions.
struct Instance {
    sale: Sale,
    sessions: SessionKeeper,
}

impl Market {
    /// With a sale of so many units.
    async fn of(units: u64) -> Self {
        let (etcd, redis) = (shared_endpoint().await, fresh_database().await);
        let market = Self { etcd, redis, lock_name: fresh_lock_name() };
        market.inventory().start(&Item::DEFAULT, None, units).await.unwrap();
        market
    }

    fn inventory(&self) -> Inventory {
        Inventory::new(&self.redis, InventoryOptions::default()).unwrap()
    }

    fn options(&self, name: &str) -> SaleOptions {
        SaleOptions {
            lock_name: self.lock_name.clone(),
            instance: name.into(),
            queue_length: 1000,
            batch_size: 100,
            tenure: Duration::from_millis(2),
            wait_timeout: Duration::from_secs(20),
        }
    }

    fn instance(&self, name: &str) -> Instance {
        let sessions = sessions(&self.etcd, name);
        let sale = Sale::guarded(self.inventory(), sessions.clone(), self.options(name));
        Instance { sale, sessions }
    }

    /// The same market, its store seen through a proxy.
    async fn through_proxy(&self) -> (Self, Proxy) {
        let address = self.redis.strip_prefix("redis://127.0.0.1:").unwrap();
        let (port, database) = address.split_once('/').unwrap();
        let proxy = Proxy::to(port.parse().unwrap()).await.unwrap();
        let redis = format!("redis://127.0.0.1:{}/{database}", proxy.port());
        let (etcd, lock_name) = (self.etcd.clone(), self.lock_name.clone());
        (Self { etcd, redis, lock_name }, proxy)
    }

    async fn ledger(&self) -> Vec<Accepted> {
        self.inventory().ledger(&Item::DEFAULT, 0, 1000).await.unwrap()
    }
}

impl Instance {
    /// Sells single units until the instance keeps the lock from one to the next, and returns the last
    /// one. At first it does not know whether anybody waits, and lets go.
    async fn settle(&self) -> Accepted {
        let mut latest = None;
        eventually("it keeps the lock", async || {
            let sold = accepted(self.sale.reduce(order_of_one()).await.unwrap());
            let before = latest.replace(sold.clone());
            before.is_some_and(|before: Accepted| before.token == sold.token)
        })
        .await;
        latest.unwrap()
    }
}

/// A new order.
fn order_of_one() -> Order {
    order(OrderId::random().as_str(), 1)
}

fn accepted(outcome: Outcome) -> Accepted {
    match outcome {
        Outcome::Reserved(accepted) => accepted,
        other => panic!("reserved was expected, not {other:?}"),
    }
}
