//! An etcd that loses its leader, its history, its space or an answer.

use std::time::Duration;

use anyhow::Result;
use fenced_lock::chaos::Safeguard;
use testkit::{Direction, LOCK_NAME, Proxy};
use tokio::time::{Instant, sleep};

use crate::chaos::case::{Case, TTL};
use crate::chaos::etcd;
use crate::chaos::scene::{PROMPT, Scene};
use crate::experiment::compact as compact_etcd;
use testkit::cluster::Proxied;

/// How long a member is away: longer than the sale may pause.
const AWAY: Duration = Duration::from_secs(10);

const BREAK: Duration = Duration::from_millis(700);

/// The longest `Retry-After` of a refusal.
const RETRY_AFTER: Duration = Duration::from_secs(3);

pub(super) fn killed() -> Case {
    let fault = "the only etcd is killed and started again";
    Case {
        round: TTL + Duration::from_secs(3),
        goes_on_within: TTL + Duration::from_secs(3),
        ..Case::new("etcd-killed", fault, &restart)
    }
}

pub(super) fn cases() -> Vec<Case> {
    let fault = "the leader of three etcd members is killed, or stands still";
    let leader_lost = Case {
        etcd_members: 3,
        round: AWAY + Duration::from_secs(2),
        goes_on_within: 2 * TTL + Duration::from_secs(3),
        ..Case::new("etcd-leader-lost", fault, &lose_leader)
    };
    let one_endpoint = Case { one_endpoint: true, ..leader_lost };

    let fault = "etcd is compacted every 200 ms, and watches break";
    let compacted = Case {
        proxied: Proxied::Etcd,
        round: BREAK * 2,
        ..Case::new("etcd-compacted", fault, &compact).proven_by("compactions")
    };

    let full = Case {
        etcd_quota_bytes: Some(16 << 20),
        others_order: true,
        round: Duration::from_secs(6),
        ..Case::new("etcd-full", "etcd runs out of space, and gets some again", &fill)
            .proven_by("clear refusals")
    };
    let waits = Case { proof: "etcd out of space", ..full };

    let fault = "a member of etcd releases the lock, its answer is lost, and another one is asked";
    let unanswered = Case {
        etcd_members: 3,
        proxied: Proxied::Etcd,
        round: Duration::from_secs(3),
        // the fault stops no instance: this time is for a busy machine
        goes_on_within: Duration::from_secs(1),
        // its control also switches off a safeguard in the process of the suite
        alone: true,
        ..Case::new("release-unanswered", fault, &lose_answers)
    };

    vec![
        leader_lost,
        one_endpoint.as_control("a second endpoint", &["I5"]),
        killed(),
        killed().without_safeguard("re-watch", &["I5"]),
        compacted,
        compacted.without_safeguard("relist", &["I5"]),
        full,
        waits.without_safeguard("deadlines", &["I5"]),
        unanswered,
        unanswered.without_safeguard("unknown-release", &["false loss"]),
    ]
}

async fn lose_leader(scene: &mut Scene) -> Result<()> {
    let kills = scene.turn(2) == 0;
    let index = scene.leader().await?;
    // an instance with one endpoint must lose that very member
    if scene.case.one_endpoint && index != 0 {
        scene.end_rounds();
        return Ok(());
    }
    let began = Instant::now();
    scene.member_away = Some(index);
    if kills {
        scene.cluster.etcd[index].kill().await?;
    } else {
        scene.cluster.etcd[index].child().pause()?;
    }
    scene.leader().await?;
    sleep(AWAY.saturating_sub(began.elapsed())).await;
    if kills {
        scene.cluster.etcd[index].restart().await?;
    } else {
        scene.cluster.etcd[index].child().resume()?;
    }
    scene.member_away = None;
    Ok(())
}

async fn restart(scene: &mut Scene) -> Result<()> {
    let began = Instant::now();
    let away = scene.random_millis(0, 1500);
    scene.cluster.etcd[0].kill().await?;
    sleep(away).await;
    scene.cluster.etcd[0].restart().await?;
    scene.evidence.outage(began.elapsed());
    Ok(())
}

/// Restarts etcd once: a second restart may end the session and so repair the damage of the first.
pub(super) async fn restart_once(scene: &mut Scene) -> Result<()> {
    scene.end_rounds();
    restart(scene).await
}

/// Compacts all the time, and cuts an instance off for some compactions, so that its watch cannot go on where it ended.
async fn compact(scene: &mut Scene) -> Result<()> {
    let index = scene.pick();
    scene.cluster.instances[index].etcd_proxies.iter().for_each(Proxy::refuse);
    let began = Instant::now();
    let mut revision = 0;
    let mut is_cut = true;
    while began.elapsed() < BREAK * 2 {
        let compacted = compact_etcd(scene.member()).await?;
        if compacted > revision {
            scene.evidence.add("compactions", 1);
        }
        revision = compacted;
        sleep(Duration::from_millis(200)).await;
        if is_cut && began.elapsed() >= BREAK {
            scene.cluster.instances[index].etcd_proxies.iter().for_each(Proxy::accept);
            is_cut = false;
        }
    }
    scene.evidence.outage(BREAK);
    Ok(())
}

/// Loses the answer to a release. No instance waits for the answer to its release, so the suite takes the lock itself and loses
/// its own answer. Answers to the instances are lost as well.
async fn lose_answers(scene: &mut Scene) -> Result<()> {
    // for the suite's own release, whose answer is lost in this case only
    Safeguard::UnknownRelease.set(scene.case.without != Some("unknown-release"));
    let proxy = Proxy::to(scene.cluster.etcd[0].port()).await?;
    let session = etcd::session(&[proxy.url(), scene.cluster.etcd[1].endpoint()]).await?;
    let guard = session.mutex(LOCK_NAME)?.lock().await?;
    proxy.hold(Direction::ToClient);
    let released = guard.unlock().await;
    if let Err(error) = released {
        scene.evidence.broken("false loss", format!("after a release: {error}"));
    }
    session.close().await?;
    let index = scene.pick();
    scene.cluster.instances[index].etcd_proxies.iter().for_each(|proxy| proxy.lose_answers(1));
    Ok(())
}

/// While etcd takes no writes, orders are sold or refused, but answered at once.
async fn fill(scene: &mut Scene) -> Result<()> {
    let began = Instant::now();
    etcd::fill(scene.member()).await?;
    scene.evidence.add("etcd out of space", 1);
    let full = Instant::now();
    while full.elapsed() < TTL {
        for index in 0..scene.cluster.instances.len() {
            let (answer, took) = scene.order(index, "").await;
            match answer {
                Ok((status, _)) if status == 503 && took <= PROMPT => {
                    scene.evidence.add("clear refusals", 1);
                }
                Ok((status, _)) if (status == 200 || status == 409) && took <= PROMPT => {}
                other => {
                    let message =
                        format!("an order without space in etcd: {other:?} after {took:?}");
                    scene.evidence.broken("I5", message);
                }
            }
        }
        sleep(Duration::from_millis(100)).await;
    }
    etcd::free_space(scene.member()).await?;
    scene.evidence.outage(began.elapsed());
    // refused buyers wait this long before they retry: a shorter pause would join two outages
    sleep(RETRY_AFTER).await;
    Ok(())
}
