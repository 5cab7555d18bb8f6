//! Servers with TLS and users, whose tokens, roles and passwords change.

use std::time::Duration;

use anyhow::Result;
use etcd_client::{Permission, RoleRevokePermissionOptions};
use hyper::Method;
use testkit::{AuthTokens, LOCK_NAME, etcd, probe, redis};

use super::etcd::{killed, restart_once};
use crate::chaos::case::{Case, Fault};
use crate::chaos::scene::Scene;

/// The life of tokens that outlast a run, in seconds.
const LASTING: u64 = 300;

/// The life of tokens that end during a run, in seconds.
const SHORT: u64 = 2;

pub(super) fn cases() -> Vec<Case> {
    let case = |name, fault, tokens, inject: &'static dyn Fault| {
        let case = Case::new(name, fault, inject);
        Case { secured: Some(tokens), round: Duration::from_secs(4), ..case }
    };
    let killed = Case {
        name: "secured-etcd-killed",
        fault: "the only etcd, with TLS and users, is killed and started again",
        secured: Some(AuthTokens::Simple(LASTING)),
        ..killed()
    };
    let killed_once = Case { inject: &restart_once, ..killed };

    let fault = "etcd's simple tokens expire after 2 s without use";
    let tokens = AuthTokens::Simple(SHORT);
    let simple = case("token-expired-simple", fault, tokens, &wait_for_token_expiry);
    let (tokens, fault) = (AuthTokens::Jwt(SHORT), "etcd's JWTs expire after 2 s");
    let jwt = case("token-expired-jwt", fault, tokens, &wait_for_token_expiry);

    let fault = "the roles of etcd's user change, which makes its JWT stale";
    let tokens = AuthTokens::Jwt(LASTING);
    let changed = case("role-changed", fault, tokens, &change_role);

    let fault = "of two items, etcd's user may use the lock of one; both are ordered";
    let tokens = AuthTokens::Simple(LASTING);
    let refused = Case {
        round: Duration::ZERO,
        // the fault stops no instance: this time is for a busy machine
        goes_on_within: Duration::from_secs(1),
        proof: "clear refusals",
        ..case("name-refused", fault, tokens, &refuse_name)
    };

    let fault = "the passwords for etcd and Redis change, and old tokens and connections end";
    let rotated = case("password-rotated", fault, tokens, &rotate);

    vec![
        killed,
        killed_once.without_safeguard("reauthentication", &["I5"]),
        simple,
        jwt,
        changed,
        changed.without_safeguard("reauthentication", &["I5"]),
        refused,
        // the session ends only some orders later
        Case { rounds: 6, ..refused.without_safeguard("denials", &["session"]) },
        rotated,
    ]
}

/// Pauses Redis until the tokens have expired: no instance sends a request to etcd meanwhile.
async fn wait_for_token_expiry(scene: &mut Scene) -> Result<()> {
    scene.pause_redis(Duration::from_secs(SHORT + 1)).await?;
    Ok(())
}

async fn change_role(scene: &mut Scene) -> Result<()> {
    let mut root = scene.member().root().await?;
    let more = Permission::read(format!("chaos/{}", scene.evidence.times));
    root.role_grant_permission(etcd::USER, more).await?;
    Ok(())
}

/// Orders of the other item must be refused at once, with this reason.
async fn refuse_name(scene: &mut Scene) -> Result<()> {
    if scene.evidence.times == 1 {
        let port = scene.cluster.instances[0].port;
        probe::http(Method::PUT, port, "/stock?item=refused", r#"{"stock":9}"#).await?;
        // only once the sale runs, because an instance does not become ready while a lock is refused
        let all = RoleRevokePermissionOptions::new().with_prefix();
        let mut root = scene.member().root().await?;
        root.role_revoke_permission(etcd::USER, format!("{LOCK_NAME}:"), Some(all)).await?;
        return Ok(());
    }
    for index in 0..scene.cluster.instances.len() {
        scene.expect_refusal(index, "?item=refused", "lock-refused").await;
    }
    scene.expect_sessions("session").await;
    Ok(())
}

async fn rotate(scene: &mut Scene) -> Result<()> {
    scene.member().rotate_password().await?;
    scene.cluster.redis.rotate_password().await?;
    scene.cluster.redis.run::<i64>(&format!("CLIENT KILL USER {}", redis::USER)).await?;
    Ok(())
}
