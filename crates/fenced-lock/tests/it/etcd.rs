//! What is particular to etcd: its watch, its restarts, its silence.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::PutOptions;
use fenced_lock::{
    Claim, Guard, LockError, LostReason, Mutex, Released, Session, SessionKeeper, SessionOptions,
};
use testkit::Proxy;
use testkit::wait::{eventually, within};
use testkit::{EtcdOptions as ServerOptions, PrivateEtcd};
use tokio::task::JoinHandle;

use super::lab::{EtcdLab, Lab, TTL, queue_length};

/// A waiter in a task, seen in the queue.
async fn waiter(mutex: &Mutex, length: usize) -> JoinHandle<Result<Guard, LockError>> {
    let waiting = mutex.clone();
    let waiter = tokio::spawn(async move { waiting.lock().await });
    queue_length(mutex, length).await;
    waiter
}

/// A session that outlives a restart of etcd.
async fn patient_session(lab: &EtcdLab) -> Session {
    let options = SessionOptions::new(Duration::from_secs(20));
    Session::open(lab.backend(), options).await.unwrap()
}

/// Goal: a waiter whose watch stream breaks is granted all the same, and a holder keeps its hold.
#[tokio::test]
async fn a_cut_watch_is_opened_again() {
    let shared = EtcdLab::shared().await;
    let port = shared.endpoint().rsplit_once(':').unwrap().1.parse().unwrap();
    let proxy = Proxy::to(port).await.unwrap();
    let (direct, proxied) = (patient_session(&shared).await, EtcdLab::at(proxy.url()));
    let session = patient_session(&proxied).await;
    let name = shared.name();
    for _ in 0..3 {
        let guard = direct.mutex(&name).unwrap().lock().await.unwrap();
        let waiter = waiter(&session.mutex(&name).unwrap(), 2).await;
        proxy.cut();
        guard.unlock().await.unwrap();
        let granted = within("the waiter is granted", waiter).await.unwrap().unwrap();
        proxy.cut();
        assert!(!granted.is_lost());
        granted.unlock().await.unwrap();
    }
}

/// Goal: a guard tells how long its claim took to queue, the way to etcd and back included, also after a handover.
#[tokio::test]
async fn the_way_to_etcd_is_measured() {
    let shared = EtcdLab::shared().await;
    let port = shared.endpoint().rsplit_once(':').unwrap().1.parse().unwrap();
    let proxy = Proxy::to(port).await.unwrap();
    let session = patient_session(&EtcdLab::at(proxy.url())).await;
    let mutex = session.mutex(&shared.name()).unwrap();
    for each_way in [Duration::from_millis(30), Duration::from_millis(60)] {
        proxy.delay(each_way);
        let guard = mutex.lock().await.unwrap();
        assert!(guard.enqueued_in() >= 2 * each_way);
        let guard = guard.hand_over().await.unwrap();
        assert!(guard.enqueued_in() >= 2 * each_way);
        guard.unlock().await.unwrap();
    }
}

/// Goal: compaction of everything that was, again and again while waiters wait and the watch is cut,
/// neither hides a grant nor ends a hold.
#[tokio::test]
async fn compaction_hides_no_grant() {
    let shared = EtcdLab::shared().await;
    let port = shared.endpoint().rsplit_once(':').unwrap().1.parse().unwrap();
    let proxy = Proxy::to(port).await.unwrap();
    let proxied = EtcdLab::at(proxy.url());
    let (holder, session) = (patient_session(&shared).await, patient_session(&proxied).await);
    let name = shared.name();
    let mut client = shared.client().await;
    for _ in 0..5 {
        let guard = holder.mutex(&name).unwrap().lock().await.unwrap();
        let waiter = waiter(&session.mutex(&name).unwrap(), 2).await;
        proxy.cut();
        // another test may have compacted further
        let revision =
            client.put("elsewhere", "", None).await.unwrap().header().unwrap().revision();
        drop(client.compact(revision, None).await);
        guard.unlock().await.unwrap();
        within("the waiter is granted", waiter).await.unwrap().unwrap().unlock().await.unwrap();
    }
}

/// Goal: etcd killed and started again: the hold stands, since its lease does, and the waiter is
/// granted when it ends.
#[tokio::test]
async fn etcd_killed_and_started_again() {
    let mut etcd = PrivateEtcd::start(ServerOptions::default()).await.unwrap();
    let lab = EtcdLab::of(&etcd);
    let (holder, session) = (patient_session(&lab).await, patient_session(&lab).await);
    let name = lab.name();
    let guard = holder.mutex(&name).unwrap().lock().await.unwrap();
    let mutex = session.mutex(&name).unwrap();
    let waiter = waiter(&mutex, 2).await;
    etcd.kill().await.unwrap();
    etcd.restart().await.unwrap();
    assert!(!guard.is_lost());
    within("the release", guard.unlock()).await.unwrap();
    let granted = within("the waiter is granted", waiter).await.unwrap().unwrap();
    within("the release", granted.unlock()).await.unwrap();
    drop(within("the lock works as before", mutex.lock()).await.unwrap());
}

