//! A store that dies, sleeps, forgets or is full.

use std::time::Duration;

use futures_util::FutureExt as _;
use hyper::Method;
use tokio::time::{Instant, sleep};

use crate::chaos::error::ChaosError;
use crate::chaos::row::{Control, LoadPlan, Row, Setup, Trial};
use crate::chaos::scene::Scene;
use crate::demo::probe;

pub(super) fn rows() -> Vec<Row> {
    vec![killed(), stopped(), flushed(), full()]
}

fn killed() -> Row {
    let setup = Setup { load: LoadPlan::SELLS_OUT, ..Setup::USUAL };
    let trial = Trial {
        setup,
        play: |scene| kill(scene).boxed_local(),
        round: Duration::from_secs(3),
        goes_on_within: Duration::from_secs(2),
        proof: "Redis restarted",
    };
    Row {
        name: "redis-killed",
        fault: "Redis is killed and started again",
        controls: vec![Control {
            without: "appendonly",
            trial: Trial { setup: Setup { redis_volatile: true, ..setup }, ..trial.clone() },
            breaks: &["I2"],
        }],
        trial,
        rounds: 3,
        alone: false,
    }
}

fn stopped() -> Row {
    let setup = Setup::USUAL;
    let trial = Trial {
        setup,
        play: |scene| stop(scene).boxed_local(),
        round: Duration::from_secs(5),
        goes_on_within: Duration::from_secs(2),
        proof: "Redis stopped",
    };
    Row {
        name: "redis-stopped",
        fault: "Redis stands still for 2 s",
        controls: vec![Control {
            without: "careful-retry",
            trial: Trial {
                setup: Setup { flags: &["--without", "careful-retry"], ..setup },
                ..trial.clone()
            },
            breaks: &["I2", "I3"],
        }],
        trial,
        rounds: 3,
        alone: false,
    }
}

fn flushed() -> Row {
    let setup = Setup::USUAL;
    let trial = Trial {
        setup,
        play: |scene| flush(scene).boxed_local(),
        round: Duration::from_secs(1),
        goes_on_within: Duration::from_secs(1),
        proof: "script caches flushed",
    };
    Row {
        name: "scripts-flushed",
        fault: "Redis forgets its scripts",
        controls: vec![Control {
            without: "script-reload",
            trial: Trial {
                setup: Setup { flags: &["--without", "script-reload"], ..setup },
                ..trial.clone()
            },
            breaks: &["I5"],
        }],
        trial,
        rounds: 3,
        alone: false,
    }
}

fn full() -> Row {
    Row {
        name: "redis-full",
        fault: "Redis hits its memory limit",
        trial: Trial {
            // those who are told to ask again in a second wait so long, and others come meanwhile
            setup: Setup {
                load: LoadPlan { connections: 1000, ..LoadPlan::USUAL },
                ..Setup::USUAL
            },
            play: |scene| fill(scene).boxed_local(),
            round: Duration::from_secs(2),
            goes_on_within: Duration::from_secs(1),
            proof: "clear refusals",
        },
        controls: vec![],
        rounds: 3,
        alone: false,
    }
}

async fn kill(scene: &mut Scene) -> Result<(), ChaosError> {
    while scene.next_round().await {
        let began = Instant::now();
        let killed = scene.redis.kill().await;
        killed.map_err(ChaosError::system("Redis cannot be killed"))?;
        sleep(scene.random.millis(0, 500)).await;
        scene.redis.restart().await?;
        scene.evidence.outage(began.elapsed());
        scene.evidence.saw("Redis restarted", 1);
    }
    Ok(())
}

/// For a little less or more than an instance waits for an answer.
async fn stop(scene: &mut Scene) -> Result<(), ChaosError> {
    while scene.next_round().await {
        let began = Instant::now();
        let stopped = scene.redis.child().pause();
        stopped.map_err(ChaosError::system("Redis cannot be stopped"))?;
        sleep(scene.random.millis(1900, 2700)).await;
        let resumed = scene.redis.child().resume();
        resumed.map_err(ChaosError::system("Redis cannot be resumed"))?;
        scene.evidence.outage(began.elapsed());
        scene.evidence.saw("Redis stopped", 1);
    }
    Ok(())
}

async fn flush(scene: &mut Scene) -> Result<(), ChaosError> {
    while scene.next_round().await {
        command(scene, "SCRIPT FLUSH").await?;
        scene.evidence.saw("script caches flushed", 1);
    }
    Ok(())
}

/// An order that meets a full store is told so, at once and in words that say what it is.
async fn fill(scene: &mut Scene) -> Result<(), ChaosError> {
    while scene.next_round().await {
        let began = Instant::now();
        command(scene, "CONFIG SET maxmemory 1").await?;
        let port = scene.sites[scene.random.clone().below(scene.sites.len())].instance.port;
        let asked = Instant::now();
        let answer = probe::http(Method::POST, port, "/stock/reduce", "").await;
        let took = asked.elapsed();
        command(scene, "CONFIG SET maxmemory 0").await?;
        scene.evidence.outage(began.elapsed());
        match answer {
            Ok((status, text)) if status == 503 && text.contains("store-unavailable") => {
                scene.evidence.saw("clear refusals", 1);
                if took > Duration::from_secs(1) {
                    let sentence = format!("a full store was told after {took:?}");
                    scene.evidence.complain("I5", sentence);
                }
            }
            Ok((status, text)) => {
                let sentence = format!("a full store was told as {status}: {text}");
                scene.evidence.complain("503", sentence);
            }
            Err(error) => scene.evidence.complain("503", format!("a full store: {error}")),
        }
    }
    Ok(())
}

async fn command(scene: &Scene, command: &str) -> Result<(), ChaosError> {
    let answer = probe::redis(scene.redis.port(), command).await;
    let answer = answer.map_err(ChaosError::system("Redis does not answer"))?;
    if answer.starts_with("+OK") { Ok(()) } else { Err(ChaosError::Redis(answer)) }
}
