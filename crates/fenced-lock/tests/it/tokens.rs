//! An etcd whose tokens end.

use etcd_client::{Client, ConnectOptions};
use fenced_lock::{Guard, LockError, Session};
use testkit::wait::{eventually, within};
use testkit::{EtcdOptions as ServerOptions, OwnedDir, PrivateEtcd};
use tokio::task::JoinHandle;

use super::lab::{self, metric};
use super::permissions::{self, root_of, session_of, with_users};

/// An etcd whose tokens are signed texts that end after three seconds, used or not.
async fn with_short_tokens() -> (OwnedDir, PrivateEtcd) {
    let dir = OwnedDir::create().unwrap();
    let key = dir.path().join("key");
    std::fs::write(&key, "a secret of the cluster").unwrap();
    let tokens = format!("jwt,sign-method=HS256,priv-key={},ttl=3s", key.display());
    let flags = ["--auth-token", &tokens, "--bcrypt-cost", "4"].map(str::to_owned).to_vec();
    let etcd = PrivateEtcd::start(ServerOptions { flags, ..Default::default() }).await.unwrap();
    (dir, etcd)
}

/// Waits until a token that is given now has ended.
async fn until_tokens_have_ended(etcd: &PrivateEtcd) {
    let options = ConnectOptions::new().with_user("app", "secret");
    let client = Client::connect([etcd.endpoint()], Some(options)).await.unwrap();
    let has_ended = async || client.clone().get("allowed/", None).await.is_err();
    eventually("a token ends", has_ended).await;
}

/// A waiter behind a key of another client.
async fn waiter(
    root: &mut Client,
    session: &Session,
    name: &str,
) -> JoinHandle<Result<Guard, LockError>> {
    root.put(format!("{name}/first"), "", None).await.unwrap();
    lab::waiter(&session.mutex(name).unwrap(), 2).await
}

/// Goal: when etcd has forgotten its tokens in a restart, a holder may hand over, waiters are granted and a holder is told of
/// its loss all the same; and the watch is made anew once, however many names it watched.
#[tokio::test]
async fn tokens_forgotten_in_a_restart_are_no_matter() {
    let mut etcd = PrivateEtcd::start(ServerOptions::default()).await.unwrap();
    let mut root = with_users(&etcd).await;
    let session = session_of("root", &etcd).await;
    let mut guard = session.mutex("held").unwrap().lock().await.unwrap();
    let mut waiters = Vec::new();
    for number in 0..50 {
        waiters.push(waiter(&mut root, &session, &format!("name-{number}")).await);
    }
    for asks_at_once in [false, true] {
        etcd.kill().await.unwrap();
        etcd.restart().await.unwrap();
        if asks_at_once {
            guard = guard.requeue().await.unwrap();
        }
        eventually("the watch runs", async || !guard.is_contended()).await;
    }
    let mut root = root_of(&etcd).await;
    for number in 0..50 {
        root.delete(format!("name-{number}/first"), None).await.unwrap();
    }
    for waiter in waiters {
        drop(within("the waiter is granted", waiter).await.unwrap().unwrap());
    }
    root.delete(guard.key(), None).await.unwrap();
    within("the holder is told", guard.lost()).await;
    let streams = metric(&etcd, "started", "Watch").await;
    assert!(streams <= 3, "{streams} streams");
}

/// Goal: a name that is new when the watch's token has ended is watched at once, and those that were watched before are
/// watched again. Method: etcd refuses a watcher with each token that has ended, and each time one more stream is opened.
#[tokio::test]
async fn a_token_that_ended_stalls_no_new_name() {
    let (_dir, etcd) = with_short_tokens().await;
    let mut root = with_users(&etcd).await;
    permissions::allow(&mut root, "allowed").await;
    for number in 0..3 {
        permissions::allow(&mut root, &format!("new-{number}")).await;
    }
    let app = session_of("app", &etcd).await;
    let mut root = root_of(&etcd).await;
    let first = waiter(&mut root, &app, "allowed").await;
    for number in 0..3 {
        until_tokens_have_ended(&etcd).await;
        let name = format!("new-{number}");
        let mut root = root_of(&etcd).await;
        let waiter = waiter(&mut root, &app, &name).await;
        root.delete(format!("{name}/first"), None).await.unwrap();
        drop(within("the waiter is granted", waiter).await.unwrap().unwrap());
    }
    root_of(&etcd).await.delete("allowed/first", None).await.unwrap();
    drop(within("the first waiter is granted", first).await.unwrap().unwrap());
    assert_eq!(metric(&etcd, "started", "Watch").await, 4, "one for each token");
}
