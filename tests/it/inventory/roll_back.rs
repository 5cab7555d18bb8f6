//! Goal: a store that lost acknowledged data sells nothing more, and shows nothing as true. A fresh start is not taken for a
//! loss. Method: a Redis of the test's own that is killed and started again at the same address with an older copy of its data,
//! or with none.

use fenced_lock::{ClusterId, Token};
use flash_sale::inventory::{Entry, Inventory, InventoryError, LedgerPosition, NewSale, Replaces};
use testkit::copies::{DataCopy, restart_with};
use testkit::wait::eventually;
use testkit::{PrivateRedis, Proxy, RedisOptions};

use super::{ITEM, Raw, connect, order, sell, token};

async fn redis() -> PrivateRedis {
    PrivateRedis::start(RedisOptions::default()).await.unwrap()
}

/// A Redis, and an inventory that started a sale of ten units there under token 1.
async fn selling() -> (PrivateRedis, Inventory) {
    let redis = redis().await;
    let inventory = connect(&redis.url()).await;
    inventory.start(&ITEM, Some(token(1)), 10).await.unwrap();
    (redis, inventory)
}

#[track_caller]
fn assert_rolled_back<T: std::fmt::Debug>(result: Result<T, InventoryError>, lacks: &str) {
    let error = result.unwrap_err();
    assert!(error.nothing_written() && !error.is_retryable());
    let InventoryError::RolledBack { what } = &error else { panic!("{error}") };
    assert!(what.contains(lacks), "{lacks:?} is not in {what:?}");
}

/// All keys but `doubt`.
async fn data(redis: &PrivateRedis) -> Vec<(String, Vec<u8>)> {
    let mut dump = Raw::connect(&redis.url()).await.dump().await;
    dump.retain(|(key, _)| key != "doubt");
    dump
}

/// Checks that every call but a fresh start is refused, and that only the reason is written.
async fn assert_stopped(inventory: &Inventory, redis: &PrivateRedis, highest: i64, lacks: &str) {
    let before = data(redis).await;
    assert_rolled_back(sell(inventory, Some(token(highest)), "new").await, lacks);
    assert_rolled_back(sell(inventory, Some(token(highest + 1)), "new").await, lacks);
    assert_rolled_back(inventory.look_up(&ITEM, &[order("new", 1).key()]).await, lacks);
    assert_rolled_back(inventory.stock(&ITEM).await, lacks);
    assert_rolled_back(inventory.ledger(&ITEM, 0, 10).await, lacks);
    let (item, error) = inventory.check(None).await.unwrap_err();
    assert_eq!(item, ITEM);
    assert_rolled_back(Err::<(), _>(error), lacks);
    assert_eq!(data(redis).await, before);
}

/// Goal: an older copy with a lower fence is noticed. When the right data is back, the sale goes on. A copy from before a new
/// sale is noticed, even if an instance without a watermark sold from it under a later token: the copy's fence is high enough,
/// but its sale is not the latest.
#[tokio::test]
async fn an_older_copy_is_noticed_by_its_fence() {
    let (mut redis, inventory) = selling().await;
    sell(&inventory, Some(token(2)), "a").await.unwrap();
    let older = DataCopy::of(&redis);
    sell(&inventory, Some(token(9)), "b").await.unwrap();
    sell(&inventory, Some(token(10)), "c").await.unwrap();
    let right = DataCopy::of(&redis);
    restart_with(&mut redis, Some(&older)).await;
    assert_stopped(&inventory, &redis, 10, "its fence is 2, and was 10").await;

    restart_with(&mut redis, Some(&right)).await;
    inventory.check(None).await.unwrap();
    assert_eq!(sell(&inventory, Some(token(10)), "d").await.unwrap().position, 4);

    inventory.start(&ITEM, Some(token(11)), 20).await.unwrap();
    restart_with(&mut redis, Some(&right)).await;
    sell(&connect(&redis.url()).await, Some(token(14)), "e").await.unwrap();
    assert_stopped(&inventory, &redis, 14, "its sale is not the latest").await;
}

