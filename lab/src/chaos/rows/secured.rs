//! Servers that ask for certificates and users, and change their minds.

use std::time::Duration;

use etcd_client::{Permission, RoleRevokePermissionOptions};
use futures_util::FutureExt as _;
use hyper::Method;
use testkit::{AuthTokens, LOCK_NAME, etcd, probe, redis};
use tokio::time::{Instant, sleep};

use super::etcd::{leader_lost, restart_once, restarted};
use crate::chaos::row::{Control, Play, Row, Setup, Trial};
use crate::chaos::scene::Scene;
use crate::error::LabError;

/// Tokens that do not end during a run.
const LASTING: u64 = 300;

/// How long those tokens live that do.
const SHORT: u64 = 2;

pub(super) fn rows() -> Vec<Row> {
    vec![
        Row {
            name: "secured-etcd-killed",
            fault: "the only etcd, with TLS and users, is killed and started again",
            ..without_reauthentication(secured(restarted()), |scene| {
                restart_once(scene).boxed_local()
            })
        },
        Row {
            name: "secured-leader-lost",
            fault: "the leader of three etcd members with TLS and users is killed, or stands still",
            rounds: 2,
            ..secured(leader_lost())
        },
        Row {
            name: "token-expired-simple",
            fault: "etcd's simple tokens expire after 2 s without use",
            ..row(AuthTokens::Simple(SHORT), |scene| outlive(scene).boxed_local(), OUTLIVED)
        },
        Row {
            name: "token-expired-jwt",
            fault: "etcd's JWTs expire after 2 s",
            ..row(AuthTokens::Jwt(SHORT), |scene| outlive(scene).boxed_local(), OUTLIVED)
        },
        Row {
            name: "role-changed",
            fault: "the roles of etcd's user change, which makes its JWT stale",
            ..without_reauthentication(
                row(AuthTokens::Jwt(LASTING), |scene| change_role(scene).boxed_local(), CHANGED),
                |scene| change_role(scene).boxed_local(),
            )
        },
        name_refused(),
        Row {
            name: "password-rotated",
            fault: "the passwords for etcd and Redis change, and old tokens and connections end",
            ..row(AuthTokens::Simple(LASTING), |scene| rotate(scene).boxed_local(), ROTATED)
        },
    ]
}

const OUTLIVED: &str = "tokens outlived";
const CHANGED: &str = "roles changed";
const ROTATED: &str = "passwords rotated";
const REFUSED: &str = "orders refused";

/// A row over secured servers; what its controls show, it shows without.
fn secured(mut row: Row) -> Row {
    row.trial.setup.secured = Some(AuthTokens::Simple(LASTING));
    row.controls.clear();
    row
}

fn row(tokens: AuthTokens, play: Play, proof: &'static str) -> Row {
    let trial = Trial {
        setup: Setup { secured: Some(tokens), ..Setup::USUAL },
        play,
        round: Duration::from_secs(4),
        goes_on_within: Duration::from_secs(2),
        tolerates: &[],
        proof,
    };
    Row { name: "", fault: "", trial, controls: vec![], rounds: 3, alone: false }
}

/// The row with a control that shows what authenticating anew is for.
fn without_reauthentication(row: Row, play: Play) -> Row {
    let setup = Setup { flags: &["--without", "reauthentication"], ..row.trial.setup };
    Row {
        controls: vec![Control {
            without: "reauthentication",
            trial: Trial { setup, play, ..row.trial.clone() },
            breaks: &["I5"],
        }],
        ..row
    }
}

fn name_refused() -> Row {
    let play: Play = |scene| refuse_name(scene).boxed_local();
    let row = row(AuthTokens::Simple(LASTING), play, REFUSED);
    // the fault stops nobody: what is left is a machine with much to do
    let trial =
        Trial { round: Duration::ZERO, goes_on_within: Duration::from_secs(1), ..row.trial };
    let setup = Setup { flags: &["--without", "denials"], ..trial.setup };
    Row {
        name: "name-refused",
        fault: "of two items, etcd's user may use the lock of one; both are ordered",
        controls: vec![Control {
            without: "denials",
            trial: Trial { setup, ..trial.clone() },
            breaks: &["session"],
        }],
        trial,
        ..row
    }
}

/// As long as the store stands still, nobody has anything to ask etcd.
async fn outlive(scene: &mut Scene) -> Result<(), LabError> {
    while scene.next_round().await {
        let began = Instant::now();
        let failed = LabError::system("Redis cannot be stopped and resumed");
        scene.cluster.redis.child().pause().map_err(&failed)?;
        sleep(Duration::from_secs(SHORT + 1)).await;
        scene.cluster.redis.child().resume().map_err(&failed)?;
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

/// The orders of the other item are told at once that its lock is refused.
async fn refuse_name(scene: &mut Scene) -> Result<(), LabError> {
    let port = scene.cluster.instances[0].port;
    let put = probe::http(Method::PUT, port, "/stock?item=refused", r#"{"stock":9}"#).await;
    put.map_err(LabError::system("the other item has no stock"))?;
    let (items, all) = (format!("{LOCK_NAME}:"), RoleRevokePermissionOptions::new().with_prefix());
    // once the sale runs: it does not begin while a lock is refused
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
                told => scene.evidence.complain("refusal", format!("the order was told {told:?}")),
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
