//! Goal: named items sell over the shards of a Redis Cluster as over one Redis, also while slots move and
//! primaries fail. Method: private clusters of three primaries, with replicas where a primary fails.

use std::collections::BTreeSet;
use std::error::Error;
use std::net::TcpListener;
use std::time::Duration;

use flash_sale::inventory::{Inventory, InventoryError, InventoryOptions, Item, Order, User};
use futures_util::future::join_all;
use testkit::redis::{RIGHTS, RedisOptions, USER};
use testkit::redis_cluster::PRIMARIES;
use testkit::wait::{eventually, within};
use testkit::{PrivateRedis, PrivateRedisCluster, Proxy, RedisClusterOptions};
use tokio::time::Instant;

use super::durability::assert_told;
use super::replicas::{HASTY, PATIENT, assert_not_replicated};
use super::{accepted, connect, fresh_database, order, token};
use crate::support::store;

async fn start(options: RedisClusterOptions) -> PrivateRedisCluster {
    PrivateRedisCluster::start(options).await.unwrap()
}

/// A cluster in which replicas take over soon.
async fn with_replicas() -> PrivateRedisCluster {
    start(RedisClusterOptions { replicas: 1, node_timeout: Duration::from_secs(3) }).await
}

fn item(name: &str) -> Item {
    name.parse().unwrap()
}

async fn sell(inventory: &Inventory, item: &Item, id: &str) -> Result<u64, InventoryError> {
    let order = Order { item: item.clone(), ..order(id, 1) };
    let outcomes = inventory.reduce(item, Some(token(1)), "8080", &[order]).await?;
    Ok(accepted(&outcomes[0]).position)
}

