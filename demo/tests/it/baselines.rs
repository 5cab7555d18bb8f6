//! Goal: the ways to compare with are right as far as they can be, and leave nothing behind.

use std::time::Duration;

use demo::baselines::{self, LockMode};
use etcd_client::{Client, GetOptions, LeaseStatus};
use fenced_lock::EtcdOptions;
use flash_sale::inventory::{Item, Outcome};
use flash_sale::sale::{Sale, SaleContext, SaleError, SaleOptions};
use testkit::shared::fresh_database;
use testkit::wait::{eventually, within};
use testkit::{EtcdOptions as ServerOptions, PrivateEtcd};

use crate::support::store::{connect, order};

const LOCK: &str = "lock";
const TTL: Duration = Duration::from_secs(10);

/// An etcd and a Redis of the test's own.
struct Lab {
    etcd: PrivateEtcd,
    redis: String,
}

impl Lab {
    async fn new() -> Self {
        let etcd = PrivateEtcd::start(ServerOptions::default()).await.unwrap();
        Self { etcd, redis: fresh_database().await }
    }

    async fn sale(&self, mode: LockMode, instance: &str, wait_timeout: Duration) -> Sale {
        let options = SaleOptions {
            lock_name: LOCK.into(),
            instance: instance.into(),
            queue_length: 100,
            batch_size: 100,
            tenure: Duration::from_millis(100),
            wait_timeout,
            etcd: None,
        };
        let context = SaleContext::new(connect(&self.redis).await, options);
        let etcd = || Ok(EtcdOptions::new([self.etcd.endpoint()]));
        let guard = baselines::baseline(&context, mode, etcd, TTL).await.unwrap();
        Sale::new(context, guard.into())
    }

    async fn client(&self) -> Client {
        Client::connect([self.etcd.endpoint()], None).await.unwrap()
    }

    async fn leases(&self) -> Vec<i64> {
        let leases = self.client().await.leases().await.unwrap();
        leases.leases().iter().map(LeaseStatus::id).collect()
    }

    async fn keys(&self) -> i64 {
        let options = GetOptions::new().with_all_keys().with_count_only();
        self.client().await.get("", Some(options)).await.unwrap().count()
    }

    /// A claim of another client, which holds the lock until it is deleted.
    async fn hold(&self) {
        self.client().await.put(format!("{LOCK}/someone"), "", None).await.unwrap();
    }

    async fn give_back(&self) {
        self.client().await.delete(format!("{LOCK}/someone"), None).await.unwrap();
    }

    async fn assert_nothing_is_left(&self) {
        assert_eq!(self.keys().await, 0);
        assert_eq!(self.leases().await, [0; 0]);
    }
}

const PATIENCE: Duration = Duration::from_mins(1);

/// An order that gives up at its time, a buyer who goes away and a sale that closes take nothing and leave nothing.
async fn leaves_nothing(mode: LockMode) {
    let lab = Lab::new().await;
    let hasty = lab.sale(mode, "a", Duration::from_secs(1)).await;
    let patient = lab.sale(mode, "b", PATIENCE).await;
    hasty.start(&Item::DEFAULT, 5).await.unwrap();
    lab.hold().await;
    let claims = async |claims| {
        let are = async || hasty.queue(&Item::DEFAULT).await.unwrap().len() == claims;
        eventually(&format!("{claims} claims"), are).await;
    };
    let refused = within("it gives up", hasty.reduce(order("late", 1))).await;
    assert!(matches!(refused, Err(SaleError::WaitTooLong { .. })), "{refused:?}");
    claims(1).await;

    let buy = |id: &str| {
        let (sale, order) = (patient.clone(), order(id, 1));
        tokio::spawn(async move { sale.reduce(order).await })
    };
    let buyer = buy("gone");
    claims(2).await;
    buyer.abort();
    claims(1).await;
    let buyer = buy("patient");
    claims(2).await;
    within("the sale is closed", patient.close()).await;
    assert!(matches!(buyer.await.unwrap(), Err(SaleError::Stopping)));
    claims(1).await;

    assert_eq!(hasty.stock(&Item::DEFAULT).await.unwrap().stock, 5);
    lab.give_back().await;
    let served = hasty.reduce(order("late", 1)).await;
    assert!(matches!(served, Ok(Outcome::Reserved(_))), "{served:?}");
    hasty.close().await;
    lab.assert_nothing_is_left().await;
}

#[tokio::test]
async fn who_goes_leaves_nothing() {
    for mode in [LockMode::EtcdRecipe, LockMode::EtcdRpc] {
        leaves_nothing(mode).await;
    }
}