/// Goal: an older copy with the same fence is noticed by its ledger, even if another instance without a watermark has sold on and
/// the ledger is as long as before, or longer.
#[tokio::test]
async fn an_older_copy_is_noticed_by_its_ledger() {
    let (mut redis, inventory) = selling().await;
    sell(&inventory, Some(token(1)), "a").await.unwrap();
    let older = DataCopy::of(&redis);
    sell(&inventory, Some(token(1)), "b").await.unwrap();
    for (sold, lacks) in [
        (&[][..], "order b is not in its ledger"),
        (&["x", "y"], "order b is not in its ledger"),
        // the buyer sent the same order again there: the order stands, but at another position
        (&["x", "b"], "order b is not the one"),
    ] {
        restart_with(&mut redis, Some(&older)).await;
        let forgetful = connect(&redis.url()).await;
        for id in sold {
            sell(&forgetful, Some(token(1)), id).await.unwrap();
        }
        assert_stopped(&inventory, &redis, 1, lacks).await;
    }
}

/// Goal: an empty Redis at the same address is a roll-back, not an unknown item. A Redis with a stock set
/// by hand is one, too, since it may be an older copy.
#[tokio::test]
async fn an_empty_store_is_noticed() {
    let (mut redis, inventory) = selling().await;
    for (is_set, is_sold) in [(false, false), (true, false), (true, true)] {
        restart_with(&mut redis, None).await;
        if is_set {
            Raw::connect(&redis.url()).await.run::<()>("SET stock 10").await;
        }
        if is_sold {
            // an instance without a watermark sells from it, which does not make it a new sale
            sell(&connect(&redis.url()).await, Some(token(2)), "a").await.unwrap();
        }
        let lacks = if is_sold { "its sale is not the latest" } else { "its sale is gone" };
        assert_stopped(&inventory, &redis, 2, lacks).await;
    }
    inventory.start(&ITEM, Some(token(3)), 5).await.unwrap();
    inventory.check(None).await.unwrap();
    assert_eq!(sell(&inventory, Some(token(3)), "a").await.unwrap().remaining, 4);
}

/// Goal: keys deleted by hand are a roll-back, too.
#[tokio::test]
async fn deleted_keys_are_noticed() {
    let redis = redis().await;
    let inventory = connect(&redis.url()).await;
    let mut raw = Raw::connect(&redis.url()).await;
    for (first, keys, lacks) in [
        (1, "fence", "its fence is gone, and was cafe 1"),
        (3, "stock", "its stock is gone"),
        (5, "sale", "its sale is gone"),
        (7, "orders ledger", "order a is not in its ledger"),
    ] {
        inventory.start(&ITEM, Some(token(first)), 10).await.unwrap();
        sell(&inventory, Some(token(first)), "a").await.unwrap();
        raw.run::<()>(&format!("DEL {keys}")).await;
        assert_stopped(&inventory, &redis, first, lacks).await;
    }
}

/// Goal: a new sale at another instance, with or without a token, is no roll-back, and ends one.
#[tokio::test]
async fn a_fresh_start_elsewhere_is_no_roll_back() {
    let mut redis = redis().await;
    let (here, there) = (connect(&redis.url()).await, connect(&redis.url()).await);
    for guarded in [true, false] {
        let guard = |revision| guarded.then(|| token(revision));
        here.start(&ITEM, guard(1), 10).await.unwrap();
        sell(&here, guard(1), "a").await.unwrap();
        there.start(&ITEM, guard(2), 10).await.unwrap();
        here.stock(&ITEM).await.unwrap();
        here.check(None).await.unwrap();
        assert_eq!(sell(&here, guard(3), "a").await.unwrap().remaining, 9);
        sell(&there, guard(3), "b").await.unwrap();

        restart_with(&mut redis, None).await;
        assert_rolled_back(sell(&here, guard(3), "c").await, "its sale is gone");
        there.start(&ITEM, guard(4), 10).await.unwrap();
        here.check(None).await.unwrap();
        assert_eq!(sell(&here, guard(5), "c").await.unwrap().remaining, 9);
    }
}