/// Sells as soon as it works.
async fn sell_when_possible(inventory: &Inventory, item: &Item, id: &str) -> u64 {
    let mut sold = None;
    eventually("it sells", async || {
        match sell(inventory, item, id).await {
            Ok(position) => sold = Some(position),
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
        sold.is_some()
    })
    .await;
    sold.unwrap()
}

/// The address with a user that has the rights of an instance and no more.
async fn seller(cluster: &PrivateRedisCluster) -> String {
    for node in &cluster.nodes {
        let rights = format!("{} +cluster|slots +asking", RIGHTS.trim());
        node.run::<()>(&format!("ACL SETUSER {USER} on >word {rights}")).await.unwrap();
    }
    cluster.url().replace("://", &format!("://{USER}:word@"))
}

/// For each primary, an item of its own.
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

/// Goal: many items over all shards sell what they have, once each, from two inventories; every read works.
#[tokio::test]
async fn items_sell_over_all_shards() {
    let cluster = start(RedisClusterOptions::default()).await;
    let (one, other) = (connect(&seller(&cluster).await).await, connect(&cluster.url()).await);
    assert_told(&one.durability().await.unwrap(), &[]);
    one.check(None).await.unwrap();
    let items: Vec<Item> = (0..24).map(|n| item(&format!("item-{n}"))).collect();
    join_all(items.iter().map(async |item| one.start(item, Some(token(1)), 30).await.unwrap()))
        .await;
    let batch = async |inventory: &Inventory, item: &Item, n: usize| {
        let orders: Vec<Order> =
            (0..8).map(|k| Order { item: item.clone(), ..order(&format!("{n}-{k}"), 1) }).collect();
        inventory.reduce(item, Some(token(1)), "8080", &orders).await.unwrap();
    };
    let sales = items.iter().map(async |item| {
        for n in 0..6 {
            batch(if n % 2 == 0 { &one } else { &other }, item, n).await;
        }
    });
    join_all(sales).await;
    let mut nodes = BTreeSet::new();
    for item in &items {
        let stock = other.stock(item).await.unwrap();
        assert_eq!((stock.stock, stock.lucky, stock.orders), (0, 30, 30));
        assert_eq!(other.available(item).await.unwrap(), 0);
        let ledger = one.ledger(item, 0, 100).await.unwrap().entries;
        let ids: BTreeSet<_> = ledger.iter().map(|order| order.order.as_str()).collect();
        assert_eq!(ids.len(), 30);
        assert_eq!(one.poll_since(item, None, 100).await.unwrap().entries.len(), 30);
        assert!(one.inspect(item).await.unwrap().stock.is_some());
        nodes.insert(cluster.place_of(&format!("stock:{{{item}}}")).await.unwrap().1);
    }
    assert_eq!(nodes.len(), PRIMARIES, "on all shards");
    one.check(None).await.unwrap();
}

/// Goal: a wrong password and a Redis that is no cluster are refused for good, with the reason and without the
/// password; a node that is away is none of that. A node without slots, such as one that was removed, hides those of
/// no other node; while no node has slots, the store cannot be reached.
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
        let error = Inventory::connect(&url, InventoryOptions::default()).await.unwrap_err();
        assert!(error.is_wrong_server(), "{error:?}");
        let told = format!("{:?} {}", error, error.source().unwrap());
        assert!(told.contains(reason) && !told.contains("hidden"), "{told}");
    }
    // one node is wrong for good, and the other away: it may be the right one
    let wrong = single.replace("redis://", "");
    for nodes in [format!("{wrong},127.0.0.1:1"), format!("127.0.0.1:1,{wrong}")] {
        let url = format!("redis-cluster://{nodes}");
        let error = Inventory::connect(&url, InventoryOptions::default()).await.unwrap_err();
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

/// Goal: an item sells on when its slot has moved to a node that does not have the scripts, without an error;
/// then the map is known, and the old node is left alone. A call is sent again while two nodes name each other, as for a
/// moment at the end of a move.
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
    assert!(moved().await > 0, "the old node was asked");
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

/// Goal: while the keys of an item are at two nodes, its orders are refused, retryable and with nothing written;
/// a command whose keys have all moved is served at the new node; afterwards the item sells on.
#[tokio::test]
async fn an_item_pauses_while_its_slot_moves() {
    let cluster = start(RedisClusterOptions::default()).await;
    let inventory = connect(&seller(&cluster).await).await;
    let [moving, other, _] = item_of_each(&cluster).await;
    for item in [&moving, &other] {
        inventory.start(item, Some(token(1)), 10).await.unwrap();
        assert_eq!(sell(&inventory, item, "a").await.unwrap(), 1);
    }
    let stock = format!("stock:{{{moving}}}");
    let (slot, _) = cluster.place_of(&stock).await.unwrap();
    cluster.begin_move(slot, 0, 1).await.unwrap();
    assert!(is_refused_as(&sell(&inventory, &moving, "b").await, "TRYAGAIN"));
    let asked = refusals(&cluster.nodes[0], "TRYAGAIN").await;
    assert!(asked > 6, "an order waits for the end of a short move: asked {asked} times");
    cluster.move_keys(std::slice::from_ref(&stock), 0, 1).await.unwrap();
    assert!(is_refused_as(&sell(&inventory, &moving, "b").await, "TRYAGAIN"));
    assert!(is_refused_as(&inventory.stock(&moving).await, "TRYAGAIN"));
    assert_eq!(inventory.available(&moving).await.unwrap(), 9, "by ASK");
    // the other item is at the node that takes the slot
    assert_eq!(sell(&inventory, &other, "b").await.unwrap(), 2);
    inventory.check(None).await.unwrap();

    cluster.end_move(slot, 0, 1).await.unwrap();
    assert_eq!(sell_when_possible(&inventory, &moving, "b").await, 2);
    assert_eq!(inventory.stock(&moving).await.unwrap().lucky, 2);
}

/// Goal: an inventory that sold nothing meanwhile finds the new primaries of all shards.
#[tokio::test]
async fn an_idle_inventory_follows_failovers() {
    let cluster = with_replicas().await;
    let [checks, pings] = [connect(&cluster.url()).await, connect(&cluster.url()).await];
    for n in 0..PRIMARIES {
        let (primary, replica) = (&cluster.nodes[n], &cluster.nodes[PRIMARIES + n]);
        replica.run::<()>("CLUSTER FAILOVER TAKEOVER").await.unwrap();
        eventually("the roles are changed", async || {
            primary.run::<String>("INFO replication").await.unwrap().contains("role:slave")
        })
        .await;
    }
    eventually("the check succeeds", async || checks.check(None).await.is_ok()).await;
    eventually("the ping succeeds", async || pings.ping().await.is_ok()).await;
}

/// Goal: nodes that hang do not hold up the question for the map, however long an answer may take; where all
/// hang, the question ends.
#[tokio::test]
async fn nodes_that_hang_are_passed_over() {
    let cluster = start(RedisClusterOptions::default()).await;
    // they take connections, and never read
    let silent: Vec<_> = (0..5).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let silent = silent.iter().map(|node| node.local_addr().unwrap().to_string());
    let silent = silent.collect::<Vec<_>>().join(",");
    let url = cluster.url().replace("://", &format!("://{silent},"));
    let began_at = Instant::now();
    within("it has the map", Inventory::connect(&url, store::PATIENT)).await.unwrap();
    assert!(began_at.elapsed() < store::PATIENT.connect_timeout, "{:?}", began_at.elapsed());
    let url = format!("redis-cluster://{silent}");
    let error = within("all hang", Inventory::connect(&url, store::HASTY)).await.unwrap_err();
    assert!(matches!(error, InventoryError::Unreachable { .. }), "{error:?}");
}

/// Goal: an order without an answer is unknown, not refused; asked again with the same id, it was taken once.
/// Method: a node announces the port of a proxy, which swallows an answer.
#[tokio::test]
async fn a_lost_answer_is_unknown() {
    let cluster = start(RedisClusterOptions::default()).await;
    let [item, ..] = item_of_each(&cluster).await;
    let proxy = Proxy::to(cluster.nodes[0].port()).await.unwrap();
    let announce = format!("CONFIG SET cluster-announce-port {}", proxy.port());
    cluster.nodes[0].run::<()>(&announce).await.unwrap();
    eventually("the nodes know the new port", async || {
        let nodes =
            [1, 2].map(async |n| cluster.nodes[n].run::<String>("CLUSTER NODES").await.unwrap());
        join_all(nodes).await.iter().all(|lines| lines.contains(&format!(":{}@", proxy.port())))
    })
    .await;
    let inventory =
        connect(&format!("redis-cluster://127.0.0.1:{}", cluster.nodes[1].port())).await;
    inventory.start(&item, Some(token(1)), 10).await.unwrap();
    assert_eq!(sell(&inventory, &item, "a").await.unwrap(), 1);
    proxy.lose_answers(1);
    let error = sell(&inventory, &item, "b").await.unwrap_err();
    assert!(matches!(error, InventoryError::Unanswered { .. }), "{error:?}");
    assert!(!error.nothing_written() && error.is_retryable());
    assert_eq!(sell(&inventory, &item, "b").await.unwrap(), 2);
    assert_eq!(inventory.stock(&item).await.unwrap().lucky, 2);
}

/// Goal: a replica takes over that lacks an order. If that was acknowledged, the item stops, and no other; if
/// replicas are waited for, it was not, and the item sells on.
#[tokio::test]
async fn what_a_failover_lost_is_noticed() {
    let mut cluster = with_replicas().await;
    let plain = connect(&cluster.url()).await;
    let waiting = plain.clone().with_replicas(PATIENT);
    let [lost, other, _] = item_of_each(&cluster).await;
    // a second item of the same shard: its orders wait for the replica
    let mut n = 100;
    let waited = loop {
        let name = format!("item-{n}");
        if cluster.place_of(&format!("stock:{{{name}}}")).await.unwrap().1 == Some(0) {
            break item(&name);
        }
        n += 1;
    };
    for item in [&lost, &other, &waited] {
        waiting.start(item, Some(token(1)), 10).await.unwrap();
        sell(&waiting, item, "a").await.unwrap();
    }
    cluster.hold_replication(0, PRIMARIES).await.unwrap();
    assert_eq!(sell(&plain, &lost, "b").await.unwrap(), 2);
    assert_not_replicated(sell(&plain.clone().with_replicas(HASTY), &waited, "b").await);
    cluster.nodes[0].kill().await.unwrap();

    eventually("the loss is noticed", async || match sell(&plain, &lost, "c").await {
        Err(InventoryError::RolledBack { .. }) => true,
        Err(error) => {
            assert!(error.is_retryable(), "{error:?}");
            false
        }
        Ok(position) => panic!("sold at {position} after a loss"),
    })
    .await;
    assert_eq!(plain.rolled_back_items(), 1);
    sell(&plain, &other, "b").await.unwrap();
    let error = plain.order(&lost, &order("b", 1).id, &User::default()).await.unwrap_err();
    assert!(matches!(error, InventoryError::RolledBack { .. }), "{error:?}");
    cluster.nodes[0].restart().await.unwrap();
    let sold = sell_when_possible(&waiting, &waited, "c").await;
    assert_eq!(sold, 2, "the other order was not acknowledged");
}

/// Goal: a shard that is away does not hide the settings of the others.
#[tokio::test]
async fn the_settings_are_checked_without_a_shard() {
    let mut cluster = start(RedisClusterOptions::default()).await;
    let inventory = connect(&cluster.url()).await;
    cluster.nodes[1].run::<()>("CONFIG SET appendfsync everysec").await.unwrap();
    cluster.nodes[0].kill().await.unwrap();
    let mut warnings = inventory.durability().await.unwrap();
    let of = |n: usize| format!("127.0.0.1:{}: Redis", cluster.nodes[n].port());
    let (away, weak) =
        (of(0) + " cannot be reached", of(1) + " answers before its data is on disk");
    // the nodes come in the order of their addresses
    warnings.sort_by_key(|warning| !warning.contains("cannot be reached"));
    assert_told(&warnings, &[&away, &weak]);
}
