//! Orders that a read of the stock answers.

use flash_sale::inventory::{Item, Order, OrderId, Outcome, User};
use futures_util::future::join_all;
use testkit::Direction;
use testkit::shared::fresh_database;
use testkit::wait::{eventually, within};
use tokio::time::Instant;

use super::{accepted, begun, buy, patient};
use crate::shop::Shop;
use crate::support::store::{connect, order, scripts_run};

const SOLD_OUT: Outcome = Outcome::SoldOut { remaining: 0 };

/// Goal: without a lock service, an order for a sold-out item gets its answer, also after another order found units left. The
/// instance is not ready, and names etcd as the reason.
#[tokio::test]
async fn sold_out_needs_no_lock() {
    let shop = Shop::at("http://127.0.0.1:1".into(), fresh_database().await, patient());
    let inventory = connect(&shop.redis).await;
    inventory.start(&Item::DEFAULT, None, 1).await.unwrap();
    let too_many = shop.sale.reduce(order("too-many", 2)).await.unwrap();
    assert_eq!(too_many, Outcome::SoldOut { remaining: 1 });
    inventory.reduce(&Item::DEFAULT, None, "b", &[order("last", 1)]).await.unwrap();
    assert_eq!(shop.sale.reduce(order("late", 1)).await.unwrap(), SOLD_OUT);
    shop.call("GET /readyz").await.problem(503, "lock-unavailable");
}

/// Goal: orders that come while the stock is read share the next read, and each gets its own answer: also a retry of an accepted
/// order, a conflict and a damaged record. An order that was given up disturbs none of the others.
#[tokio::test]
async fn orders_share_a_read() {
    let (redis, other) = Shop::with_own_redis(patient()).await;
    other.start(2).await;
    let (shop, proxy) = other.behind_proxy("a").await;
    let reduce = |order: Order| shop.sale.reduce(order);
    let first = buy(&shop, "first").await;
    buy(&shop, "spoilt").await;
    assert_eq!(reduce(order("last", 1)).await.unwrap(), SOLD_OUT);
    redis.run::<()>("HSET orders spoilt nothing").await.unwrap();

    let before = scripts_run(&redis).await;
    proxy.hold(Direction::ToClient);
    let early = begun(reduce(order("early", 1)));
    eventually("the store has answered", async || proxy.has_held_data()).await;
    let mut others: Vec<_> =
        (0..1500).map(|number| begun(reduce(order(&format!("{number}"), 1)))).collect();
    others.truncate(1300);
    let special = [order("first", 1), order("first", 2), order("spoilt", 1)];
    let [again, conflict, spoilt] = special.map(|order| begun(reduce(order)));
    proxy.release();

    assert_eq!(within("the first read", early).await.unwrap(), SOLD_OUT);
    for other in within("the shared reads", join_all(others)).await {
        assert_eq!(other.unwrap(), SOLD_OUT);
    }
    assert_eq!(*accepted(&again.await.unwrap()), first);
    assert_eq!(conflict.await.unwrap(), Outcome::Conflict);
    let error = spoilt.await.unwrap_err();
    assert_eq!(error.word(), "damaged", "{error:?}");
    assert_eq!(scripts_run(&redis).await - before, 3, "one early, and two for 1303 orders");
}

/// Goal: calls for the state of an item, and for its orders, that come at the same time share a read, over a connection that
/// batches do not use; no call gets the answer of a read that was sent before the call came.
#[tokio::test]
async fn looks_at_a_sale_share_reads() {
    let (redis, other) = Shop::with_own_redis(patient()).await;
    other.start(4).await;
    let (shop, proxy) = other.behind_proxy("a").await;
    let first = buy(&shop, "first").await;
    let look = |id: &str| {
        let (sale, id) = (shop.sale.clone(), OrderId::new(id).unwrap());
        async move { sale.reads().order(&Item::DEFAULT, &id, &User::default()).await.unwrap().1 }
    };
    let stock = || async { shop.sale.reads().stock(&Item::DEFAULT).await.unwrap().stock };
    assert_eq!((look("first").await, stock().await), (Some(first.clone()), 3));
    buy(&other, "spoilt").await;
    buy(&other, "third").await;
    redis.run::<()>("HSET orders spoilt nothing").await.unwrap();

    proxy.hold(Direction::ToClient);
    let early = begun(stock());
    eventually("the store has answered", async || proxy.has_held_data()).await;
    let second = buy(&other, "second").await;
    let before = scripts_run(&redis).await;
    let stocks: Vec<_> = (0..300).map(|_| begun(stock())).collect();
    let orders: Vec<_> =
        ["first", "second", "none"].repeat(100).into_iter().map(look).map(begun).collect();
    let (spoilt, user) = (OrderId::new("spoilt").unwrap(), User::default());
    let spoilt = begun(shop.sale.reads().order(&Item::DEFAULT, &spoilt, &user));
    proxy.release();
    assert_eq!(within("the first read", early).await, 1);
    assert_eq!(within("the second read", join_all(stocks)).await, [0; 300]);
    let orders = within("the orders", join_all(orders)).await;
    for found in orders.chunks(3) {
        assert_eq!(found, [Some(first.clone()), Some(second.clone()), None]);
    }
    let error = within("the damaged order", spoilt).await.unwrap_err();
    assert_eq!(error.word(), "damaged", "{error:?}");
    assert_eq!(scripts_run(&redis).await - before, 2, "one for all states, and one for all orders");
}

/// Goal: however fast buyers ask, an instance reads an item at most once a millisecond.
#[tokio::test]
async fn reads_are_paced() {
    let (redis, shop) = Shop::with_own_redis(patient()).await;
    shop.start(0).await;
    let one_by_one = async |buyer: usize| {
        for number in 0..20 {
            let order = order(&format!("{buyer}-{number}"), 1);
            assert_eq!(shop.sale.reduce(order).await.unwrap(), SOLD_OUT);
        }
    };
    let (before, began_at) = (scripts_run(&redis).await, Instant::now());
    join_all((0..5).map(one_by_one)).await;
    let millis = u32::try_from(began_at.elapsed().as_millis()).unwrap();
    let reads = scripts_run(&redis).await - before;
    assert!((20..=millis + 1).contains(&reads), "{reads} reads in {millis} ms");
}

/// Goal: while the store is away, no order waits for the reads of the orders before it: all that wait are answered by the
/// first read that fails. Method: no further read connects.
#[tokio::test]
async fn one_failed_read_answers_all_that_wait() {
    let shop = Shop::selling(0, patient()).await;
    let (shop, proxy) = shop.behind_proxy("a").await;
    assert_eq!(shop.sale.reduce(order("first", 1)).await.unwrap(), SOLD_OUT);

    proxy.freeze();
    let before = proxy.connections();
    let waiting: Vec<_> =
        (0..2500).map(|number| begun(shop.sale.reduce(order(&format!("{number}"), 1)))).collect();
    for answer in within("the answers", join_all(waiting)).await {
        assert_eq!(answer.unwrap_err().word(), "store-unavailable");
    }
    assert_eq!(proxy.connections(), before);
    proxy.release();
}
