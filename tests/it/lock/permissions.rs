//! An etcd that asks who is there.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, Permission};
use flash_sale::demo::{EtcdOptions as ServerOptions, PrivateEtcd};
use flash_sale::lock::{
    BackendErrorKind, EtcdBackend, EtcdOptions, LockError, Session, SessionOptions,
};

use super::lab::{metric, queue_length};
use crate::support::{eventually, within};

pub(super) async fn session_of(user: &str, etcd: &PrivateEtcd) -> Session {
    let mut options = EtcdOptions::new([etcd.endpoint()]);
    options.user = Some((user.to_owned(), "secret".to_owned()));
    let backend = Arc::new(EtcdBackend::new(options).unwrap());
    Session::open(backend, SessionOptions::new(Duration::from_secs(20))).await.unwrap()
}

pub(super) async fn allow(root: &mut Client, lock: &str) {
    let keys = Permission::read_write(format!("{lock}/")).with_prefix();
    root.role_grant_permission("app", keys).await.unwrap();
}

/// Has etcd ask for users: `root`, and `app`, who may use the lock `allowed`. The client is root's.
pub(super) async fn with_users(etcd: &PrivateEtcd) -> Client {
    let mut client = Client::connect([etcd.endpoint()], None).await.unwrap();
    for name in ["root", "app"] {
        client.user_add(name, "secret", None).await.unwrap();
        client.role_add(name).await.unwrap();
        client.user_grant_role(name, name).await.unwrap();
    }
    allow(&mut client, "allowed").await;
    client.auth_enable().await.unwrap();
    let as_root = etcd_client::ConnectOptions::new().with_user("root", "secret");
    Client::connect([etcd.endpoint()], Some(as_root)).await.unwrap()
}

/// Goal: a lock that was refused for want of permission is an error at once, and no obstacle once the
/// permission is there: its queue is watched anew, though the first watcher was refused.
#[tokio::test]
async fn a_permission_that_comes_later_counts() {
    let etcd = PrivateEtcd::start(ServerOptions::default()).await.unwrap();
    let mut client = with_users(&etcd).await;
    let (app, root) = (session_of("app", &etcd).await, session_of("root", &etcd).await);
    let allowed = app.mutex("allowed").unwrap().lock().await.unwrap();
    eventually("the watch runs", async || !allowed.is_contended()).await;
    let mutex = app.mutex("refused").unwrap();
    let error = within("the refusal", mutex.lock()).await.unwrap_err();
    let is_permanent =
        matches!(&error, LockError::Backend(e) if e.kind == BackendErrorKind::Permanent);
    assert!(is_permanent, "{error:?}");

    allow(&mut client, "refused").await;
    let theirs = root.mutex("refused").unwrap();
    let guard = theirs.lock().await.unwrap();
    let waiter = tokio::spawn(async move { mutex.lock().await });
    queue_length(&theirs, 2).await;
    guard.unlock().await.unwrap();
    drop(within("the waiter is granted", waiter).await.unwrap().unwrap());
}

/// Goal: a queue that is only looked at is seen as soon as that is allowed.
#[tokio::test]
async fn a_look_that_is_allowed_later_counts() {
    let etcd = PrivateEtcd::start(ServerOptions::default()).await.unwrap();
    let mut root = with_users(&etcd).await;
    let app = session_of("app", &etcd).await;
    let mutex = app.mutex("refused").unwrap();
    assert!(mutex.lock().await.is_err());
    assert!(!mutex.sighting().unwrap().is_current);
    allow(&mut root, "refused").await;
    eventually("it is seen", async || mutex.sighting().unwrap().is_current).await;
}

/// Goal: names that a user may not use end no watch of those that it may.
#[tokio::test]
async fn denied_names_hinder_no_other() {
    let etcd = PrivateEtcd::start(ServerOptions::default()).await.unwrap();
    let _root = with_users(&etcd).await;
    let app = session_of("app", &etcd).await;
    let allowed = app.mutex("allowed").unwrap();
    let guard = allowed.lock().await.unwrap();
    eventually("the watch runs", async || !guard.is_contended()).await;
    let watches = metric(&etcd, "handled", "Watch").await;
    for number in 0..20 {
        let denied = app.mutex(&format!("denied-{number}")).unwrap();
        assert!(within("the refusal", denied.lock()).await.is_err());
    }
    let waiter = tokio::spawn(async move { allowed.lock().await });
    eventually("it waits", async || guard.is_contended()).await;
    guard.unlock().await.unwrap();
    drop(within("the waiter is granted", waiter).await.unwrap().unwrap());
    // one goes when another one has been opened for a name that was refused; the allowed one's stays
    assert_eq!(metric(&etcd, "handled", "Watch").await, watches);
}

/// Goal: a waiter at whose queue it may not look any more fails, and does not wait for ever.
#[tokio::test]
async fn a_waiter_that_may_not_look_is_told() {
    let mut etcd = PrivateEtcd::start(ServerOptions::default()).await.unwrap();
    let mut root = with_users(&etcd).await;
    root.put("allowed/first", "", None).await.unwrap();
    let app = session_of("app", &etcd).await;
    let mutex = app.mutex("allowed").unwrap();
    let waiting = mutex.clone();
    let waiter = tokio::spawn(async move { waiting.lock().await });
    queue_length(&mutex, 2).await;
    let keys = etcd_client::RoleRevokePermissionOptions::new().with_prefix();
    root.role_revoke_permission("app", "allowed/", Some(keys)).await.unwrap();
    etcd.kill().await.unwrap();
    etcd.restart().await.unwrap();
    assert!(within("the waiter is told", waiter).await.unwrap().is_err());
}
