//! Several endpoints, of which some are away or silent.

use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{EtcdBackend, EtcdOptions, Guard, LockError, Session, SessionOptions};
use futures_util::future::join_all;
use testkit::ports::reserve;
use testkit::wait::{eventually, within};
use testkit::{Direction, Proxy};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::lab::{
    EtcdLab, FoundLab, Lab, TTL, opened, queue_length, queue_of, unseen_waiter, waiter, with,
};

/// How long a request waits for its answer where thousands are under way.
const PATIENCE: Duration = Duration::from_secs(1);

/// A session at these endpoints that waits for a member for 300 ms only.
async fn session_at(endpoints: &[String], ttl: Duration) -> Session {
    let options = with(EtcdOptions::new(endpoints), |options| {
        options.request_timeout = Duration::from_millis(300);
    });
    opened(Arc::new(EtcdBackend::new(options).unwrap()), SessionOptions::new(ttl)).await
}

/// A session at a proxy and at the etcd behind it. It asks the proxy first.
async fn session_at_two() -> (EtcdLab, Proxy, Session) {
    let lab = EtcdLab::shared().await;
    let proxy = proxy(&lab).await;
    let session = session_at(&[proxy.url(), lab.endpoint().to_owned()], 10 * TTL).await;
    (lab, proxy, session)
}

/// A proxy in front of the shared etcd.
async fn proxy(lab: &EtcdLab) -> Proxy {
    lab.behind_proxy().await.0
}

/// A session behind a proxy, and a guard of it.
async fn held_behind_proxy() -> (Proxy, Session, Guard) {
    let lab = EtcdLab::shared().await;
    let proxy = proxy(&lab).await;
    let options = with(EtcdOptions::new([proxy.url()]), |options| {
        options.request_timeout = PATIENCE;
    });
    let backend = Arc::new(EtcdBackend::new(options).unwrap());
    let session = opened(backend, SessionOptions::new(10 * TTL)).await;
    let guard = session.mutex(&lab.name()).unwrap().lock().await.unwrap();
    (proxy, session, guard)
}

/// Everything that can be asked of a session.
async fn everything_works(lab: &EtcdLab, session: Session) {
    let name = lab.name();
    let (mutex, direct) = (session.mutex(&name).unwrap(), lab.mutex(&name).await);
    for _ in 0..3 {
        let guard = mutex.lock().await.unwrap();
        assert_eq!(queue_of(&mutex).await.len(), 1);
        assert!(mutex.try_lock().await.unwrap().is_none());
        let guard = guard.requeue().await.unwrap();
        guard.unlock().await.unwrap();
        mutex.try_lock().await.unwrap().expect("it is free").unlock().await.unwrap();
    }
    let theirs = direct.lock().await.unwrap();
    let waiter = unseen_waiter(&mutex);
    queue_length(&direct, 2).await;
    theirs.unlock().await.unwrap();
    let guard = within("the waiter is granted", waiter).await.unwrap().unwrap();
    sleep(session.lease().ttl * 3 / 2).await;
    assert!(!guard.is_lost(), "the lease is renewed");
    guard.unlock().await.unwrap();
    session.close().await.unwrap();
}

/// Goal: no call fails while one endpoint of two is dead, whichever it is, or accepts connections and says nothing, from the
/// start or later.
#[tokio::test]
async fn one_endpoint_of_two_will_do() {
    let lab = EtcdLab::shared().await;
    let port = reserve(&[0]);
    let dead = format!("http://127.0.0.1:{port}");
    let alive = lab.endpoint().to_owned();
    let (before, later) = (proxy(&lab).await, proxy(&lab).await);
    before.freeze();
    let mut sessions = Vec::new();
    for endpoints in [
        [dead.clone(), alive.clone()],
        [alive.clone(), dead],
        [before.url(), alive.clone()],
        [later.url(), alive],
    ] {
        sessions.push(session_at(&endpoints, TTL).await);
    }
    later.freeze();
    join_all(sessions.into_iter().map(|session| everything_works(&lab, session))).await;
}

/// Goal: the lease is renewed also when two members in a row freeze and no other request is there to find out; also with the
/// largest margin.
#[tokio::test]
async fn renewals_find_the_member_that_answers() {
    let lab = EtcdLab::shared().await;
    let proxies = [proxy(&lab).await, proxy(&lab).await];
    let endpoints = [proxies[0].url(), proxies[1].url(), lab.endpoint().to_owned()];
    let idle = session_at(&endpoints, 2 * TTL).await;
    let options = EtcdOptions::new([proxies[0].url(), lab.endpoint().to_owned()]);
    let with_margin = SessionOptions::new(2 * TTL).margin(Duration::MAX);
    let careful = Session::open(Arc::new(EtcdBackend::new(options).unwrap()), with_margin);
    let careful = careful.await.unwrap();
    for proxy in &proxies {
        proxy.freeze();
    }
    // the leases that nobody renews end a TTL earlier
    sleep(3 * TTL).await;
    assert_eq!(idle.lost_reason(), None);
    assert_eq!(careful.lost_reason(), None);
}

