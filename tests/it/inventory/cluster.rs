//! Goal: named items sell over the shards of a Redis Cluster as over one Redis, also while slots move and primaries change.
//! Method: private clusters of three primaries, with replicas for the tests in which a primary fails.

use std::error::Error;
use std::net::TcpListener;
use std::time::Duration;

use flash_sale::inventory::{Inventory, InventoryError, InventoryOptions, Item, Order};
use testkit::redis::{RIGHTS, RedisOptions, USER};
use testkit::redis_cluster::PRIMARIES;
use testkit::wait::{eventually, within};
use testkit::{PrivateRedis, PrivateRedisCluster, RedisClusterOptions};

use super::durability::assert_told;
use super::{accepted, connect, fresh_database, order, token};
use crate::support::store;

async fn start(options: RedisClusterOptions) -> PrivateRedisCluster {
    PrivateRedisCluster::start(options).await.unwrap()
}

fn item(name: &str) -> Item {
    name.parse().unwrap()
}

async fn sell(inventory: &Inventory, item: &Item, id: &str) -> Result<u64, InventoryError> {
    let order = Order { item: item.clone(), ..order(id, 1) };
    let outcomes = inventory.reduce(item, Some(token(1)), "8080", &[order]).await?;
    Ok(accepted(&outcomes[0]).position)
}

/// The address with a user that has only the rights of an instance.
async fn seller(cluster: &PrivateRedisCluster) -> String {
    for node in &cluster.nodes {
        let rights = format!("{} +cluster|slots", RIGHTS.trim());
        node.run::<()>(&format!("ACL SETUSER {USER} on >word {rights}")).await.unwrap();
    }
    cluster.url().replace("://", &format!("://{USER}:word@"))
}

/// For each primary, an item in one of its slots.
pub(crate) async fn item_of_each(cluster: &PrivateRedisCluster) -> [Item; PRIMARIES] {
    let mut found: [Option<Item>; PRIMARIES] = Default::default();
    for n in 0.. {
        let name = format!("item-{n}");
        let (_, node) = cluster.place_of(&format!("stock:{{{name}}}")).await.unwrap();
        found[node.unwrap()].get_or_insert(item(&name));
        if found.iter().all(Option::is_some) {
            break;
        }
    }
    found.map(Option::unwrap)
}

fn is_refused_as<T>(result: &Result<T, InventoryError>, code: &str) -> bool {
    matches!(result, Err(error @ InventoryError::Refused { source })
        if source.code() == Some(code) && error.is_retryable() && error.nothing_written())
}

/// How often the node has refused with this code.
async fn refusals(node: &PrivateRedis, code: &str) -> u32 {
    let stats: String = node.run("INFO errorstats").await.unwrap();
    let prefix = format!("errorstat_{code}:count=");
    let count = stats.lines().find_map(|line| line.strip_prefix(&*prefix));
    count.map_or(0, |count| count.parse().unwrap())
}

/// Goal: every call works for the items of each shard, with the rights of an instance. The settings of each shard are checked,
/// also while another shard is away.
#[tokio::test]
async fn items_sell_over_all_shards() {
    let mut cluster = start(RedisClusterOptions::default()).await;
    let (one, other) = (connect(&seller(&cluster).await).await, connect(&cluster.url()).await);
    for item in &item_of_each(&cluster).await {
        one.start(item, Some(token(1)), 3).await.unwrap();
        for (inventory, id) in [(&one, "a"), (&other, "b"), (&one, "c")] {
            sell(inventory, item, id).await.unwrap();
        }
        let stock = other.stock(item).await.unwrap();
        assert_eq!((stock.stock, stock.lucky, stock.orders), (0, 3, 3));
        assert_eq!(other.available(item).await.unwrap(), 0);
        assert_eq!(one.ledger(item, 0, 9).await.unwrap().entries.len(), 3);
        assert!(one.inspect(item).await.unwrap().stock.is_some());
    }
    one.check(None).await.unwrap();
    cluster.nodes[1].run::<()>("CONFIG SET appendfsync everysec").await.unwrap();
    let told = |what| format!("127.0.0.1:{}: {what}", cluster.nodes[1].port());
    let [weak, away] = ["Redis answers before", "cannot be reached"].map(told);
    assert_told(&one.durability().await.unwrap(), &[&weak]);
    cluster.nodes[1].kill().await.unwrap();
    assert_told(&one.durability().await.unwrap(), &[&away]);
}