/// Goal: a release, and the acquire behind it, that come while etcd is away are done when it is back.
#[tokio::test]
async fn requests_outlast_a_restart() {
    let mut etcd = PrivateEtcd::start(ServerOptions::default()).await.unwrap();
    let lab = EtcdLab::of(&etcd);
    let session = patient_session(&lab).await;
    let mutex = session.mutex(&lab.name()).unwrap();
    let guard = mutex.lock().await.unwrap();
    eventually("nobody waits", async || !guard.is_contended()).await;
    etcd.kill().await.unwrap();
    eventually("that is not known any more", async || guard.is_contended()).await;
    drop(guard);
    assert!(matches!(mutex.try_lock().await, Err(LockError::Backend(_))), "a try does not wait");
    let waiting = mutex.clone();
    let waiter = tokio::spawn(async move { waiting.lock().await });
    eventually("the session notices", async || !session.is_answered()).await;
    etcd.restart().await.unwrap();
    drop(within("granted when etcd is back", waiter).await.unwrap().unwrap());
    queue_length(&mutex, 0).await;
    assert!(session.is_answered());
}

/// Goal: when etcd says nothing, holder and waiter know by their own clock that they cannot believe
/// in their lease any more; and what etcd says afterwards does not bring it back.
#[tokio::test]
async fn a_silent_etcd_means_loss_in_time() {
    let mut etcd = PrivateEtcd::start(ServerOptions::default()).await.unwrap();
    let lab = EtcdLab::of(&etcd);
    let session = lab.session().await;
    let (name, other) = (lab.name(), lab.name());
    let guard = session.mutex(&name).unwrap().lock().await.unwrap();
    let _theirs = patient_session(&lab).await.mutex(&other).unwrap().lock().await.unwrap();
    let waiter = waiter(&session.mutex(&other).unwrap(), 2).await;
    etcd.child().pause().unwrap();
    within("the holder is told", guard.lost()).await;
    let ended = within("the waiter is told", waiter).await.unwrap().unwrap_err();
    assert!(
        matches!(ended, LockError::SessionLost { reason: LostReason::Expired }),
        "{ended}, by the local clock"
    );
    etcd.child().resume().unwrap();
    assert!(guard.is_lost());
    assert_eq!(session.lost_reason(), Some(LostReason::Expired));
}

/// Goal: a key that a given-up request left behind, though nobody knows of it, does not block the
/// lock for as long as the session lives.
#[tokio::test]
async fn an_orphan_is_removed() {
    let lab = EtcdLab::shared().await;
    let session = lab.session().await;
    let mutex = session.mutex(&lab.name()).unwrap();
    mutex.lock().await.unwrap().unlock().await.unwrap();
    let lease = session.lease().id;
    let orphan = format!("{}/{lease:x}-999999", mutex.name());
    let options = PutOptions::new().with_lease(lease);
    lab.client().await.put(orphan, "", Some(options)).await.unwrap();
    queue_length(&mutex, 0).await;
    drop(within("the lock is free", mutex.lock()).await.unwrap());
}

/// Goal: a foreign key that is no text is a claim like any other: it is waited for, and shown.
#[tokio::test]
async fn a_key_need_not_be_text() {
    let lab = EtcdLab::shared().await;
    let session = lab.session().await;
    let mutex = session.mutex(&lab.name()).unwrap();
    let mut client = lab.client().await;
    let foreign = [mutex.name().as_bytes(), b"/\xff\xfe"].concat();
    for is_watched in [false, true] {
        client.put(foreign.clone(), "", None).await.unwrap();
        assert!(mutex.try_lock().await.unwrap().is_none());
        let waiter = waiter(&mutex, 2).await;
        let queue = mutex.queue().await.unwrap();
        assert_eq!(queue[0].key, format!("{}/\u{fffd}\u{fffd}", mutex.name()), "{is_watched}");
        assert!(!waiter.is_finished());
        client.delete(foreign.clone(), None).await.unwrap();
        let granted = within("the waiter is granted", waiter).await.unwrap().unwrap();
        granted.unlock().await.unwrap();
    }
}

/// Goal: a service that keeps all its threads busy does not lose its lease. Method: every worker
/// thread of the runtime is blocked for longer than the TTL.
#[test]
#[allow(clippy::disallowed_methods, reason = "blocks the workers on purpose")]
fn a_busy_runtime_keeps_its_lease() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let lab = EtcdLab::shared().await;
        let guard = lab.mutex(&lab.name()).await.lock().await.unwrap();
        let busy: Vec<_> =
            (0..4).map(|_| tokio::spawn(async { std::thread::sleep(TTL + TTL / 2) })).collect();
        for task in busy {
            task.await.unwrap();
        }
        assert!(!guard.is_lost());
        guard.unlock().await.unwrap();
    });
}

