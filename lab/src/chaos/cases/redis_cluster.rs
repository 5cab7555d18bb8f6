//! A shard of a Redis Cluster that fails or hands a slot on.

use std::time::Duration;

use anyhow::Result;
use testkit::redis_cluster::PRIMARIES;
use testkit::{PrivateRedisCluster, RedisClusterOptions};
use tokio::time::{Instant, sleep};

use crate::chaos::case::Case;
use crate::chaos::scene::Scene;

/// A key of the item for which the load sends orders.
const STOCK: &str = "stock:{tea}";

/// The slots of a cluster, of which each primary has an equal share at first.
const SLOTS: usize = 16_384;

/// Refused buyers wait a second before they retry, and others must order meanwhile.
const BUYERS: u32 = 1000;
const ITEM: &[&str] = &["--item", "tea"];

pub(super) fn cases() -> Vec<Case> {
    let node_timeout = Duration::from_secs(2);
    let fault = "a shard's primary is killed while its replica lags";
    let killed = Case {
        connections: BUYERS,
        load_flags: ITEM,
        redis_cluster: Some(RedisClusterOptions { replicas: 1, node_timeout }),
        flags: &["--redis-replicas", "1"],
        // as in the failover of one Redis
        tolerates: &["unanswered", "sold_out_too_early", "not_all_held"],
        round: Duration::from_secs(10),
        goes_on_within: Duration::from_secs(4),
        ..Case::new("shard-killed", fault, &kill)
    };
    let unconfirmed = Case { flags: &[], ..killed };

    let moved = Case {
        connections: BUYERS,
        load_flags: ITEM,
        redis_cluster: Some(RedisClusterOptions::default()),
        round: Duration::from_secs(2),
        goes_on_within: Duration::from_secs(3),
        ..Case::new("slot-moved", "the item's slot moves to another shard", &move_slot)
    };

    vec![
        killed,
        // orders are lost; once an instance notices this, nothing is sold
        unconfirmed.as_control("redis-replicas", &["I2", "I5"]),
        moved,
        moved.without_safeguard("redirects", &["I5"]),
    ]
}

/// Cuts the replica off, so that it lacks the last orders, and kills the primary. After the replica was promoted, the killed node
/// comes back as its replica.
async fn kill(scene: &mut Scene) -> Result<()> {
    scene.until_all_sell(Duration::from_millis(150)).await?;
    let began = Instant::now();
    let calm = scene.random_millis(300, 800);
    let (_, primary) = place(scene).await?;
    // each shard has one primary and one replica
    let replica = (primary + PRIMARIES) % (2 * PRIMARIES);
    shards(scene).hold_replication(primary, replica).await?;
    sleep(calm).await;
    nodes(scene)[primary].kill().await?;
    scene
        .until("the replica is promoted", async || {
            Ok((shards(scene).place_of(STOCK).await?.1 == Some(replica)).then_some(()))
        })
        .await?;
    nodes(scene)[primary].restart().await?;
    scene
        .until("the killed node follows", async || {
            let info: String = shards(scene).nodes[replica].run("INFO replication").await?;
            Ok(info.contains("state=online").then_some(()))
        })
        .await?;
    scene.evidence.outage(began.elapsed());
    Ok(())
}

/// Moves the slot on and on, but never back to where the instances first saw it.
async fn move_slot(scene: &mut Scene) -> Result<()> {
    let began = Instant::now();
    let (slot, from) = place(scene).await?;
    let first = usize::from(slot) * PRIMARIES / SLOTS;
    let to = (0..PRIMARIES).find(|node| ![first, from].contains(node)).unwrap_or(first);
    shards(scene).begin_move(slot, from, to).await?;
    shards(scene).end_move(slot, from, to).await?;
    scene.evidence.outage(began.elapsed());
    Ok(())
}

/// The slot of the item, and the node that serves it.
async fn place(scene: &Scene) -> Result<(u16, usize)> {
    scene
        .until("a node serves the item", async || {
            let (slot, node) = shards(scene).place_of(STOCK).await?;
            Ok(node.map(|node| (slot, node)))
        })
        .await
}

fn shards(scene: &Scene) -> &PrivateRedisCluster {
    scene.cluster.shards.as_ref().expect("the case has them")
}

fn nodes(scene: &mut Scene) -> &mut [testkit::PrivateRedis] {
    &mut scene.cluster.shards.as_mut().expect("the case has them").nodes
}
