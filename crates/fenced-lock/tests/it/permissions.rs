//! An etcd that asks who is there, and whose tokens end.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, Permission, PutOptions};
use fenced_lock::{
    BackendErrorKind, EtcdBackend, EtcdOptions, EtcdUser, Guard, LockError, Session, SessionOptions,
};
use testkit::wait::{eventually, within};
use testkit::{
    AuthTokens, Certificates, EtcdOptions as ServerOptions, OwnedDir, PrivateEtcd, Proxy,
};
use tokio::task::JoinHandle;

use super::lab::{
    LONG, assert_refused, kind_of, metric, queue_length, queue_of, unseen_waiter, waiter, with,
};

async fn open(options: EtcdOptions) -> Result<Session, LockError> {
    let backend = Arc::new(EtcdBackend::new(options).unwrap());
    Session::open(backend, SessionOptions::new(LONG)).await
}

fn backend_of(user: &str, password: &str, endpoint: String) -> Arc<EtcdBackend> {
    let user = Some(EtcdUser::new(user, password));
    let options = with(EtcdOptions::new([endpoint]), |options| options.user = user);
    Arc::new(EtcdBackend::new(options).unwrap())
}

async fn session_of(user: &str, etcd: &PrivateEtcd) -> Session {
    let backend = backend_of(user, "secret", etcd.endpoint());
    Session::open(backend, SessionOptions::new(LONG)).await.unwrap()
}

async fn allow(root: &mut Client, lock: &str) {
    let keys = Permission::read_write(format!("{lock}/")).with_prefix();
    root.role_grant_permission("app", keys).await.unwrap();
}

async fn forbid(root: &mut Client, lock: &str) {
    let keys = etcd_client::RoleRevokePermissionOptions::new().with_prefix();
    root.role_revoke_permission("app", format!("{lock}/"), Some(keys)).await.unwrap();
}

/// An etcd with the users `root` and `app`, and a client of `root`.
async fn etcd_with_users() -> (PrivateEtcd, Client) {
    let etcd = PrivateEtcd::start(ServerOptions::default()).await.unwrap();
    let root = with_users(&etcd).await;
    (etcd, root)
}

/// Has it ask for the users `root` and `app`.
async fn with_users(etcd: &PrivateEtcd) -> Client {
    let mut client = Client::connect([etcd.endpoint()], None).await.unwrap();
    for name in ["root", "app"] {
        client.user_add(name, "secret", None).await.unwrap();
        client.role_add(name).await.unwrap();
        client.user_grant_role(name, name).await.unwrap();
    }
    client.auth_enable().await.unwrap();
    root_of(etcd).await
}

async fn root_of(etcd: &PrivateEtcd) -> Client {
    let as_root = ConnectOptions::new().with_user("root", "secret");
    Client::connect([etcd.endpoint()], Some(as_root)).await.unwrap()
}

/// Goal: a lock that the user may not use is an error at once. Once the permission is there, the lock works: its queue is watched
/// anew, though the first watcher was refused, also if the queue is only looked at.
#[tokio::test]
async fn a_permission_that_comes_later_counts() {
    let (etcd, mut client) = etcd_with_users().await;
    allow(&mut client, "allowed").await;
    let (backend, root) =
        (backend_of("app", "secret", etcd.endpoint()), session_of("root", &etcd).await);
    let app = Session::open(Arc::clone(&backend) as _, SessionOptions::new(LONG)).await.unwrap();
    let allowed = app.mutex("allowed").unwrap().lock().await.unwrap();
    eventually("the watch runs", async || !allowed.is_contended()).await;
    let mutex = app.mutex("refused").unwrap();
    let refused = within("the refusal", mutex.lock()).await;
    assert_eq!(kind_of(refused), BackendErrorKind::Permanent);

    assert_eq!(kind_of(app.mutex("seen").unwrap().lock().await), BackendErrorKind::Permanent);
    assert!(!backend.queue_snapshot("seen").is_current);
    allow(&mut client, "seen").await;
    eventually("it is seen", async || backend.queue_snapshot("seen").is_current).await;

    allow(&mut client, "refused").await;
    let theirs = root.mutex("refused").unwrap();
    let guard = theirs.lock().await.unwrap();
    let waiter = unseen_waiter(&mutex);
    queue_length(&theirs, 2).await;
    guard.unlock().await.unwrap();
    drop(within("the waiter is granted", waiter).await.unwrap().unwrap());
}

