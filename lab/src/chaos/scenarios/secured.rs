//! Servers with TLS and users, whose tokens, roles and passwords change.

use std::time::Duration;

use etcd_client::{Permission, RoleRevokePermissionOptions};
use futures_util::FutureExt as _;
use hyper::Method;
use testkit::{AuthTokens, LOCK_NAME, etcd, probe, redis};
use tokio::time::{Instant, sleep};

use super::etcd::{leader_lost, restart_once, restarted};
use crate::chaos::scenario::{Run, Scenario, Setup};
use crate::chaos::scene::Scene;
use crate::error::LabError;

/// The life of tokens that outlast a run, in seconds.
const LASTING: u64 = 300;

/// The life of tokens that do not.
const SHORT: u64 = 2;

pub(super) fn scenarios() -> Vec<Scenario> {
    let restarted = secured(AuthTokens::Simple(LASTING), restarted().run);
    let restarted_once = Run { inject: |scene| restart_once(scene).boxed_local(), ..restarted };
    let leader_lost = secured(AuthTokens::Simple(LASTING), leader_lost().run);
    let run = |tokens, inject, proof| {
        let round = Duration::from_secs(4);
        let goes_on_within = Duration::from_secs(2);
        secured(tokens, Run { setup: Setup::USUAL, inject, round, goes_on_within, proof })
    };
    let outlived = |tokens| run(tokens, |scene| outlive(scene).boxed_local(), OUTLIVED);
    let changed = run(AuthTokens::Jwt(LASTING), |scene| change_role(scene).boxed_local(), CHANGED);
    let refused =
        run(AuthTokens::Simple(LASTING), |scene| refuse_name(scene).boxed_local(), REFUSED);
    let rotated = run(AuthTokens::Simple(LASTING), |scene| rotate(scene).boxed_local(), ROTATED);
    // the fault stops no instance: this is for a busy machine
    let refused = Run { round: Duration::ZERO, goes_on_within: Duration::from_secs(1), ..refused };
    vec![
        Scenario::new(
            "secured-etcd-killed",
            "the only etcd, with TLS and users, is killed and started again",
            restarted,
        )
        .control(restarted_once.without("reauthentication", &["I5"])),
        Scenario {
            rounds: 2,
            ..Scenario::new(
                "secured-leader-lost",
                "the leader of three etcd members with TLS and users is killed, or stands still",
                leader_lost,
            )
        },
        Scenario::new(
            "token-expired-simple",
            "etcd's simple tokens expire after 2 s without use",
            outlived(AuthTokens::Simple(SHORT)),
        ),
        Scenario::new(
            "token-expired-jwt",
            "etcd's JWTs expire after 2 s",
            outlived(AuthTokens::Jwt(SHORT)),
        ),
        Scenario::new(
            "role-changed",
            "the roles of etcd's user change, which makes its JWT stale",
            changed,
        )
        .without("reauthentication", &["I5"]),
        Scenario::new(
            "name-refused",
            "of two items, etcd's user may use the lock of one; both are ordered",
            refused,
        )
        .without("denials", &["session"]),
        Scenario::new(
            "password-rotated",
            "the passwords for etcd and Redis change, and old tokens and connections end",
            rotated,
        ),
    ]
}

const OUTLIVED: &str = "tokens outlived";
const CHANGED: &str = "roles changed";
const ROTATED: &str = "passwords rotated";
const REFUSED: &str = "orders refused";

/// The same run over secured servers.
fn secured(tokens: AuthTokens, run: Run) -> Run {
    Run { setup: Setup { secured: Some(tokens), ..run.setup }, ..run }
}

/// While Redis is paused, no instance has a request for etcd.
async fn outlive(scene: &mut Scene) -> Result<(), LabError> {
    while scene.next_round().await {
        let began = Instant::now();
        scene.pause_redis()?;
        sleep(Duration::from_secs(SHORT + 1)).await;
        scene.resume_redis()?;
        scene.evidence.outage(began.elapsed());
        scene.evidence.saw(OUTLIVED, 1);
    }
    Ok(())
}

async fn change_role(scene: &mut Scene) -> Result<(), LabError> {
    while scene.next_round().await {
        let mut root = scene.member().root().await?;
        let more = Permission::read(format!("chaos/{}", scene.evidence.times));
        root.role_grant_permission(etcd::USER, more).await?;
        scene.evidence.saw(CHANGED, 1);
    }
    Ok(())
}

/// Orders of the other item must be refused at once, for that reason.
async fn refuse_name(scene: &mut Scene) -> Result<(), LabError> {
    let port = scene.cluster.instances[0].port;
    let put = probe::http(Method::PUT, port, "/stock?item=refused", r#"{"stock":9}"#).await;
    put.map_err(LabError::system("the other item has no stock"))?;
    let (items, all) = (format!("{LOCK_NAME}:"), RoleRevokePermissionOptions::new().with_prefix());
    // only once the sale runs: an instance does not get ready while a lock is refused
    scene.next_round().await;
    let mut root = scene.member().root().await?;
    root.role_revoke_permission(etcd::USER, items, Some(all)).await?;
    while scene.next_round().await {
        for instance in &scene.cluster.instances {
            let path = "/stock/reduce?item=refused";
            match probe::http(Method::POST, instance.port, path, "").await {
                Ok((status, text)) if status == 503 && text.contains("lock-refused") => {
                    scene.evidence.saw(REFUSED, 1);
                }
                answer => scene.evidence.complain("refusal", format!("the order got {answer:?}")),
            }
        }
    }
    let lost = scene.counter("flash_sale_lost_sessions_total").await;
    if lost > 0 {
        scene.evidence.complain("session", format!("{lost} sessions were lost"));
    }
    Ok(())
}

async fn rotate(scene: &mut Scene) -> Result<(), LabError> {
    while scene.next_round().await {
        scene.member().rotate_password().await?;
        scene.cluster.redis.rotate_password().await?;
        scene.cluster.redis.run::<i64>(&format!("CLIENT KILL USER {}", redis::USER)).await?;
        scene.evidence.saw(ROTATED, 1);
    }
    Ok(())
}