/// Goal: a wrong password and a Redis that is no cluster are permanent errors, which give the reason and not the password. A node
/// that is away causes no permanent error. A node without slots, such as a removed one, does not hide the slots of others; while
/// no node has slots, the store cannot be reached.
#[tokio::test]
async fn a_wrong_cluster_is_refused() {
    let cluster = start(RedisClusterOptions::default()).await;
    let database = fresh_database().await;
    let (single, _) = database.rsplit_once('/').unwrap();
    let with = |what: &str| cluster.url().replace("://", &format!("://{what}"));
    for (url, reason) in [
        (with("nobody:hidden@"), "WRONGPASS"),
        (single.replace("redis://", "redis-cluster://"), "no node of a Redis Cluster"),
        (cluster.nodes[0].url(), "write redis-cluster://"),
    ] {
        let error = store::open(&url, InventoryOptions::default()).await.unwrap_err();
        assert!(error.is_wrong_server(), "{error:?}");
        let told = format!("{:?} {}", error, error.source().unwrap());
        assert!(told.contains(reason) && !told.contains("hidden"), "{told}");
    }
    // one node is wrong for good, and the other one, which is away, may be right
    let wrong = single.replace("redis://", "");
    for nodes in [format!("{wrong},127.0.0.1:1"), format!("127.0.0.1:1,{wrong}")] {
        let url = format!("redis-cluster://{nodes}");
        let error = store::open(&url, InventoryOptions::default()).await.unwrap_err();
        assert!(!error.is_wrong_server(), "{error:?}");
    }
    // the first node of the address is away
    let inventory = connect(&with("127.0.0.1:1,")).await;
    inventory.ping().await.unwrap();
    assert!(inventory.address().starts_with("127.0.0.1:1,127.0.0.1:"), "{}", inventory.address());

    let node_timeout = Some(RedisClusterOptions::default().node_timeout);
    let removed = RedisOptions { node_timeout, ..RedisOptions::default() };
    let removed = PrivateRedis::start(removed).await.unwrap();
    let alone = format!("redis-cluster://127.0.0.1:{}", removed.port());
    let empty = Inventory::new(&*alone, InventoryOptions::default()).unwrap();
    let error = empty.ping().await.unwrap_err();
    assert!(matches!(error, InventoryError::Unreachable { .. }), "{error:?}");
    assert!(!error.is_wrong_server(), "{error:?}");
    let inventory = connect(&with(&format!("127.0.0.1:{},", removed.port()))).await;
    inventory.start(&item("tea"), Some(token(1)), 1).await.unwrap();
}

/// Goal: an item sells on, without an error, when its slot has moved to a node that lacks the scripts. The map is then known, and
/// the old node is left alone. A call is sent again while two nodes name each other, as for a moment at the end of a move.
#[tokio::test]
async fn a_moved_slot_is_followed() {
    let cluster = start(RedisClusterOptions::default()).await;
    let inventory = connect(&cluster.url()).await;
    let [moving, ..] = item_of_each(&cluster).await;
    inventory.start(&moving, Some(token(1)), 10).await.unwrap();
    assert_eq!(sell(&inventory, &moving, "a").await.unwrap(), 1);
    let (slot, _) = cluster.place_of(&format!("stock:{{{moving}}}")).await.unwrap();
    cluster.begin_move(slot, 0, 1).await.unwrap();
    cluster.end_move(slot, 0, 1).await.unwrap();
    assert_eq!(sell(&inventory, &moving, "b").await.unwrap(), 2);
    assert_eq!(sell(&inventory, &moving, "a").await.unwrap(), 1, "it was not taken twice");
    let moved = async || refusals(&cluster.nodes[0], "MOVED").await;
    eventually("the new map is known", async || {
        let before = moved().await;
        inventory.stock(&moving).await.unwrap();
        moved().await == before
    })
    .await;
    assert_eq!(inventory.stock(&moving).await.unwrap().lucky, 2);

    let [back, from] = [0, 1].map(|node| &cluster.nodes[node]);
    cluster.begin_move(slot, 1, 0).await.unwrap();
    let keys: Vec<String> = from.run(&format!("CLUSTER GETKEYSINSLOT {slot} 100")).await.unwrap();
    cluster.move_keys(&keys, 1, 0).await.unwrap();
    let owner: String = back.run("CLUSTER MYID").await.unwrap();
    from.run::<()>(&format!("CLUSTER SETSLOT {slot} NODE {owner}")).await.unwrap();
    let before = refusals(back, "MOVED").await + refusals(from, "MOVED").await;
    assert!(is_refused_as(&sell(&inventory, &moving, "c").await, "MOVED"));
    let asked = refusals(back, "MOVED").await + refusals(from, "MOVED").await - before;
    assert!(asked > 6, "asked {asked} times");
    cluster.end_move(slot, 1, 0).await.unwrap();
    assert_eq!(sell(&inventory, &moving, "c").await.unwrap(), 3);
}