/// Goal: when one name is refused, at whatever moment, no other name is lost, nor does its watch end. Method: one role for each
/// allowed name; other names are tried, and a role is taken away and given back under a holder.
#[tokio::test]
async fn a_refused_name_is_no_matter_to_the_others() {
    let (etcd, mut client) = etcd_with_users().await;
    for name in ["kept", "passing"] {
        allow(&mut client, name).await;
    }
    let app = session_of("app", &etcd).await;
    let (mutex, passing) = (app.mutex("kept").unwrap(), app.mutex("passing").unwrap());
    let kept = mutex.lock().await.unwrap();
    eventually("the watch runs", async || !kept.is_contended()).await;
    let watches = metric(&etcd, "handled", "Watch").await;
    for number in 0..20 {
        let denied = app.mutex(&format!("denied-{number}")).unwrap();
        let refused = within("the refusal", denied.lock()).await;
        assert_eq!(kind_of(refused), BackendErrorKind::Permanent);
        assert!(within("the refusal", denied.try_lock()).await.is_err());
    }
    let waiter = unseen_waiter(&mutex);
    eventually("it waits", async || kept.is_contended()).await;
    kept.unlock().await.unwrap();
    let kept = within("the waiter is granted", waiter).await.unwrap().unwrap();
    // one goes when another one has been opened for a name that was refused; the allowed one's stays
    assert_eq!(metric(&etcd, "handled", "Watch").await, watches);

    let guard = passing.lock().await.unwrap();
    forbid(&mut client, "passing").await;
    let unlocking = tokio::spawn(guard.unlock());
    let refused = within("the refusal", passing.lock()).await;
    assert_eq!(kind_of(refused), BackendErrorKind::Permanent);
    allow(&mut client, "passing").await;
    within("it is released", unlocking).await.unwrap().unwrap();
    drop(passing.lock().await.unwrap());
    assert!(!kept.is_lost());
    kept.unlock().await.unwrap();
}

/// Goal: when etcd refuses many requests for their token, or a wrong password, the client authenticates once, not once for each:
/// etcd makes that cost time on purpose. If no user was given, opening a session says so.
#[tokio::test]
async fn all_share_one_authentication() {
    let (etcd, mut client) = etcd_with_users().await;
    assert_refused(open(EtcdOptions::new([etcd.endpoint()])).await, "user name is empty");
    let session = session_of("root", &etcd).await;
    // etcd forgets the tokens of a user whose password is set, while a restart may bring them back from its log
    client.user_change_password("root", "secret").await.unwrap();
    let before = metric(&etcd, "started", "Authenticate").await;
    let names: Vec<_> = (0..100).map(|n| session.mutex(&format!("name-{n}")).unwrap()).collect();
    let locks = names.into_iter().map(|m| tokio::spawn(async move { m.lock().await }));
    for lock in locks.collect::<Vec<_>>() {
        drop(within("it is granted", lock).await.unwrap().unwrap());
    }
    let between = metric(&etcd, "started", "Authenticate").await;
    let backend = backend_of("app", "wrong", etcd.endpoint());
    let open =
        |_| tokio::spawn(Session::open(Arc::clone(&backend) as _, SessionOptions::new(LONG)));
    for opened in (0..50).map(open).collect::<Vec<_>>() {
        assert!(within("it is refused", opened).await.unwrap().is_err());
    }
    let wrong = metric(&etcd, "started", "Authenticate").await - between;
    for authentications in [between - before, wrong] {
        assert!((1..5).contains(&authentications), "{authentications} authentications");
    }
}

/// Goal: a connection that dies without a word, as behind a router that forgot it, hides no grant and ends no session, as
/// without a user; nor does etcd authenticate anew, since the next connection has the same token.
#[tokio::test]
async fn a_silent_connection_hides_no_grant_from_a_user() {
    let (etcd, mut root) = etcd_with_users().await;
    let proxy = Proxy::to(etcd.port()).await.unwrap();
    let backend = backend_of("root", "secret", proxy.url());
    // etcd's own pings would notice later than this lease ends
    let options = SessionOptions::new(Duration::from_secs(6));
    let session = Session::open(backend, options).await.unwrap();
    let waiter = waiter_behind_a_key(&mut root, &session, "a").await;
    let authentications = metric(&etcd, "started", "Authenticate").await;
    proxy.silence();
    root.delete("a/first", None).await.unwrap();
    drop(within("the waiter is granted", waiter).await.unwrap().unwrap());
    assert!(!session.is_lost());
    assert_eq!(metric(&etcd, "started", "Authenticate").await, authentications);
}

