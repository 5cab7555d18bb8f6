//! Where lock meets stock: the sale over a real etcd and a real Redis.

mod combining;
mod forwarding;
mod sold_out;

use std::pin::Pin;
use std::time::Duration;

use flash_sale::inventory::{Accepted, Entry, Item, OrderId};
use futures_util::FutureExt as _;
use testkit::wait::eventually;

use crate::shop::{Shop, ShopOptions};
use crate::support::store::{accepted, order};

/// For many orders at once, and a store that may take its time.
fn patient() -> ShopOptions {
    let store_timeout = Duration::from_secs(2);
    ShopOptions { queue_length: 1000, store_timeout, ..ShopOptions::default() }
}

/// An order of one unit.
async fn buy(shop: &Shop, id: &str) -> Accepted {
    accepted(&shop.sale.reduce(order(id, 1)).await.unwrap()).clone()
}

/// A future that has begun and waits.
fn begun<F: Future>(future: F) -> Pin<Box<F>> {
    let mut future = Box::pin(future);
    assert!(future.as_mut().now_or_never().is_none(), "it waits");
    future
}

/// Sells single units until the instance keeps the lock from one to the next, and returns the last one. At first it
/// does not know whether anybody waits, and lets go.
async fn settle(shop: &Shop) -> Accepted {
    let mut latest = None;
    eventually("it keeps the lock", async || {
        let sold = buy(shop, OrderId::random().as_str()).await;
        let before = latest.replace(sold.clone());
        before.is_some_and(|before: Accepted| before.token == sold.token)
    })
    .await;
    latest.unwrap()
}

async fn ledger(shop: &Shop) -> Vec<Accepted> {
    let page = shop.sale.inventory().ledger(&Item::DEFAULT, 0, 1000).await.unwrap();
    page.entries.into_iter().filter_map(Entry::order).collect()
}