/// Goal: the orders of a stock set by hand must not vanish, but its plain counters may be set again at any time.
#[tokio::test]
async fn a_stock_set_by_hand_is_remembered() {
    let mut redis = redis().await;
    let inventory = connect(&redis.url()).await;
    Raw::connect(&redis.url()).await.run::<()>("SET stock 10").await;
    let older = DataCopy::of(&redis);
    for guard in [Some(token(4)), None] {
        restart_with(&mut redis, Some(&older)).await;
        let inventory = connect(&redis.url()).await;
        sell(&inventory, guard, "a").await.unwrap();
        Raw::connect(&redis.url()).await.run::<()>("SET stock 300").await;
        sell(&inventory, guard, "b").await.unwrap();
        restart_with(&mut redis, Some(&older)).await;
        assert_stopped(&inventory, &redis, 4, "its sale is gone").await;
    }
    restart_with(&mut redis, Some(&older)).await;
    // nothing was acknowledged to this inventory
    sell(&inventory, Some(token(1)), "a").await.unwrap();
}

/// Goal: an accepted roll-back is accepted for all instances, and data that is acknowledged afterwards counts.
#[tokio::test]
async fn an_accepted_roll_back_is_over() {
    let (mut redis, one) = selling().await;
    let two = connect(&redis.url()).await;
    sell(&one, Some(token(1)), "a").await.unwrap();
    let older = DataCopy::of(&redis);
    sell(&two, Some(token(2)), "b").await.unwrap();
    sell(&one, Some(token(3)), "c").await.unwrap();
    let before = one.ledger(&ITEM, 0, 9).await.unwrap();
    restart_with(&mut redis, Some(&older)).await;
    for inventory in [&one, &two] {
        assert_stopped(inventory, &redis, 4, "its fence is 1").await;
    }

    let operator = connect(&redis.url()).await;
    let error = operator.recover_store(&ITEM, Token::new(ClusterId(1), 99)).await.unwrap_err();
    assert!(matches!(error, InventoryError::ForeignFence { .. }), "{error}");
    operator.recover_store(&ITEM, token(5)).await.unwrap();
    for (inventory, id) in [(&one, "d"), (&two, "e")] {
        inventory.check(None).await.unwrap();
        sell(inventory, Some(token(6)), id).await.unwrap();
    }
    // with a position from before the loss, a reader would miss an order
    let from = LedgerPosition { of: Some(before.name), ..LedgerPosition::from(2) };
    let error = operator.ledger(&ITEM, from, 9).await.unwrap_err();
    assert!(matches!(error, InventoryError::SaleRefused { .. }), "{error}");
    let page = operator.ledger(&ITEM, 0, 9).await.unwrap();
    assert_eq!(page.sale, before.sale);
    let from = LedgerPosition { of: Some(page.name), ..LedgerPosition::from(2) };
    assert_eq!(operator.ledger(&ITEM, from, 9).await.unwrap().entries, page.entries[2..]);
    let ids: Vec<_> = one.ledger(&ITEM, 0, 9).await.unwrap().entries;
    let ids = ids.into_iter().filter_map(Entry::order).map(|order| order.order.as_str().to_owned());
    assert_eq!(ids.collect::<Vec<_>>(), ["a", "d", "e"]);
    restart_with(&mut redis, Some(&older)).await;
    assert_stopped(&one, &redis, 6, "its sale is not the latest").await;

    // also after the sale was replaced
    operator.recover_store(&ITEM, token(7)).await.unwrap();
    let name = operator.ledger(&ITEM, 0, 9).await.unwrap().name;
    let other = NewSale { replaces: Replaces::Any, ..NewSale::from(5) };
    operator.start(&ITEM, Some(token(8)), other).await.unwrap();
    for (of, is_refused) in [(&*before.sale, true), (&*name, false)] {
        let sale = before.sale.parse().ok();
        let from = LedgerPosition { sale, of: Some(of.to_owned()), after: 1 };
        assert_eq!(operator.ledger(&ITEM, from, 9).await.is_err(), is_refused, "{of}");
    }
}

/// Goal: an operator who accepts a fence of another etcd cluster causes no roll-back, and hides none.
#[tokio::test]
async fn an_accepted_fence_keeps_the_watermark() {
    let mut redis = redis().await;
    let (inventory, operator) = (connect(&redis.url()).await, connect(&redis.url()).await);
    inventory.start(&ITEM, Some(token(100)), 10).await.unwrap();
    let older = DataCopy::of(&redis);
    sell(&inventory, Some(token(100)), "a").await.unwrap();
    let other = |revision| Some(Token::new(ClusterId(0xbeef), revision));
    operator.recover_cluster(&ITEM, other(3).unwrap()).await.unwrap();
    inventory.check(None).await.unwrap();
    sell(&inventory, other(3), "b").await.unwrap();

    restart_with(&mut redis, Some(&older)).await;
    operator.recover_cluster(&ITEM, other(7).unwrap()).await.unwrap();
    assert_rolled_back(sell(&inventory, other(7), "c").await, "order b is not in its ledger");
    inventory.recover_cluster(&ITEM, other(8).unwrap()).await.unwrap();
    assert_eq!(inventory.rolled_back_items(), 1);
}

