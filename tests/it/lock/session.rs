//! A session and what goes wrong below it, in paused time.

use std::sync::Arc;
use std::time::Duration;

use flash_sale::lock::{
    BackendErrorKind, LockError, LostReason, MemoryBackend, Owner, Session, SessionOptions,
};
use tokio::time::{Instant, sleep};

use super::faulty::{Fault, FaultyBackend};
use super::lab::queue_of;
use crate::support::eventually;

const TTL: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);

async fn session(backend: &Arc<FaultyBackend>) -> Session {
    Session::open(Arc::clone(backend) as _, SessionOptions::new(TTL)).await.unwrap()
}

/// Goal: a margin that would leave no time to renew does not end the session.
#[tokio::test(start_paused = true)]
async fn a_margin_larger_than_the_ttl_is_cut() {
    let mut options = SessionOptions::new(TTL);
    options.margin = Duration::MAX;
    let session = Session::open(Arc::new(MemoryBackend::new()), options).await.unwrap();
    sleep(10 * TTL).await;
    assert_eq!(session.lost_reason(), None);
    drop(session.mutex("a").unwrap().lock().await.unwrap());
}

/// Goal: a TTL for ever is one of a day, with any backend, and is renewed.
#[tokio::test(start_paused = true)]
async fn an_endless_ttl_is_a_day() {
    let options = SessionOptions::new(Duration::MAX);
    let session = Session::open(Arc::new(MemoryBackend::new()), options).await.unwrap();
    assert_eq!(session.lease().ttl, Duration::from_hours(24));
    sleep(Duration::from_hours(100)).await;
    assert_eq!(session.lost_reason(), None);
    session.close().await.unwrap();
}

/// Goal: a lease that had run out when it was granted makes no session.
#[tokio::test(start_paused = true)]
async fn a_session_born_lost_is_an_error() {
    let backend = FaultyBackend::new();
    backend.open.always(Fault::Late(TTL));
    let opened = Session::open(backend, SessionOptions::new(TTL)).await;
    let error = opened.unwrap_err();
    assert!(matches!(error, LockError::SessionLost { reason: LostReason::Expired }), "{error}");
}

/// Goal: the lease is believed in as counted from when its renewal was sent, not from when it was
/// answered; and the loss comes by the clock when nothing is answered any more.
#[tokio::test(start_paused = true)]
async fn a_slow_renewal_counts_from_when_it_was_sent() {
    let backend = FaultyBackend::new();
    backend.renew.next(Some(Fault::Late(2 * SECOND))).always(Fault::Hangs);
    let opened_at = Instant::now();
    let session = session(&backend).await;
    assert_eq!(session.lost().await, LostReason::Expired);
    // sent after a third of the nine seconds that the margin leaves
    assert_eq!(opened_at.elapsed().as_secs(), 3 + 9);
}

/// Goal: one failed renewal, or two, do not end the session.
#[tokio::test(start_paused = true)]
async fn failed_renewals_are_repeated() {
    let backend = FaultyBackend::new();
    for _ in 0..5 {
        backend.renew.next(Some(Fault::Fails(BackendErrorKind::Transient)));
        backend.renew.next(Some(Fault::Hangs)).next(None);
    }
    let session = session(&backend).await;
    sleep(4 * TTL).await;
    assert_eq!(session.lost_reason(), None);
}

/// Goal: a renewal that learns that the lease is gone ends the session at once.
#[tokio::test(start_paused = true)]
async fn a_renewal_tells_that_the_lease_is_gone() {
    let backend = FaultyBackend::new();
    let session = session(&backend).await;
    let opened_at = Instant::now();
    backend.service.revoke(session.lease().id);
    assert_eq!(session.lost().await, LostReason::Revoked);
    assert_eq!(opened_at.elapsed().as_secs(), 3, "by the first renewal");
}

/// Goal: waiters end when the session is closed.
#[tokio::test(start_paused = true)]
async fn a_waiter_ends_with_the_close() {
    let backend = FaultyBackend::new();
    let session = session(&backend).await;
    let mutex = session.mutex("a").unwrap();
    let _guard = mutex.lock().await.unwrap();
    let waiting = mutex.clone();
    let waiter = tokio::spawn(async move { waiting.lock().await });
    eventually("it waits", async || queue_of(&mutex).await.len() == 2).await;
    let began_at = Instant::now();
    session.close().await.unwrap();
    assert!(began_at.elapsed() < SECOND, "nothing is waited for");
    assert!(waiter.await.unwrap().is_err());
}

/// Goal: releases that are under way when the session is closed are seen to their end before the
/// lease is revoked, also if they have to be repeated.
#[tokio::test(start_paused = true)]
async fn closing_drains_the_releases() {
    let backend = FaultyBackend::new();
    let session = session(&backend).await;
    let guard = session.mutex("a").unwrap().lock().await.unwrap();
    for _ in 0..3 {
        backend.release.next(Some(Fault::Fails(BackendErrorKind::Transient)));
    }
    backend.close.always(Fault::Fails(BackendErrorKind::Permanent));
    drop(guard);
    session.close().await.unwrap_err();
    assert_eq!(backend.release.count(), 4);
    let free = self::session(&backend).await.mutex("a").unwrap();
    drop(free.try_lock().await.unwrap().expect("the claim was withdrawn, not left to its lease"));
}

/// Goal: closing tries for a TTL and not without pause; a second one, and one at the same time, asks
/// no more and tells the same.
#[tokio::test(start_paused = true)]
async fn a_second_close_tells_the_same() {
    let backend = FaultyBackend::new();
    let session = session(&backend).await;
    backend.close.always(Fault::Fails(BackendErrorKind::Transient));
    let began_at = Instant::now();
    let (first, second) = tokio::join!(session.close(), session.close());
    assert!(began_at.elapsed() > TTL / 2 && began_at.elapsed() < 2 * TTL);
    let asked = backend.close.count();
    assert!((2..100).contains(&asked), "{asked} requests");
    let third = session.close().await;
    for result in [first, second, third] {
        assert!(matches!(result, Err(LockError::Backend(_))), "{result:?}");
    }
    assert_eq!(backend.close.count(), asked);
}

/// Goal: closing once when it succeeds.
#[tokio::test(start_paused = true)]
async fn a_lease_is_revoked_once() {
    let backend = FaultyBackend::new();
    let session = session(&backend).await;
    session.close().await.unwrap();
    session.close().await.unwrap();
    drop(session);
    sleep(TTL).await;
    assert_eq!(backend.close.count(), 1);
}

/// Goal: no renewal outlives its session, so nothing is left of it in the backend.
#[tokio::test(start_paused = true)]
async fn closing_ends_a_renewal_under_way() {
    let backend = FaultyBackend::new();
    let session = session(&backend).await;
    backend.renew.always(Fault::Hangs);
    eventually("a renewal is under way", async || backend.renew.under_way() == 1).await;
    session.close().await.unwrap();
    assert_eq!(backend.renew.under_way(), 0);
}

/// Goal: a guard that was forgotten keeps neither the session nor its backend in memory.
#[tokio::test(start_paused = true)]
async fn a_forgotten_guard_leaks_nothing() {
    let backend = FaultyBackend::new();
    let left = Arc::downgrade(&backend);
    let session = session(&backend).await;
    drop(backend);
    session.mutex("a").unwrap().lock_as(&mut Owner::new()).await.unwrap().forget();
    drop(session);
    eventually("the backend is dropped", async || left.upgrade().is_none()).await;
}
