//! A Redis that dies, hangs, loses data or is full.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::FutureExt as _;
use hyper::Method;
use testkit::probe;
use testkit::replication::follow;
use tokio::time::{Instant, sleep};

use crate::chaos::scenario::{Control, LoadPlan, Run, Scenario, Setup};
use crate::chaos::scene::Scene;
use crate::error::LabError;
use demo::cluster::Cluster;

/// The bytes that a roll-back loses: more than any instance sells in a turn.
const LOST_BYTES: usize = 256 << 10;

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![killed(), failed_over(), rolled_back(), stopped(), flushed(), full()]
}

fn killed() -> Scenario {
    let setup = Setup { load: LoadPlan::SELLS_OUT, ..Setup::USUAL };
    let run = Run {
        setup,
        inject: |scene| kill(scene).boxed_local(),
        round: Duration::from_secs(3),
        goes_on_within: Duration::from_secs(2),
        proof: "Redis restarted",
    };
    Scenario::new("redis-killed", "Redis is killed and started again", run).control(Control {
        without: "appendonly",
        run: Run { setup: Setup { redis_volatile: true, ..setup }, ..run },
        // orders are lost; once that is detected, nothing is sold
        breaks: &["I2", "I5"],
    })
}

/// The primary is alone for a moment, so the promoted replica lacks what it took last. With `--redis-replicas` that is not
/// acknowledged. Without, the sale stops as soon as an instance sees the loss.
fn failed_over() -> Scenario {
    // a failover may last longer than a client waits
    let tolerates = &["failed", "unanswered"];
    let flags = &["--redis-replicas", "1"];
    let setup = Setup { redis_replicas: 2, flags, tolerates, ..Setup::USUAL };
    let run = Run {
        setup,
        inject: |scene| fail_over(scene).boxed_local(),
        round: Duration::from_secs(12),
        // the other replica follows the new primary
        goes_on_within: Duration::from_secs(4),
        proof: "replicas promoted",
    };
    let fault =
        "the primary of Redis dies, cut off from its replicas, and the sentinels promote one";
    let scenario = Scenario::new("redis-failed-over", fault, run).control(Control {
        without: "redis-replicas",
        run: Run { setup: Setup { flags: &[], ..setup }, ..run },
        breaks: &["I2", "I5"],
    });
    Scenario { rounds: 2, ..scenario }
}

/// Without a control: the scenario itself would find a sale that goes on from an older copy.
fn rolled_back() -> Scenario {
    // clients do not retry what an operator must resolve
    let tolerates = &["failed", "unanswered"];
    let run = Run {
        setup: Setup { load: LoadPlan::NOT_ALONE, tolerates, ..Setup::USUAL },
        inject: |scene| roll_back(scene).boxed_local(),
        round: Duration::from_secs(5),
        // every buyer waits a second before it retries
        goes_on_within: Duration::from_secs(3),
        proof: "roll-backs noticed",
    };
    let fault = "Redis comes back without the last orders of each instance, then with them";
    Scenario::new("redis-rolled-back", fault, run)
}

fn stopped() -> Scenario {
    let run = Run {
        setup: Setup::USUAL,
        inject: |scene| stop(scene).boxed_local(),
        round: Duration::from_secs(5),
        goes_on_within: Duration::from_secs(2),
        proof: "Redis stopped",
    };
    Scenario::new("redis-stopped", "Redis stands still for 2 s", run)
        .without("careful-retry", &["I2", "I3"])
}

fn flushed() -> Scenario {
    let run = Run {
        setup: Setup::USUAL,
        inject: |scene| flush(scene).boxed_local(),
        round: Duration::from_secs(1),
        goes_on_within: Duration::from_secs(1),
        proof: "script caches flushed",
    };
    Scenario::new("scripts-flushed", "Redis forgets its scripts", run)
        .without("script-reload", &["I5"])
}

fn full() -> Scenario {
    // refused buyers wait a second before they retry, and others must order meanwhile
    let load = LoadPlan { connections: 1000, ..LoadPlan::NOT_ALONE };
    let run = Run {
        setup: Setup { load, ..Setup::USUAL },
        inject: |scene| fill(scene).boxed_local(),
        round: Duration::from_secs(2),
        goes_on_within: Duration::from_secs(1),
        proof: "clear refusals",
    };
    Scenario::new("redis-full", "Redis hits its memory limit", run)
}

async fn kill(scene: &mut Scene) -> Result<(), LabError> {
    while scene.next_round().await {
        let began = Instant::now();
        let killed = scene.cluster.redis.kill().await;
        killed.map_err(LabError::system("Redis cannot be killed"))?;
        sleep(scene.random_millis(0, 500)).await;
        scene.cluster.redis.restart().await?;
        scene.evidence.outage(began.elapsed());
        scene.evidence.saw("Redis restarted", 1);
    }
    Ok(())
}