/// Goal: an instance that acknowledged none of the lost orders cannot notice their loss. When one instance notices a loss, by an
/// order or by a read, every instance refuses until the right data is back.
#[tokio::test]
async fn one_instance_that_notices_a_loss_stops_all() {
    let (mut redis, one) = selling().await;
    let other = connect(&redis.url()).await;
    sell(&one, Some(token(1)), "a").await.unwrap();
    let older = DataCopy::of(&redis);
    sell(&other, Some(token(1)), "b").await.unwrap();
    let right = DataCopy::of(&redis);
    let lacks = "order b is not in its ledger";
    for notices in ["order", "stock", "ledger", "check"] {
        restart_with(&mut redis, Some(&older)).await;
        one.check(None).await.unwrap();
        match notices {
            "order" => assert_rolled_back(sell(&other, Some(token(1)), "c").await, lacks),
            "stock" => assert_rolled_back(other.stock(&ITEM).await, lacks),
            "ledger" => assert_rolled_back(other.ledger(&ITEM, 0, 9).await, lacks),
            _ => assert_rolled_back(other.check(None).await.map_err(|(_, error)| error), lacks),
        }
        assert_eq!(Raw::connect(&redis.url()).await.run::<u64>("EXISTS doubt").await, 1);
        assert_stopped(&one, &redis, 1, lacks).await;
        let newcomer = connect(&redis.url()).await;
        assert_rolled_back(sell(&newcomer, None, "d").await, lacks);
        assert_rolled_back(newcomer.look_up(&ITEM, &[order("a", 1).key()]).await, lacks);
        assert_eq!((one.rolled_back_items(), newcomer.rolled_back_items()), (1, 1));
        // an instance without a watermark notices nothing, and cannot sell either
        assert_rolled_back(newcomer.check(None).await.map_err(|(_, error)| error), lacks);
    }
    restart_with(&mut redis, Some(&right)).await;
    assert_eq!(sell(&one, Some(token(1)), "c").await.unwrap().position, 3);
    sell(&other, Some(token(1)), "d").await.unwrap();
    assert_eq!((one.rolled_back_items(), other.rolled_back_items()), (0, 0));
}

/// Goal: a repeated answer is an acknowledgement, as the first one is.
#[tokio::test]
async fn a_repeated_answer_is_remembered() {
    let mut redis = redis().await;
    let one = connect(&redis.url()).await;
    one.start(&ITEM, Some(token(1)), 1).await.unwrap();
    let older = DataCopy::of(&redis);
    sell(&one, Some(token(1)), "a").await.unwrap();
    let other = connect(&redis.url()).await;
    let keys = ["b", "a"].map(|id| order(id, 1).key());
    for (key, is_known) in keys.iter().zip([false, true]) {
        let found = other.look_up(&ITEM, std::slice::from_ref(key)).await.unwrap().orders.remove(0);
        assert_eq!(found.unwrap().is_some(), is_known);
    }
    restart_with(&mut redis, Some(&older)).await;
    assert_rolled_back(sell(&other, Some(token(1)), "b").await, "order a is not in its ledger");
}

/// Goal: an instance leaves a wrong server that answered at the address when the address leads to the right one again.
#[tokio::test]
async fn a_wrong_server_is_left() {
    let (right, wrong) = (redis().await, redis().await);
    let proxy = Proxy::to(right.port()).await.unwrap();
    let inventory = connect(&format!("redis://127.0.0.1:{}", proxy.port())).await;
    inventory.start(&ITEM, Some(token(1)), 10).await.unwrap();
    proxy.redirect_to(wrong.port());
    proxy.cut();
    let order = async || sell(&inventory, Some(token(1)), "a").await;
    let is_lost = async || matches!(order().await, Err(InventoryError::RolledBack { .. }));
    eventually("the wrong one is noticed", is_lost).await;
    proxy.redirect_to(right.port());
    eventually("the right one sells", async || order().await.is_ok()).await;
}