/// Goal: a lock taken again and again leaves nothing in etcd but the lease, and closing not even
/// that.
#[tokio::test]
async fn nothing_is_left_in_etcd() {
    let etcd = PrivateEtcd::start(ServerOptions::default()).await.unwrap();
    let lab = EtcdLab::of(&etcd);
    let session = lab.session().await;
    for _ in 0..20 {
        session.mutex(&lab.name()).unwrap().lock().await.unwrap().unlock().await.unwrap();
    }
    let mut client = lab.client().await;
    let all = etcd_client::GetOptions::new().with_all_keys();
    assert_eq!(client.get("", Some(all)).await.unwrap().count(), 0);
    session.close().await.unwrap();
    assert!(client.leases().await.unwrap().leases().is_empty());
}

/// Goal: nothing is remembered of claims that were handed over, or tried in vain, or waited for and
/// given up: their queue is watched no longer than it is used.
#[tokio::test]
async fn nothing_is_left_in_memory() {
    let lab = EtcdLab::shared().await;
    let backend = lab.backend_of_its_own();
    let options = SessionOptions::new(Duration::from_secs(20));
    let session = Session::open(Arc::clone(&backend) as _, options).await.unwrap();
    let (mutex, other) = (session.mutex(&lab.name()).unwrap(), patient_session(&lab).await);
    let guard = mutex.lock().await.unwrap().hand_over().await.unwrap();
    assert!(mutex.try_lock().await.unwrap().is_none());
    let waiter = waiter(&mutex, 2).await;
    waiter.abort();
    queue_length(&mutex, 1).await;
    guard.unlock().await.unwrap();
    let theirs = other.mutex(mutex.name()).unwrap().lock().await.unwrap();
    assert!(mutex.try_lock().await.unwrap().is_none());
    theirs.unlock().await.unwrap();
    let what = "no claim is known any more";
    eventually(what, async || format!("{backend:?}").contains("claims: 0")).await;
}

/// Goal: a claim whose request was given up can be withdrawn, though its revision is not known.
#[tokio::test]
async fn a_claim_of_unknown_revision_is_withdrawn() {
    let lab = EtcdLab::shared().await;
    let session = patient_session(&lab).await;
    let label = Arc::from("");
    let claim = Claim { name: lab.name().into(), lease: session.lease().id, number: 99, label };
    lab.backend().enqueue(&claim).await.unwrap();
    let another = lab.backend();
    assert_eq!(another.release(&claim).await.unwrap(), Released::Done);
    assert_eq!(another.release(&claim).await.unwrap(), Released::Gone);
}

/// Goal: a program without a runtime can use the lock: etcd's requests and clocks have one of their own.
#[test]
fn no_runtime_is_needed() {
    let servers = tokio::runtime::Runtime::new().unwrap();
    let lab = servers.block_on(EtcdLab::shared());
    park_on(async {
        let session = lab.session().await;
        let mutex = session.mutex(&lab.name()).unwrap();
        let guard = mutex.lock_timeout(TTL).await.unwrap();
        assert_eq!(guard.run(mutex.queue()).await.unwrap().unwrap().len(), 1);
        assert!(mutex.probe().await.unwrap().is_some());
        let second = mutex.lock_timeout(Duration::from_millis(50)).await;
        assert!(matches!(second, Err(LockError::Timeout { .. })), "{second:?}");
        guard.hand_over().await.unwrap().unlock().await.unwrap();
        let guard = mutex.try_lock().await.unwrap().expect("it is free");
        servers.block_on(lab.revoke(session.lease().id));
        guard.lost().await;
        let keeper = SessionKeeper::start(lab.backend(), SessionOptions::new(TTL));
        drop(keeper.session().await.unwrap().mutex(mutex.name()).unwrap().lock().await.unwrap());
        keeper.close().await;
    });
}

/// Runs a future on this thread, without a runtime.
fn park_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(output) => return output,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}

/// Goal: a lease lives no shorter than was asked for, though etcd counts in seconds.
#[tokio::test]
async fn a_ttl_is_rounded_up() {
    let lab = EtcdLab::shared().await;
    let options = SessionOptions::new(Duration::from_millis(7500));
    let session = Session::open(lab.backend(), options).await.unwrap();
    assert_eq!(session.lease().ttl, Duration::from_secs(8));
}

/// Goal: a renewal tells a lease that is gone from an etcd that is away, on a new keep-alive stream
/// and on one that was used before; to etcd, that is no error.
#[tokio::test]
async fn a_renewal_learns_that_the_lease_is_gone() {
    let lab = EtcdLab::shared().await;
    let open = async || {
        Session::open(lab.backend(), SessionOptions::new(Duration::from_secs(6))).await.unwrap()
    };
    let (fresh, renewed) = (open().await, open().await);
    lab.revoke(fresh.lease().id).await;
    let mut client = lab.client().await;
    for has_lived in [true, false] {
        eventually("a renewal", async || {
            let id = renewed.lease().id;
            let left = client.lease_time_to_live(id, None).await.unwrap().ttl();
            if has_lived { left <= 4 } else { left >= 5 }
        })
        .await;
    }
    lab.revoke(renewed.lease().id).await;
    for session in [fresh, renewed] {
        assert_eq!(within("the loss is told", session.lost()).await, LostReason::Revoked);
    }
}
