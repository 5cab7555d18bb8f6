//! A store that is full, away, silent or forgetful.

use flash_sale::inventory::{Inventory, InventoryError};
use testkit::wait::{eventually, within};
use testkit::{PrivateRedis, RedisOptions};

use super::{ITEM, Raw, order, reduce, sell, token};
use crate::support::store::{HASTY, open};

async fn start() -> (PrivateRedis, Inventory) {
    let redis = PrivateRedis::start(RedisOptions::default()).await.unwrap();
    let inventory = open(&redis.url(), HASTY).await.unwrap();
    inventory.start(&ITEM, Some(token(1)), 10).await.unwrap();
    (redis, inventory)
}

/// Goal: if the user lacks any command or key with which a call writes, the call writes nothing at all. Method: the test takes
/// these rights away one by one, and compares the dump of the store.
#[tokio::test]
async fn a_missing_permission_leaves_nothing_half_written() {
    let (redis, inventory) = start().await;
    let mut raw = Raw::connect(&redis.url()).await;
    let orders = [order("a", 1)];
    let all = "~stock ~lucky ~initial ~orders ~ledger ~fence ~sale ~doubt ~terms ~changes ~holds ~buyers ~sales";
    let keys = all.split(' ');
    let keys = keys.map(|key| format!("resetkeys {}", all.replacen(key, &format!("%R{key}"), 1)));
    let commands = ["-mset", "-hset", "-rpush", "-set"].map(str::to_owned);
    raw.run::<()>(&format!("ACL SETUSER default resetkeys {all}")).await;
    reduce(&inventory, Some(token(1)), &[order("first", 1)]).await.unwrap();
    for lack in commands.into_iter().chain(keys) {
        let before = raw.dump().await;
        raw.run::<()>(&format!("ACL SETUSER default {lack}")).await;
        let error = reduce(&inventory, Some(token(2)), &orders).await;
        let error = error.expect_err(&lack);
        raw.run::<()>("ACL SETUSER default +@all allkeys").await;
        assert!(error.is_wrong_server() && error.nothing_written(), "{lack}: {error:?}");
        assert_eq!(raw.dump().await, before, "{lack}");
    }
    raw.run::<()>("ACL SETUSER default -unlink").await;
    let before = raw.dump().await;
    let error = inventory.start(&ITEM, Some(token(2)), 5).await.unwrap_err();
    assert!(error.is_wrong_server(), "{error:?}");
    assert_eq!(raw.dump().await, before);
    reduce(&inventory, Some(token(2)), &orders).await.unwrap();
}

/// Goal: with full memory, nothing is written, not even a part, and reads go on. When there is memory again, the inventory sells.
#[tokio::test]
async fn out_of_memory_nothing_is_half_written() {
    let (redis, inventory) = start().await;
    let mut raw = Raw::connect(&redis.url()).await;
    sell(&inventory, Some(token(1)), "a").await.unwrap();
    let before = raw.dump().await;
    raw.run::<()>("CONFIG SET maxmemory 1").await;
    let results = [
        sell(&inventory, Some(token(2)), "b").await.map(drop),
        inventory.start(&ITEM, Some(token(2)), 5).await.map(drop),
        inventory.recover_cluster(&ITEM, token(2)).await.map(drop),
    ];
    for result in results {
        let error = result.unwrap_err();
        assert!(matches!(error, InventoryError::Refused { .. }), "{error}");
        assert!(error.to_string().contains("OOM"), "{error}");
        assert!(error.nothing_written() && error.is_retryable());
    }
    assert_eq!(raw.dump().await, before);
    assert_eq!(inventory.stock(&ITEM).await.unwrap().stock, 9);
    assert_eq!(inventory.ledger(&ITEM, 0, 9).await.unwrap().entries.len(), 1);
    raw.run::<()>("CONFIG SET maxmemory 0").await;
    sell(&inventory, Some(token(2)), "b").await.unwrap();
}

/// Goal: when a server falls silent, the outcome of the write under way is unknown and later writes are not sent, all within the
/// time limit. Many callers wait for one attempt to connect, not for one each. Afterwards a retry is answered, and the order was
/// taken once.
#[tokio::test]
async fn a_silent_store_leaves_one_write_unknown_and_recovers() {
    let (mut redis, inventory) = start().await;
    let sell = async || within("a call is bounded", sell(&inventory, Some(token(1)), "a")).await;
    redis.child().pause().unwrap();
    let error = sell().await.unwrap_err();
    assert!(matches!(error, InventoryError::Unanswered { .. }), "{error}");
    assert!(!error.nothing_written() && error.is_retryable());
    let error = sell().await.unwrap_err();
    assert!(matches!(error, InventoryError::Unreachable { .. }), "{error}");
    assert!(error.nothing_written() && error.is_retryable());
    let calls = (0..200).map(|_| inventory.ping());
    let results = within("they share it", futures_util::future::join_all(calls)).await;
    assert!(results.iter().all(Result::is_err));
    redis.child().resume().unwrap();
    eventually("it sells", async || sell().await.is_ok_and(|sold| sold.remaining == 9)).await;
    let stock = inventory.stock(&ITEM).await.unwrap();
    assert_eq!((stock.stock, stock.lucky, stock.orders), (9, 1, 1));
}

/// Goal: no call fails because the server restarts between two calls: the break is noticed at once, so no write is sent
/// over a dead connection, which would leave its outcome unknown. A server that forgot the scripts gets them again, in the same call.
#[tokio::test]
async fn a_restart_between_calls_is_not_noticed() {
    let (mut redis, inventory) = start().await;
    for id in ["a", "b", "c"] {
        redis.kill().await.unwrap();
        redis.restart().await.unwrap();
        sell(&inventory, Some(token(1)), id).await.unwrap();
    }
    redis.run::<()>("SCRIPT FLUSH SYNC").await.unwrap();
    assert_eq!(sell(&inventory, Some(token(1)), "d").await.unwrap().remaining, 6);
}

/// Goal: a refused handshake is not remembered: when a full server has room again, the next call works.
#[tokio::test]
async fn a_refused_connection_is_tried_again() {
    let (redis, inventory) = start().await;
    let mut raw = Raw::connect(&redis.url()).await;
    raw.run::<()>("CONFIG SET maxclients 1").await;
    raw.run::<redis::Value>("CLIENT KILL SKIPME yes").await;
    eventually("no new connection is accepted", async || {
        matches!(inventory.ping().await, Err(InventoryError::Unreachable { .. }))
    })
    .await;
    raw.run::<()>("CONFIG SET maxclients 100").await;
    inventory.ping().await.unwrap();
}
