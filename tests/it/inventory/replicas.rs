//! Goal: when the inventory waits for replicas, every acknowledged order is on a replica, and nothing is written to a replica.
//! Method: two Redis servers of the test's own, and a proxy as the address that moves from one to the other.

use std::time::Duration;

use flash_sale::inventory::{Inventory, InventoryError, Item, Replicas};
use futures_util::future::join_all;
use testkit::wait::eventually;
use testkit::{OwnedDir, PrivateRedis, RedisOptions, ReplicatedRedis};

use super::{ITEM, Raw, connect, order, token};

/// For a replica that answers, however busy the machine is.
pub(super) const PATIENT: Replicas = Replicas { count: 1, timeout: Duration::from_secs(20) };
/// For a replica that does not answer.
pub(super) const HASTY: Replicas = Replicas { count: 1, timeout: Duration::from_millis(300) };

/// A primary with a replica that has the sale of ten units, and an inventory that waits for no replica.
async fn pair() -> (ReplicatedRedis, Inventory) {
    let dir = OwnedDir::create().unwrap();
    let pair = ReplicatedRedis::start_in(&dir, RedisOptions::default()).await.unwrap();
    let inventory = connect(&pair.url()).await;
    inventory.clone().with_replicas(PATIENT).start(&ITEM, Some(token(1)), 10).await.unwrap();
    (pair, inventory)
}

/// Sells one unit, and returns its place in the ledger.
pub(super) async fn sell(inventory: &Inventory, id: &str) -> Result<u64, InventoryError> {
    super::sell(inventory, Some(token(1)), id).await.map(|accepted| accepted.position)
}

#[track_caller]
pub(super) fn assert_not_replicated(result: Result<u64, InventoryError>) {
    let error = result.unwrap_err();
    assert!(matches!(error, InventoryError::NotReplicated { count: 0, wanted: 1 }), "{error}");
    assert!(!error.nothing_written() && error.is_retryable());
}

/// Goal: while a replica sleeps, the outcome stays unknown with every retry and over any connection. When the replica wakes, the
/// order is answered, and was taken once.
#[tokio::test]
async fn an_order_counts_once_the_replica_has_it() {
    let (mut pair, inventory) = pair().await;
    let inventory = inventory.with_replicas(PATIENT);
    let hasty = inventory.clone().with_replicas(HASTY);
    assert_eq!(sell(&inventory, "a").await.unwrap(), 1);

    pair.replica.child().pause().unwrap();
    assert_not_replicated(sell(&hasty, "b").await);
    assert_not_replicated(sell(&hasty, "b").await);
    assert_not_replicated(sell(&connect(&pair.url()).await.with_replicas(HASTY), "b").await);
    // a call that needs no replica does not wait for one
    assert_eq!(inventory.stock(&ITEM).await.unwrap().lucky, 2);
    hasty.check(Some(token(1))).await.unwrap();
    // the outcome of a refusal is known
    let stale = super::sell(&hasty, Some(token(0)), "c").await;
    assert!(stale.unwrap_err().nothing_written());

    pair.replica.child().resume().unwrap();
    assert_eq!(sell(&inventory, "b").await.unwrap(), 2);
    assert_eq!(inventory.stock(&ITEM).await.unwrap().lucky, 2);
}

/// Goal: the inventory neither writes to a replica nor reads from one, since its data may be old: neither over an open connection
/// to a primary that became a replica, nor over a new connection, even if the replica would accept writes. A replica that is
/// promoted is the store at once.
#[tokio::test]
async fn a_replica_is_left_alone_until_it_is_promoted() {
    let redis = PrivateRedis::start(RedisOptions::default()).await.unwrap();
    let inventory = connect(&redis.url()).await;
    inventory.start(&ITEM, Some(token(1)), 1).await.unwrap();
    let mut raw = Raw::connect(&redis.url()).await;
    let keys = [order("a", 1).key()];
    for question in ["reduce", "order", "stock", "ledger", "check"] {
        let ask = async || match question {
            "reduce" => sell(&inventory, "a").await.map(drop),
            "order" => inventory.look_up(&ITEM, &keys).await.map(drop),
            "stock" => inventory.stock(&ITEM).await.map(drop),
            "ledger" => inventory.ledger(&ITEM, 0, 9).await.map(drop),
            _ => inventory.check(None).await.map_err(|(_, error)| error),
        };
        ask().await.unwrap();
        raw.run::<()>("REPLICAOF 127.0.0.1 1").await;
        for _ in 0..2 {
            let error = ask().await.expect_err(question);
            assert!(matches!(error, InventoryError::Refused { .. }), "{question}: {error}");
            assert!(error.nothing_written() && error.is_retryable());
            assert!(error.to_string().contains("READONLY"), "{error}");
            raw.run::<()>("CONFIG SET replica-read-only no").await;
        }
        raw.run::<()>("CONFIG SET replica-read-only yes").await;
        raw.run::<()>("REPLICAOF NO ONE").await;
        ask().await.unwrap();
    }
}

/// Goal: items share several connections for writes that wait for replicas, since Redis serves nothing else on a connection that
/// waits.
#[tokio::test]
async fn items_do_not_wait_for_each_other() {
    let (mut pair, inventory) = pair().await;
    let inventory = inventory.with_replicas(PATIENT);
    pair.replica.child().pause().unwrap();
    let starts = join_all((0..12).map(async |number| {
        let item: Item = format!("item-{number}").parse().unwrap();
        inventory.start(&item, Some(token(1)), 1).await.unwrap();
    }));
    let mut primary = Raw::connect(&pair.primary.url()).await;
    tokio::join!(starts, async {
        eventually("several connections wait", async || {
            let info: String = primary.run("INFO clients").await;
            let blocked = info.lines().find_map(|line| line.strip_prefix("blocked_clients:"));
            blocked.unwrap().parse::<u32>().unwrap() > 2
        })
        .await;
        pair.replica.child().resume().unwrap();
    });
    let clients = primary.run::<String>("CLIENT LIST").await;
    assert!(clients.lines().count() <= 8 + 3, "a fixed number of them: {clients}");
}