/// Goal: authentication may be switched off and on again under a session.
#[tokio::test]
async fn authentication_may_be_switched_off_and_on() {
    let (etcd, mut client) = etcd_with_users().await;
    let session = session_of("root", &etcd).await;
    let mutex = session.mutex("a").unwrap();
    let held = session.mutex("b").unwrap().lock().await.unwrap();
    for _ in 0..2 {
        client.auth_disable().await.unwrap();
        mutex.lock().await.unwrap().requeue().await.unwrap().unlock().await.unwrap();
        let later = session_of("root", &etcd).await.mutex("a").unwrap();
        later.lock().await.unwrap().unlock().await.unwrap();
        let mut plain = Client::connect([etcd.endpoint()], None).await.unwrap();
        plain.auth_enable().await.unwrap();
        client = root_of(&etcd).await;
        mutex.lock().await.unwrap().requeue().await.unwrap().unlock().await.unwrap();
    }
    assert!(!held.is_lost());
    held.unlock().await.unwrap();
}

/// An etcd with TLS, and what a client of it needs.
async fn secured_etcd(tokens: AuthTokens) -> (PrivateEtcd, EtcdOptions) {
    let server = ServerOptions { secured: Some(tokens), ..ServerOptions::default() };
    let etcd = PrivateEtcd::start(server).await.unwrap();
    let read = |path| std::fs::read(path).unwrap();
    let certificates = etcd.certificates().unwrap();
    let (certificate, key) = certificates.client();
    let options = with(EtcdOptions::new([etcd.endpoint()]), |options| {
        options.ca = Some(read(certificates.ca()));
        options.identity = Some((read(certificate), read(key)));
    });
    (etcd, options)
}

/// Goal: with tokens that carry the roles of the time they were made, a role that changes disturbs neither a holder nor the next
/// request. A certificate of etcd that is not trusted is an error at once.
#[tokio::test]
async fn a_changed_role_is_no_matter_to_a_signed_token() {
    let (etcd, options) = secured_etcd(AuthTokens::Jwt(300)).await;
    let flags = etcd.flags();
    let place = flags.iter().position(|flag| flag == "--etcd-password-file").unwrap();
    let password = std::fs::read_to_string(&flags[place + 1]).unwrap();
    let user = Some(EtcdUser::new("flash-sale", password));
    let session = open(with(options.clone(), |options| options.user = user)).await.unwrap();
    let mutex = session.mutex("stock-lock").unwrap();
    let mut root = etcd.root().await.unwrap();
    for change in 0..3 {
        // the token would end by itself at last
        let guard = within("it is granted", mutex.lock()).await.unwrap();
        let keys = Permission::read(format!("elsewhere-{change}"));
        root.role_grant_permission("flash-sale", keys).await.unwrap();
        let guard = within("it is handed over", guard.requeue()).await.unwrap();
        within("it is released", guard.unlock()).await.unwrap();
        let keys = Permission::write(format!("elsewhere-{change}"));
        root.role_grant_permission("flash-sale", keys).await.unwrap();
        mutex.try_lock().await.unwrap().expect("nobody has it").unlock().await.unwrap();
    }
    assert_eq!(queue_of(&mutex).await.len(), 0);

    let elsewhere = tempfile::tempdir().unwrap();
    let ca = std::fs::read(Certificates::create_in(elsewhere.path()).unwrap().ca()).ok();
    let opened = within("the refusal", open(with(options, |options| options.ca = ca))).await;
    let text = format!("{:#}", opened.as_ref().unwrap_err());
    assert_eq!(text.matches("certificate").count(), 1, "the cause is told once: {text}");
    assert_eq!(kind_of(opened), BackendErrorKind::Permanent, "{text}");
}

