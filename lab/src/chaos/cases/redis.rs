//! A Redis that dies, hangs, loses data or is full.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use hyper::Method;
use testkit::probe;
use testkit::redis::follow;
use tokio::time::{Instant, sleep};

use crate::chaos::case::Case;
use crate::chaos::scene::Scene;
use testkit::cluster::Cluster;

/// The bytes that a roll-back loses: more than any instance sells in a turn.
const LOST_BYTES: usize = 256 << 10;

pub(super) fn cases() -> Vec<Case> {
    let killed = Case {
        round: Duration::from_secs(3),
        ..Case::new("redis-killed", "Redis is killed and started again", &kill)
    };
    let volatile = Case { redis_volatile: true, ..killed };

    // The primary is alone for a moment, so the promoted replica lacks its last writes. With `--redis-replicas` these were not
    // acknowledged. Without, the sale stops as soon as an instance sees the loss.
    let fault =
        "the primary of Redis dies, cut off from its replicas, and the sentinels promote one";
    let failed_over = Case {
        redis_replicas: 2,
        flags: &["--redis-replicas", "1"],
        // a failover may take longer than a client waits; it may also lose a batch that no replica confirmed, and then a reader
        // was wrongly told that all was sold or held
        tolerates: &["failed", "unanswered", "sold_out_too_early", "not_all_held"],
        round: Duration::from_secs(12),
        rounds: 2,
        // the other replica follows the new primary
        goes_on_within: Duration::from_secs(4),
        ..Case::new("redis-failed-over", fault, &fail_over)
    };
    let unconfirmed = Case { flags: &[], ..failed_over };

    let fault = "Redis comes back without the last orders of each instance, then with them";
    let rolled_back = Case {
        others_order: true,
        // clients do not retry an error that an operator must resolve
        tolerates: &["failed", "unanswered"],
        // every buyer waits a second before it retries
        goes_on_within: Duration::from_secs(3),
        ..Case::new("redis-rolled-back", fault, &roll_back).proven_by("roll-backs noticed")
    };

    let stopped = Case {
        // when few units are left, an order reads the stock first; if that fails, its buyer is refused and asks again after up to
        // three seconds
        goes_on_within: Duration::from_secs(4),
        ..Case::new("redis-stopped", "Redis stands still for 2 s", &stop)
    };

    let flushed = Case {
        round: Duration::from_secs(1),
        goes_on_within: Duration::from_secs(1),
        ..Case::new("scripts-flushed", "Redis forgets its scripts", &flush)
    };

    let full = Case {
        // refused buyers wait a second before they retry, and others must order meanwhile
        connections: 1000,
        others_order: true,
        round: Duration::from_secs(2),
        goes_on_within: Duration::from_secs(1),
        ..Case::new("redis-full", "Redis hits its memory limit", &fill).proven_by("clear refusals")
    };

    vec![
        killed,
        // orders are lost; once an instance notices this, nothing is sold
        volatile.as_control("appendonly", &["I2", "I5"]),
        failed_over,
        unconfirmed.as_control("redis-replicas", &["I2", "I5"]),
        // no control: the scenario itself would find a sale that goes on from an older copy
        rolled_back,
        stopped,
        stopped.without_safeguard("careful-retry", &["I2", "I3"]),
        flushed,
        flushed.without_holds().without_safeguard("script-reload", &["I5"]),
        full,
    ]
}

async fn kill(scene: &mut Scene) -> Result<()> {
    let began = Instant::now();
    scene.cluster.redis.kill().await?;
    sleep(scene.random_millis(0, 500)).await;
    scene.cluster.redis.restart().await?;
    scene.evidence.outage(began.elapsed());
    Ok(())
}

/// Lets the sentinels replace a primary that dies after its replicas stopped following it. The former primary comes back as a
/// replica. Each failover begins after the sale has gone on from the one before, so that no pause contains two of them.
async fn fail_over(scene: &mut Scene) -> Result<()> {
    scene.until_all_sell(Duration::from_millis(150)).await?;
    let alone = scene.random_millis(100, 400);
    let Cluster { redis, sentinels: Some(sentinels), .. } = &mut scene.cluster else {
        return Ok(());
    };
    let began = Instant::now();
    sentinels.hold_writes_back(redis).await?;
    sleep(alone).await;
    redis.kill().await?;
    let former = sentinels.until_failed_over(redis).await?;
    scene.evidence.outage(began.elapsed());
    former.restart().await?;
    follow(former, redis, redis.port()).await?;
    // the sentinel that led this failover finishes it only after naming the promoted replica, and cannot if that replica dies
    // earlier
    Ok(sentinels.until_settled(redis).await?)
}

/// Cuts off the end of the append-only file, as a power loss may. Each instance must report it and sell
/// nothing until the whole file is back.
async fn roll_back(scene: &mut Scene) -> Result<()> {
    // an instance that sold none of the lost orders cannot notice the loss
    scene.until_all_sell(Duration::from_millis(150)).await?;
    let began = Instant::now();
    scene.cluster.redis.kill().await?;
    let file = appended(&scene.cluster.redis.dir().join("appendonlydir"))?;
    let whole = std::fs::read(&file)?;
    let left = whole.len() - LOST_BYTES.min(whole.len() / 2);
    std::fs::write(&file, &whole[..left])?;
    scene.cluster.redis.restart().await?;
    let asked = Instant::now();
    while asked.elapsed() < Duration::from_secs(1) {
        for index in 0..scene.cluster.instances.len() {
            match scene.order(index, "").await.0 {
                Ok((status, text)) if status == 503 && text.contains("store-rolled-back") => {
                    scene.evidence.add("roll-backs noticed", 1);
                }
                Ok((status, text)) if status == 200 || status == 409 => {
                    let message = format!("sold on without the last orders: {text}");
                    scene.evidence.broken("I2", message);
                }
                // the instance has not reconnected yet
                Ok(_) | Err(_) => {}
            }
        }
        sleep(Duration::from_millis(50)).await;
    }
    scene.cluster.redis.kill().await?;
    std::fs::write(&file, &whole)?;
    scene.cluster.redis.restart().await?;
    scene.evidence.outage(began.elapsed());
    Ok(())
}

fn appended(dir: &Path) -> io::Result<PathBuf> {
    let mut files = std::fs::read_dir(dir)?.filter_map(Result::ok).map(|entry| entry.path());
    let is_appended = |path: &PathBuf| path.to_string_lossy().ends_with(".incr.aof");
    files.find(is_appended).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Pauses Redis for a little less or more than an instance waits for an answer.
async fn stop(scene: &mut Scene) -> Result<()> {
    let lasts = scene.random_millis(1900, 2700);
    scene.pause_redis(lasts).await?;
    Ok(())
}

async fn flush(scene: &mut Scene) -> Result<()> {
    scene.cluster.redis.run::<()>("SCRIPT FLUSH").await?;
    Ok(())
}

/// Fills Redis. An order of an item that is not sold out must be refused at once, with this reason.
async fn fill(scene: &mut Scene) -> Result<()> {
    let port = scene.cluster.instances[0].port;
    probe::http(Method::PUT, port, "/stock?item=left", r#"{"stock":9}"#).await?;
    let began = Instant::now();
    scene.cluster.redis.run::<()>("CONFIG SET maxmemory 1").await?;
    let index = scene.pick();
    scene.expect_refusal(index, "?item=left", "store-unavailable").await;
    scene.cluster.redis.run::<()>("CONFIG SET maxmemory 0").await?;
    scene.evidence.outage(began.elapsed());
    Ok(())
}