/// Lets the sentinels replace a primary that dies after its replicas stopped following it. The former one comes back as
/// a replica.
async fn fail_over(scene: &mut Scene) -> Result<(), LabError> {
    while scene.next_round().await {
        let alone = scene.random_millis(100, 400);
        let Cluster { redis, sentinels: Some(sentinels), .. } = &mut scene.cluster else { break };
        let began = Instant::now();
        sentinels.hold_writes_back(redis).await?;
        sleep(alone).await;
        redis.kill().await.map_err(LabError::system("Redis cannot be killed"))?;
        let former = sentinels.until_failed_over(redis).await?;
        scene.evidence.outage(began.elapsed());
        scene.evidence.saw("replicas promoted", 1);
        former.restart().await?;
        follow(former, redis, redis.port()).await?;
    }
    Ok(())
}

/// Cuts off the end of the append-only file, as a power loss may. Each instance must report it and sell
/// nothing until the whole file is back.
async fn roll_back(scene: &mut Scene) -> Result<(), LabError> {
    while scene.next_round().await {
        // an instance that sold none of the lost orders cannot detect the loss
        scene.until_all_sell(Duration::from_millis(150)).await?;
        let began = Instant::now();
        let no_kill = LabError::system("Redis cannot be killed");
        let no_file = LabError::system("what Redis has written cannot be changed");
        scene.cluster.redis.kill().await.map_err(&no_kill)?;
        let file = appended(&scene.cluster.redis.dir().join("appendonlydir")).map_err(&no_file)?;
        let whole = std::fs::read(&file).map_err(&no_file)?;
        let left = whole.len() - LOST_BYTES.min(whole.len() / 2);
        std::fs::write(&file, &whole[..left]).map_err(&no_file)?;
        scene.cluster.redis.restart().await?;
        let asked = Instant::now();
        while asked.elapsed() < Duration::from_secs(1) {
            for index in 0..scene.cluster.instances.len() {
                let port = scene.cluster.instances[index].port;
                let answer = probe::http(Method::POST, port, "/stock/reduce", "").await;
                match answer {
                    Ok((status, text)) if status == 503 && text.contains("store-rolled-back") => {
                        scene.evidence.saw("roll-backs noticed", 1);
                    }
                    Ok((status, text)) if status == 200 => scene
                        .evidence
                        .complain("I2", format!("sold on without the last orders: {text}")),
                    // not yet reconnected
                    Ok(_) | Err(_) => scene.evidence.saw("other refusals", 1),
                }
            }
            sleep(Duration::from_millis(50)).await;
        }
        scene.cluster.redis.kill().await.map_err(&no_kill)?;
        std::fs::write(&file, &whole).map_err(&no_file)?;
        scene.cluster.redis.restart().await?;
        scene.evidence.outage(began.elapsed());
    }
    Ok(())
}

/// The append-only file.
fn appended(dir: &Path) -> io::Result<PathBuf> {
    let mut files = std::fs::read_dir(dir)?.filter_map(Result::ok).map(|entry| entry.path());
    let is_appended = |path: &PathBuf| path.to_string_lossy().ends_with(".incr.aof");
    files.find(is_appended).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Pauses Redis for a little less or more than an instance waits for an answer.
async fn stop(scene: &mut Scene) -> Result<(), LabError> {
    while scene.next_round().await {
        let began = Instant::now();
        scene.pause_redis()?;
        sleep(scene.random_millis(1900, 2700)).await;
        scene.resume_redis()?;
        scene.evidence.outage(began.elapsed());
        scene.evidence.saw("Redis stopped", 1);
    }
    Ok(())
}

async fn flush(scene: &mut Scene) -> Result<(), LabError> {
    while scene.next_round().await {
        scene.cluster.redis.run::<()>("SCRIPT FLUSH").await?;
        scene.evidence.saw("script caches flushed", 1);
    }
    Ok(())
}

/// Fills Redis. An order must be refused at once, for that reason.
async fn fill(scene: &mut Scene) -> Result<(), LabError> {
    while scene.next_round().await {
        let began = Instant::now();
        scene.cluster.redis.run::<()>("CONFIG SET maxmemory 1").await?;
        let index = scene.pick();
        let port = scene.cluster.instances[index].port;
        let asked = Instant::now();
        let answer = probe::http(Method::POST, port, "/stock/reduce", "").await;
        let took = asked.elapsed();
        scene.cluster.redis.run::<()>("CONFIG SET maxmemory 0").await?;
        scene.evidence.outage(began.elapsed());
        match answer {
            Ok((status, text)) if status == 503 && text.contains("store-unavailable") => {
                scene.evidence.saw("clear refusals", 1);
                if took > Duration::from_secs(1) {
                    let message = format!("a full store was reported after {took:?}");
                    scene.evidence.complain("I5", message);
                }
            }
            Ok((status, text)) => {
                let message = format!("a full store was reported as {status}: {text}");
                scene.evidence.complain("503", message);
            }
            Err(error) => scene.evidence.complain("503", format!("a full store: {error}")),
        }
    }
    Ok(())
}