/// Goal: while the keys of an item are at two nodes, or at a node that does not have the slot yet, its orders are refused:
/// retryable, and with nothing written. Afterwards the item sells on.
#[tokio::test]
async fn an_item_pauses_while_its_slot_moves() {
    let cluster = start(RedisClusterOptions::default()).await;
    let inventory = connect(&seller(&cluster).await).await;
    let [moving, other, _] = item_of_each(&cluster).await;
    for item in [&moving, &other] {
        inventory.start(item, Some(token(1)), 10).await.unwrap();
        assert_eq!(sell(&inventory, item, "a").await.unwrap(), 1);
    }
    let (slot, _) = cluster.place_of(&format!("stock:{{{moving}}}")).await.unwrap();
    cluster.begin_move(slot, 0, 1).await.unwrap();
    assert!(is_refused_as(&sell(&inventory, &moving, "b").await, "TRYAGAIN"));
    let asked = refusals(&cluster.nodes[0], "TRYAGAIN").await;
    assert!(asked > 6, "an order waits for the end of a short move: asked {asked} times");
    let keys: Vec<String> =
        cluster.nodes[0].run(&format!("CLUSTER GETKEYSINSLOT {slot} 100")).await.unwrap();
    cluster.move_keys(&keys, 0, 1).await.unwrap();
    assert!(is_refused_as(&sell(&inventory, &moving, "b").await, "ASK"));
    // the other item is at the node that takes the slot
    assert_eq!(sell(&inventory, &other, "b").await.unwrap(), 2);
    inventory.check(None).await.unwrap();

    cluster.end_move(slot, 0, 1).await.unwrap();
    assert_eq!(sell(&inventory, &moving, "b").await.unwrap(), 2);
    assert_eq!(inventory.stock(&moving).await.unwrap().lucky, 2);
}

/// Goal: an inventory that sells nothing meanwhile learns the new primaries of all shards. Method: the new primaries have other
/// settings.
#[tokio::test]
async fn an_idle_inventory_follows_failovers() {
    let node_timeout = Duration::from_secs(3);
    let cluster = start(RedisClusterOptions { replicas: 1, node_timeout }).await;
    let inventory = connect(&cluster.url()).await;
    assert_told(&inventory.durability().await.unwrap(), &[]);
    for replica in &cluster.nodes[PRIMARIES..] {
        replica.run::<()>("CONFIG SET appendfsync everysec").await.unwrap();
        replica.run::<()>("CLUSTER FAILOVER TAKEOVER").await.unwrap();
    }
    eventually("the new primaries are known", async || {
        inventory.durability().await.is_ok_and(|told| told.len() == PRIMARIES)
    })
    .await;
    inventory.check(None).await.unwrap();
}

/// Goal: nodes that hang do not delay the request for the map, however long an answer may take. When all hang, the request ends.
#[tokio::test]
async fn nodes_that_hang_are_passed_over() {
    let cluster = start(RedisClusterOptions::default()).await;
    // they take connections, and never read
    let silent: Vec<_> = (0..5).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let silent = silent.iter().map(|node| node.local_addr().unwrap().to_string());
    let silent = silent.collect::<Vec<_>>().join(",");
    let url = cluster.url().replace("://", &format!("://{silent},"));
    let for_hours = InventoryOptions { connect_timeout: Duration::from_hours(1), ..store::PATIENT };
    within("it has the map", store::open(&url, for_hours)).await.unwrap();
    let url = format!("redis-cluster://{silent}");
    let error = within("all hang", store::open(&url, store::HASTY)).await.unwrap_err();
    assert!(matches!(error, InventoryError::Unreachable { .. }), "{error:?}");
}
