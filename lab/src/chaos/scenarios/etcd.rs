//! An etcd that loses its leader, its history, its space or an answer.

use std::time::Duration;

use fenced_lock::chaos::Safeguard;
use futures_util::FutureExt as _;
use hyper::Method;
use rand::RngExt as _;
use testkit::{LOCK_NAME, Proxy, Way, probe};
use tokio::time::{Instant, sleep};

use crate::chaos::etcd;
use crate::chaos::scenario::{Control, LoadPlan, Run, Scenario, Setup, TTL};
use crate::chaos::scene::Scene;
use crate::error::LabError;
use demo::cluster::Proxied;

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![leader_lost(), restarted(), compacted(), out_of_space(), release_unanswered()]
}

/// How long a member is away: longer than the sale may pause.
const AWAY: Duration = Duration::from_secs(10);

/// How long a watch is broken.
const BREAK: Duration = Duration::from_millis(700);

/// The `Retry-After` of a refusal.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How soon an order must be answered while etcd takes no writes, on a busy machine.
const PROMPT: Duration = Duration::from_millis(1500);

pub(super) fn leader_lost() -> Scenario {
    let setup = Setup { etcd_members: 3, ..Setup::USUAL };
    let run = Run {
        setup,
        inject: |scene| lose_leader(scene).boxed_local(),
        round: AWAY + Duration::from_secs(2),
        goes_on_within: 2 * TTL + Duration::from_secs(3),
        proof: "leaders changed",
    };
    let fault = "the leader of three etcd members is killed, or stands still";
    Scenario::new("etcd-leader-lost", fault, run).control(Control {
        without: "a second endpoint",
        run: Run { setup: Setup { one_endpoint: true, ..setup }, ..run },
        breaks: &["I5"],
    })
}

pub(super) fn restarted() -> Scenario {
    let run = Run {
        setup: Setup::USUAL,
        inject: |scene| restart(scene).boxed_local(),
        round: TTL + Duration::from_secs(3),
        goes_on_within: TTL + Duration::from_secs(3),
        proof: "etcd restarted",
    };
    Scenario::new("etcd-killed", "the only etcd is killed and started again", run)
        .without("re-watch", &["I5"])
}

fn compacted() -> Scenario {
    let run = Run {
        setup: Setup { proxied: Proxied::Etcd, ..Setup::USUAL },
        inject: |scene| compact(scene).boxed_local(),
        round: BREAK * 2,
        goes_on_within: Duration::from_secs(2),
        proof: "compactions",
    };
    Scenario::new("etcd-compacted", "etcd is compacted every 200 ms, and watches break", run)
        .without("relist", &["I5"])
}

fn out_of_space() -> Scenario {
    let setup =
        Setup { etcd_quota_bytes: Some(16 << 20), load: LoadPlan::NOT_ALONE, ..Setup::USUAL };
    let run = Run {
        setup,
        inject: |scene| fill(scene).boxed_local(),
        round: Duration::from_secs(6),
        goes_on_within: Duration::from_secs(2),
        proof: "clear refusals",
    };
    let waits = Run { proof: "etcd out of space", ..run };
    Scenario::new("etcd-full", "etcd runs out of space, and gets some again", run)
        .control(waits.without("deadlines", &["I5"]))
}

fn release_unanswered() -> Scenario {
    let run = Run {
        setup: Setup { etcd_members: 3, proxied: Proxied::Etcd, ..Setup::USUAL },
        inject: |scene| lose_answers(scene).boxed_local(),
        round: Duration::from_secs(3),
        // the fault stops no instance: this is for a busy machine
        goes_on_within: Duration::from_secs(1),
        proof: "releases without an answer",
    };
    let fault = "a member of etcd releases the lock, its answer is lost, and another one is asked";
    Scenario::new("release-unanswered", fault, run).without("unknown-release", &["false loss"])
}

/// Kills and pauses the leader in turn.
async fn lose_leader(scene: &mut Scene) -> Result<(), LabError> {
    let mut kills = scene.rng.random_bool(0.5);
    while scene.next_round().await {
        let index = scene.leader().await?;
        // an instance with one endpoint must lose that member
        if scene.setup.one_endpoint && index != 0 {
            break;
        }
        let began = Instant::now();
        scene.member_away = Some(index);
        let lost = if kills {
            scene.cluster.etcd[index].kill().await
        } else {
            scene.cluster.etcd[index].child().pause()
        };
        lost.map_err(LabError::system("a member of etcd cannot be taken away"))?;
        scene.leader().await?;
        scene.evidence.saw("leaders changed", 1);
        sleep(AWAY.saturating_sub(began.elapsed())).await;
        if kills {
            scene.cluster.etcd[index].restart().await?;
        } else {
            let resumed = scene.cluster.etcd[index].child().resume();
            resumed.map_err(LabError::system("a member of etcd cannot be resumed"))?;
        }
        scene.member_away = None;
        kills = !kills;
    }
    Ok(())
}

