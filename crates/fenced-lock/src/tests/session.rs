//! A session and what goes wrong below it, in paused time.

use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{
    Backend, BackendErrorKind, FileBackend, FileOptions, LockError, LostReason, MemoryBackend,
    Session, SessionOptions, Token,
};
use testkit::wait::{eventually, within};
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep, sleep_until};

use super::faulty::{Fault, FaultyBackend, kind_of, queue_of};
use super::{SECOND, TTL, held, session};

/// Goal: a TTL of for ever becomes one of a day, with any backend, and is renewed. A margin that would leave no time for a
/// renewal does not end the session.
#[tokio::test(start_paused = true)]
async fn an_endless_ttl_is_a_day() {
    let options = SessionOptions::new(Duration::MAX).margin(Duration::MAX);
    let session = Session::open(Arc::new(MemoryBackend::new()), options).await.unwrap();
    assert_eq!(session.lease().ttl, Duration::from_hours(24));
    sleep(Duration::from_hours(100)).await;
    assert_eq!(session.lost_reason(), None);
    session.mutex("a").unwrap().lock().await.unwrap().unlock().await.unwrap();
    session.close().await.unwrap();
}

/// Goal: a lease whose grant took long, so that little of it is left, is renewed in time; and neither one failed renewal nor two
/// end the session.
#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_in_time() {
    let backend = FaultyBackend::new();
    backend.open.always(Fault::Late(8 * SECOND));
    let session = session(&backend).await;
    for _ in 0..5 {
        backend.renew.next(None).next(Some(Fault::Fails(BackendErrorKind::Transient)));
        backend.renew.next(Some(Fault::Hangs));
    }
    sleep(10 * TTL).await;
    assert_eq!(session.lost_reason(), None);
}

/// Goal: a renewal that grants less than before counts, and the next one comes in time, also if it grants less than the margin.
#[tokio::test(start_paused = true)]
async fn a_shorter_renewal_counts() {
    let renews_for = Some(2 * SECOND);
    let backend = FaultyBackend { renews_for, ..FaultyBackend::of(Arc::new(MemoryBackend::new())) };
    let options = SessionOptions::new(TTL).margin(4 * SECOND);
    let session = Session::open(Arc::new(backend), options).await.unwrap();
    let guard = session.mutex("a").unwrap().lock().await.unwrap();
    sleep(4 * TTL).await;
    assert!(guard.valid_until() <= Instant::now() + 2 * SECOND);
    assert!(!guard.is_lost());
}

/// Goal: a session whose runtime has ended is lost, and blocks nobody.
#[test]
fn a_session_ends_with_its_runtime() {
    let runtime = || Builder::new_current_thread().enable_all().event_interval(1).build().unwrap();
    let service = MemoryBackend::new();
    let directory = tempfile::tempdir().unwrap();
    let files = FileBackend::new(FileOptions::new(directory.path())).unwrap();
    let open = async |backend: Arc<dyn Backend<Token = Token>>| {
        Session::open(backend, SessionOptions::new(Duration::from_hours(1))).await.unwrap()
    };
    let lock = async |backend| {
        within("the grant", open(backend).await.mutex("a").unwrap().lock()).await.unwrap()
    };
    let backends: [Arc<dyn Backend<Token = Token>>; 2] = [Arc::new(files), Arc::new(service)];
    for backend in backends {
        let opened = runtime().block_on(open(Arc::clone(&backend)));
        assert!(opened.is_lost(), "its runtime ends at once");
        let first = runtime().block_on(lock(Arc::clone(&backend)));
        assert!(first.is_lost(), "its runtime ends later");
        runtime().block_on(async { lock(backend).await.unlock().await.unwrap() });
    }
}