/// Goal: a waiter that may no longer read its queue fails, and does not wait for ever.
#[tokio::test]
async fn a_waiter_that_may_not_look_is_told() {
    let (mut etcd, mut root) = etcd_with_users().await;
    allow(&mut root, "allowed").await;
    root.put("allowed/first", "", None).await.unwrap();
    let app = session_of("app", &etcd).await;
    let mutex = app.mutex("allowed").unwrap();
    let waiter = waiter(&mutex, 2).await;
    forbid(&mut root, "allowed").await;
    etcd.kill().await.unwrap();
    etcd.restart().await.unwrap();
    assert!(within("the waiter is told", waiter).await.unwrap().is_err());
}

/// Goal: a key that a given-up request left behind, and that could not be deleted when it was found, is deleted later although
/// nobody here uses its lock meanwhile: other processes wait behind it.
#[tokio::test]
async fn an_orphan_that_cannot_be_deleted_is_found_again() {
    let (etcd, mut root) = etcd_with_users().await;
    allow(&mut root, "a").await;
    let app = session_of("app", &etcd).await;
    let mutex = app.mutex("a").unwrap();
    let guard = mutex.lock().await.unwrap();
    eventually("the watch runs", async || !guard.is_contended()).await;
    guard.unlock().await.unwrap();
    let reads = Permission::read("a/").with_prefix();
    root.role_grant_permission("app", reads).await.unwrap();
    // the only transaction is the deletion
    let transactions = async || metric(&etcd, "handled", "Txn").await;
    let before = transactions().await;
    let lease = app.lease().id;
    let orphan = format!("a/{lease:x}-999999");
    root.put(orphan.clone(), "", Some(PutOptions::new().with_lease(lease))).await.unwrap();
    eventually("its deletion is refused", async || transactions().await > before).await;
    allow(&mut root, "a").await;
    let is_there = async || root.clone().get(orphan.clone(), None).await.unwrap().count() > 0;
    eventually("it is deleted", async || !is_there().await).await;
}

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
async fn waiter_behind_a_key(
    root: &mut Client,
    session: &Session,
    name: &str,
) -> JoinHandle<Result<Guard, LockError>> {
    root.put(format!("{name}/first"), "", None).await.unwrap();
    waiter(&session.mutex(name).unwrap(), 2).await
}

/// Goal: after a restart in which etcd has forgotten its tokens, a holder may hand over, waiters are granted and a holder is told
/// of its loss; and one new stream serves the watch of all names, however many there are.
#[tokio::test]
async fn tokens_forgotten_in_a_restart_are_no_matter() {
    let mut etcd = PrivateEtcd::start(ServerOptions::default()).await.unwrap();
    let mut root = with_users(&etcd).await;
    let session = session_of("root", &etcd).await;
    let mut guard = session.mutex("held").unwrap().lock().await.unwrap();
    let mut waiters = Vec::new();
    for number in 0..50 {
        waiters.push(waiter_behind_a_key(&mut root, &session, &format!("name-{number}")).await);
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

/// Goal: a new name is watched at once although the watch's token has ended, and the names from before are watched again. Method:
/// etcd refuses a watcher with each token that has ended, and each time one more stream is opened.
#[tokio::test]
async fn a_token_that_ended_stalls_no_new_name() {
    let (_dir, etcd) = with_short_tokens().await;
    let mut root = with_users(&etcd).await;
    allow(&mut root, "allowed").await;
    for number in 0..2 {
        allow(&mut root, &format!("new-{number}")).await;
    }
    let app = session_of("app", &etcd).await;
    let mut root = root_of(&etcd).await;
    let first = waiter_behind_a_key(&mut root, &app, "allowed").await;
    for number in 0..2 {
        until_tokens_have_ended(&etcd).await;
        let name = format!("new-{number}");
        let mut root = root_of(&etcd).await;
        let waiter = waiter_behind_a_key(&mut root, &app, &name).await;
        root.delete(format!("{name}/first"), None).await.unwrap();
        drop(within("the waiter is granted", waiter).await.unwrap().unwrap());
    }
    root_of(&etcd).await.delete("allowed/first", None).await.unwrap();
    drop(within("the first waiter is granted", first).await.unwrap().unwrap());
    assert_eq!(metric(&etcd, "started", "Watch").await, 3, "one for each token");
}