async fn restart(scene: &mut Scene) -> Result<(), LabError> {
    while scene.next_round().await {
        restart_etcd(scene).await?;
    }
    Ok(())
}

/// Restarts etcd once: a second restart may end the session and so repair what the first one broke.
pub(super) async fn restart_once(scene: &mut Scene) -> Result<(), LabError> {
    if scene.next_round().await {
        restart_etcd(scene).await?;
    }
    Ok(())
}

async fn restart_etcd(scene: &mut Scene) -> Result<(), LabError> {
    let began = Instant::now();
    let away = scene.random_millis(0, 1500);
    let Some(etcd) = scene.cluster.etcd.first_mut() else { return Ok(()) };
    etcd.kill().await.map_err(LabError::system("etcd cannot be killed"))?;
    sleep(away).await;
    etcd.restart().await?;
    scene.evidence.outage(began.elapsed());
    scene.evidence.saw("etcd restarted", 1);
    Ok(())
}

/// Compacts all the time, and cuts an instance off for some compactions, so that its watch cannot go on
/// where it ended.
async fn compact(scene: &mut Scene) -> Result<(), LabError> {
    while scene.next_round().await {
        let index = scene.pick();
        scene.cluster.instances[index].etcd_proxies.iter().for_each(Proxy::refuse);
        let began = Instant::now();
        let mut revision = 0;
        let mut is_cut = true;
        while began.elapsed() < BREAK * 2 {
            let compacted = etcd::compact(scene.member()).await?;
            if compacted > revision {
                scene.evidence.saw("compactions", 1);
            }
            revision = compacted;
            sleep(Duration::from_millis(200)).await;
            if is_cut && began.elapsed() >= BREAK {
                scene.cluster.instances[index].etcd_proxies.iter().for_each(Proxy::admit);
                scene.evidence.saw("watches cut", 1);
                is_cut = false;
            }
        }
        scene.evidence.outage(BREAK);
    }
    Ok(())
}

/// The suite takes its turn in the queue and loses the answer to its release: the instances do not wait
/// for the end of theirs. Answers to them are lost as well.
async fn lose_answers(scene: &mut Scene) -> Result<(), LabError> {
    // for the suite's own release; in no other scenario is its answer lost
    Safeguard::UnknownRelease.set(scene.setup.without != Some("unknown-release"));
    while scene.next_round().await {
        let proxy = Proxy::to(scene.cluster.etcd[0].port()).await;
        let proxy = proxy.map_err(LabError::system("a proxy has no port"))?;
        let session = etcd::session(&[proxy.url(), scene.cluster.etcd[1].endpoint()]).await?;
        let mutex = session.mutex(LOCK_NAME)?;
        let guard = mutex.lock().await?;
        proxy.hold(Way::Back);
        let released = guard.unlock().await;
        scene.evidence.saw("releases without an answer", 1);
        if let Err(error) = released {
            scene.evidence.complain("false loss", format!("after a release: {error}"));
        }
        session.close().await?;
        let index = scene.pick();
        scene.cluster.instances[index].etcd_proxies.iter().for_each(|proxy| proxy.swallow(1));
    }
    let proxies = scene.cluster.instances.iter().flat_map(|instance| &instance.etcd_proxies);
    let swallowed = proxies.map(Proxy::swallowed_answers).sum();
    scene.evidence.saw("answers swallowed", swallowed);
    Ok(())
}

/// While etcd takes no writes, orders are sold or refused, but answered at once.
async fn fill(scene: &mut Scene) -> Result<(), LabError> {
    while scene.next_round().await {
        let began = Instant::now();

        etcd::fill(scene.member()).await?;
        scene.evidence.saw("etcd out of space", 1);
        let full = Instant::now();
        while full.elapsed() < TTL {
            for index in 0..scene.cluster.instances.len() {
                let port = scene.cluster.instances[index].port;
                let asked = Instant::now();
                let answer = probe::http(Method::POST, port, "/stock/reduce", "").await;
                let took = asked.elapsed();
                match answer {
                    Ok((status, _)) if status == 503 && took <= PROMPT => {
                        scene.evidence.saw("clear refusals", 1);
                    }
                    Ok((status, _)) if status == 200 && took <= PROMPT => {
                        scene.evidence.saw("orders sold without space", 1);
                    }
                    Ok((status, text)) => scene.evidence.complain(
                        "I5",
                        format!("without space in etcd an order was told {status} after {took:?}: {text}"),
                    ),
                    Err(error) => scene
                        .evidence
                        .complain("I5", format!("without space in etcd, no answer: {error}")),
                }
            }
            sleep(Duration::from_millis(100)).await;
        }
        etcd::make_room(scene.member()).await?;
        scene.evidence.outage(began.elapsed());
        // refused buyers wait this long before they retry: less would join two outages
        sleep(RETRY_AFTER).await;
    }
    Ok(())
}
