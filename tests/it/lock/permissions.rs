//! An etcd that asks who is there.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, Permission};
use flash_sale::demo::{EtcdOptions as ServerOptions, PrivateEtcd};
use flash_sale::lock::{
    BackendErrorKind, EtcdBackend, EtcdOptions, EtcdUser, LockError, Session, SessionOptions,
};

use super::lab::queue_length;
use crate::support::{eventually, within};

async fn session_of(user: &str, etcd: &PrivateEtcd) -> Session {
    let mut options = EtcdOptions::new([etcd.endpoint()]);
    options.user = Some(EtcdUser::new(user, "secret"));
    let backend = Arc::new(EtcdBackend::new(options).unwrap());
    Session::open(backend, SessionOptions::new(Duration::from_secs(20))).await.unwrap()
}

async fn allow(root: &mut Client, lock: &str) {
    let keys = Permission::read_write(format!("{lock}/")).with_prefix();
    root.role_grant_permission("app", keys).await.unwrap();
}

/// Goal: a lock that was refused for want of permission is an error at once, and no obstacle once the
/// permission is there: its queue is watched anew, though the first watcher was refused.
#[tokio::test]
async fn a_permission_that_comes_later_counts() {
    let etcd = PrivateEtcd::start(ServerOptions::default()).await.unwrap();
    let mut client = Client::connect([etcd.endpoint()], None).await.unwrap();
    for name in ["root", "app"] {
        client.user_add(name, "secret", None).await.unwrap();
        client.role_add(name).await.unwrap();
        client.user_grant_role(name, name).await.unwrap();
    }
    allow(&mut client, "allowed").await;
    client.auth_enable().await.unwrap();
    let as_root = etcd_client::ConnectOptions::new().with_user("root", "secret");
    let mut client = Client::connect([etcd.endpoint()], Some(as_root)).await.unwrap();

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