/// Goal: a claim that was refused is not withdrawn, since nothing of it is in the queue; it is withdrawn if an attempt before the
/// refusal may have put it there.
#[tokio::test(start_paused = true)]
async fn a_refused_claim_is_not_withdrawn() {
    let backend = FaultyBackend::new();
    let session = session(&backend).await;
    let mutex = session.mutex("a").unwrap();
    for kind in [BackendErrorKind::Permanent, BackendErrorKind::Refused] {
        backend.put.next(Some(Fault::Fails(kind))).next(Some(Fault::Fails(kind)));
        assert_eq!(kind_of(mutex.lock().await), kind);
        assert_eq!(kind_of(mutex.try_lock().await), kind);
    }
    sleep(4 * TTL).await;
    assert_eq!(backend.release.count(), 0);
    assert_eq!(session.lost_reason(), None);
    let refusal = Fault::Fails(BackendErrorKind::Permanent);
    backend.put.next(Some(Fault::AnswerLost)).next(Some(refusal));
    mutex.lock().await.unwrap_err();
    eventually("it is withdrawn", async || queue_of(&mutex).await.is_empty()).await;
}

/// Goal: a refused release ends no session, and the claim goes once the release is allowed. A session does not delay its closing
/// for a claim that it may not withdraw.
#[tokio::test(start_paused = true)]
async fn a_refused_release_ends_no_session() {
    let backend = FaultyBackend::new();
    let session = session(&backend).await;
    let (mutex, other) = (session.mutex("a").unwrap(), session.mutex("b").unwrap());
    let held = other.lock().await.unwrap();
    let guard = mutex.lock().await.unwrap();
    backend.release.always(Fault::Fails(BackendErrorKind::Permanent));
    let error = guard.unlock().await.unwrap_err();
    assert!(matches!(error, LockError::Backend(_)), "{error}");
    sleep(10 * TTL).await;
    assert_eq!(session.lost_reason(), None);
    assert!(!held.is_lost());
    assert_eq!(queue_of(&mutex).await.len(), 1);
    assert!(backend.release.count() < 50, "{} requests", backend.release.count());
    backend.release.clear();
    eventually("it goes at last", async || queue_of(&mutex).await.is_empty()).await;
    backend.release.always(Fault::Fails(BackendErrorKind::Permanent));
    drop(held);
    let began_at = Instant::now();
    session.close().await.unwrap();
    assert!(began_at.elapsed() < SECOND);
}

/// Goal: `unlock` says `Lost` only if the claim was certainly gone before. Method: a release whose answer gets lost is repeated;
/// then a claim is deleted before its release is carried out, which is refused at first, or slow.
#[tokio::test(start_paused = true)]
async fn a_release_whose_answer_got_lost_is_a_release() {
    let (backend, _, mutex, guard) = held().await;
    backend.release.next(Some(Fault::AnswerLost));
    guard.unlock().await.unwrap();
    assert_eq!(backend.release.count(), 2);
    for fault in [Fault::Fails(BackendErrorKind::Refused), Fault::Slow(SECOND)] {
        let guard = mutex.lock().await.unwrap();
        let key = guard.key();
        backend.release.next(Some(fault));
        let (unlocked, ()) = tokio::join!(guard.unlock(), async { backend.service.delete(&key) });
        assert!(matches!(unlocked, Err(LockError::Lost { .. })));
    }
}

/// Goal: if the lease ends, by the local clock or as the service says, while nobody knows whether a release was done, the holder
/// is told of the loss.
#[tokio::test(start_paused = true)]
async fn a_release_that_outlives_the_lease_is_a_loss() {
    for reason in [LostReason::Expired, LostReason::Revoked] {
        let (backend, session, _, guard) = held().await;
        backend.renew.always(Fault::Hangs);
        backend.release.next(Some(Fault::AnswerLost));
        if reason == LostReason::Expired {
            sleep_until(guard.valid_until() - Duration::from_millis(10)).await;
        } else {
            backend.release.next(Some(Fault::Fails(BackendErrorKind::LeaseGone)));
        }
        assert_eq!(guard.unlock().await, Err(LockError::SessionLost { reason }));
        assert_eq!(session.lost_reason(), Some(reason));
    }
    let (backend, _session, _, guard) = held().await;
    backend.renew.always(Fault::Hangs);
    backend.release.always(Fault::Fails(BackendErrorKind::Transient));
    sleep_until(guard.valid_until() - SECOND).await;
    let reason = LostReason::Expired;
    assert_eq!(guard.unlock().await, Err(LockError::SessionLost { reason }));
}