/// Goal: a session concludes nothing from a watch that is silent. Method: the watch is on a member that is frozen. A release goes
/// to the other member alone: it must neither grant the lock to a waiter whose lease is gone, nor count as a release if the claim
/// was gone before. A try takes a free lock also when the watch has not told of it yet, and when keys of a longer name are there.
#[tokio::test]
async fn nothing_is_concluded_from_a_watch_that_is_silent() {
    let (lab, proxy, session) = session_at_two().await;
    let deleted = session.mutex(&lab.name()).unwrap().lock().await.unwrap();
    let handed_over = session.mutex(&lab.name()).unwrap().lock().await.unwrap();
    let mutex = session.mutex(&lab.name()).unwrap();
    let guard = mutex.lock().await.unwrap();
    let waiter = waiter(&mutex, 2).await;
    let free = session.mutex(&lab.name()).unwrap();
    let _longer = lab.mutex(&format!("{}/b", free.name())).await.lock().await.unwrap();
    let released = free.lock().await.unwrap();
    eventually("the watch runs", async || !released.is_contended()).await;
    released.unlock().await.unwrap();
    proxy.freeze();
    assert_eq!(queue_of(&mutex).await.len(), 2, "by the member that answers, as all that follows");

    let tried = free.try_lock().await.unwrap().expect("it is free");
    assert!(lab.mutex(free.name()).await.try_lock().await.unwrap().is_none());
    tried.unlock().await.unwrap();

    lab.delete(&deleted.key()).await;
    assert!(matches!(deleted.unlock().await, Err(LockError::Lost { .. })));

    lab.delete(&handed_over.key()).await;
    assert!(matches!(handed_over.requeue().await.unwrap_err(), LockError::Lost { .. }));

    lab.revoke(session.lease().id).await;
    assert!(guard.unlock().await.is_err());
    let ended = within("the waiter is told", waiter).await.unwrap();
    assert!(ended.is_err(), "its claim went with the lease");
}

/// Goal: a queue that was read before its watcher existed does not count, since it would miss what came in between. Method: the
/// stream is on a frozen member, so the watcher of the second lock is not made, while everything else goes through the other
/// member. The holder is not told that nobody waits.
#[tokio::test]
async fn no_list_counts_before_its_watcher() {
    let (lab, proxy, session) = session_at_two().await;
    let first = session.mutex(&lab.name()).unwrap().lock().await.unwrap();
    eventually("the watch runs", async || !first.is_contended()).await;
    proxy.freeze();
    let frozen_at = Instant::now();
    let second = session.mutex(&lab.name()).unwrap().lock().await.unwrap();
    // until the client may notice that the stream is dead and opens another one
    while frozen_at.elapsed() < Duration::from_millis(2800) {
        assert!(second.is_contended(), "it cannot be known");
        sleep(Duration::from_millis(20)).await;
    }
    let what = "another stream tells, and in time";
    eventually(what, async || !second.is_contended()).await;
}

/// Goal: neither `unlock` nor a hand-over reports a lock as lost that it released itself. Method: the member that is asked first
/// carries the release out, its answer gets lost, and the other member finds the claim gone.
#[tokio::test]
async fn a_release_that_another_member_did_is_a_release() {
    for hands_over in [false, true].repeat(3) {
        let (lab, proxy, session) = session_at_two().await;
        let mutex = session.mutex(&lab.name()).unwrap();
        let mut guard = mutex.lock().await.unwrap();
        proxy.hold(Direction::ToClient);
        if hands_over {
            guard = guard.requeue().await.unwrap();
            assert_eq!(queue_of(&mutex).await.len(), 1);
        }
        guard.unlock().await.unwrap();
        assert!(queue_of(&mutex).await.is_empty());
    }
}

/// Goal: callers that go away do not break the connection that all share. More than a thousand streams that are reset while their
/// answers are on the way would break it.
#[tokio::test]
async fn many_aborted_reads_leave_the_connection_alone() {
    let (proxy, session, guard) = held_behind_proxy().await;
    let connections = proxy.connections();
    proxy.hold(Direction::ToClient);
    let read = |n| {
        let mutex = session.mutex(&format!("aborted-{n}")).unwrap();
        tokio::spawn(async move { mutex.queue().await })
    };
    let reads: Vec<_> = (0..5000).map(read).collect();
    eventually("answers are on the way", async || proxy.has_held_data()).await;
    reads.iter().for_each(JoinHandle::abort);
    proxy.release();
    assert!(session.mutex(guard.name()).unwrap().queue().await.is_ok());
    assert_eq!(proxy.connections(), connections);
    assert!(!guard.is_lost());
}

/// Goal: when etcd stands still for a while, nobody waits for longer than that while, however many wait.
#[tokio::test]
async fn a_pause_under_many_locks_costs_only_the_pause() {
    let (proxy, session, held) = held_behind_proxy().await;
    let connections = proxy.connections();
    proxy.hold(Direction::ToClient);
    let mut locks = Vec::new();
    for n in 0..2000 {
        let mutex = session.mutex(&format!("paused-{n}")).unwrap();
        locks.push(tokio::spawn(async move { mutex.lock().await?.unlock().await }));
    }
    sleep(3 * PATIENCE).await;
    proxy.release();
    for lock in locks {
        within("it is granted", lock).await.unwrap().unwrap();
    }
    assert_eq!(proxy.connections(), connections);
    assert!(!held.is_lost());
}