/// Goal: a backend that panics leaves no claim behind, and its session lives.
#[tokio::test(start_paused = true)]
async fn a_backend_that_panics_leaves_no_claim() {
    let backend = FaultyBackend::new();
    let session = session(&backend).await;
    let mutex = session.mutex("a").unwrap();
    backend.put.next(Some(Fault::Panics)).next(Some(Fault::Panics));
    backend.release.next(Some(Fault::Panics));
    backend.renew.next(Some(Fault::Panics));
    assert!(mutex.try_lock().await.is_err());
    assert!(!session.is_answered());
    eventually("it is withdrawn", async || queue_of(&mutex).await.is_empty()).await;
    mutex.lock().await.unwrap().unlock().await.unwrap();
    assert!(session.is_answered());
    sleep(4 * TTL).await;
    assert_eq!(session.lost_reason(), None);
}

/// Goal: a lease counts from when its renewal was sent, not from when that was answered; and when nothing is answered any more,
/// the local clock ends the session.
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

/// Goal: closing a session first completes the releases that are under way, also if they have to be repeated, and then revokes
/// the lease.
#[tokio::test(start_paused = true)]
async fn closing_drains_the_releases() {
    let (backend, session, _, guard) = held().await;
    for _ in 0..3 {
        backend.release.next(Some(Fault::Fails(BackendErrorKind::Transient)));
    }
    backend.close.always(Fault::Fails(BackendErrorKind::Permanent));
    drop(guard);
    session.close().await.unwrap_err();
    assert_eq!((backend.release.count(), backend.close.count()), (4, 1));
    let free = super::session(&backend).await.mutex("a").unwrap();
    drop(free.try_lock().await.unwrap().expect("the claim was withdrawn, not left to its lease"));
}

/// Goal: closing tries for a TTL, with pauses. A second close, later or at the same time, sends no request and returns the same.
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

/// Goal: the lease of a lost session is closed a margin after the loss, with retries that end; the close waits for no claim
/// of the session.
#[tokio::test(start_paused = true)]
async fn closing_after_a_loss_is_bounded() {
    let (backend, session, _, guard) = held().await;
    backend.renew.always(Fault::Hangs);
    backend.release.always(Fault::Hangs);
    backend.close.always(Fault::Fails(BackendErrorKind::Transient));
    drop(guard);
    assert_eq!(session.lost().await, LostReason::Expired);
    sleep(SECOND / 2).await;
    assert_eq!(backend.close.count(), 0, "a holder may still act on the loss");
    sleep(2 * TTL).await;
    let asked = backend.close.count();
    assert!((2..100).contains(&asked), "{asked} requests");
    sleep(10 * TTL).await;
    assert_eq!(backend.close.count(), asked);
}

/// Goal: a close that succeeds, or finds the lease gone, sends one request, and no renewal outlives it, so nothing of the session
/// is left in the backend.
#[tokio::test(start_paused = true)]
async fn a_lease_is_revoked_once() {
    for fault in [None, Some(Fault::Fails(BackendErrorKind::LeaseGone))] {
        let backend = FaultyBackend::new();
        let session = session(&backend).await;
        backend.renew.always(Fault::Hangs);
        backend.close.next(fault);
        eventually("a renewal is under way", async || backend.renew.under_way() == 1).await;
        session.close().await.unwrap();
        assert_eq!(backend.renew.under_way(), 0);
        session.close().await.unwrap();
        drop(session);
        sleep(TTL).await;
        assert_eq!(backend.close.count(), 1);
    }
}
