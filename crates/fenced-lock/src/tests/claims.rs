//! Claims and holds on a service that goes wrong, in paused time.

use std::sync::Arc;

use fenced_lock::{BackendErrorKind, LockError, LostReason, Owner, Session, SessionOptions};
use futures_util::future::join_all;
use testkit::wait::{eventually, within};
use tokio::time::{Instant, timeout};

use super::faulty::{Fault, FaultyBackend, queue_of, waiter};
use super::{SECOND, TTL, held, session};

/// Goal: as documented, a drop returns before the release is done, so a try right after it may still find the lock taken;
/// `unlock` waits.
#[tokio::test(start_paused = true)]
async fn a_try_after_a_drop_may_come_too_early() {
    let (backend, _, mutex, guard) = held().await;
    backend.release.next(Some(Fault::Slow(SECOND)));
    drop(guard);
    assert!(mutex.try_lock().await.unwrap().is_none());
    mutex.lock().await.unwrap().unlock().await.unwrap();
    drop(mutex.try_lock().await.unwrap().expect("it is released"));
}

/// Goal: while the release of the last entry is under way, its owner cannot enter again.
#[tokio::test(start_paused = true)]
async fn a_hold_that_is_being_released_cannot_be_entered() {
    let backend = FaultyBackend::new();
    let mutex = session(&backend).await.mutex("a").unwrap();
    let mut owner = Owner::new();
    let guard = mutex.lock_as(&mut owner).await.unwrap();
    backend.release.next(Some(Fault::Slow(SECOND)));
    let unlocking = tokio::spawn(guard.unlock());
    eventually("the release is under way", async || backend.release.under_way() == 1).await;
    assert!(mutex.try_lock_as(&mut owner).await.unwrap().is_none());
    unlocking.await.unwrap().unwrap();
}

/// Goal: a hand-over in two steps whose release was done but not answered goes on: a hold counts as lost only if it is gone for
/// another reason, and then it does. A hand-over that is refused leaves neither claim behind.
#[tokio::test(start_paused = true)]
async fn a_hand_over_survives_a_lost_answer() {
    let (backend, _, mutex, guard) = held().await;
    let first = guard.token();
    backend.release.next(Some(Fault::AnswerLost));
    let guard = guard.requeue().await.unwrap();
    assert!(guard.token() > first);
    backend.release.next(Some(Fault::Fails(BackendErrorKind::Permanent)));
    assert!(guard.requeue().await.is_err());
    eventually("nothing is left", async || queue_of(&mutex).await.is_empty()).await;
    let guard = mutex.lock().await.unwrap();
    let key = guard.key();
    backend.release.next(Some(Fault::Slow(SECOND)));
    let (lost, ()) = tokio::join!(guard.requeue(), async { backend.service.delete(&key) });
    assert!(matches!(lost, Err(LockError::Lost { .. })));
}

/// Goal: a guard knows its lock's name, how long its claim took and, without asking, when another one waits; the queue shows the
/// session's label.
#[tokio::test(start_paused = true)]
async fn what_a_guard_tells() {
    let (backend, options) = (FaultyBackend::new(), SessionOptions::new(TTL).label("label"));
    let session = Session::open(Arc::clone(&backend) as _, options).await.unwrap();
    let mutex = session.mutex("a").unwrap();
    backend.put.next(Some(Fault::Slow(SECOND)));
    let guard = mutex.lock().await.unwrap();
    assert_eq!((guard.name(), guard.enqueued_in().as_secs()), ("a", 1));
    assert_eq!(mutex.queue().await.unwrap()[0].label.as_deref(), Some("label"));
    assert!(timeout(SECOND, guard.contended()).await.is_err());
    let _next = waiter(&mutex, 2).await;
    timeout(SECOND, guard.contended()).await.unwrap();
}

/// Goal: a hold that reaches its limit is released a tenth of the limit later, and once, even if an unlock is under way.
#[tokio::test(start_paused = true)]
async fn the_longest_hold_is_released_once() {
    let (backend, options) = (FaultyBackend::new(), SessionOptions::new(TTL).hold_for(SECOND));
    let session = Session::open(Arc::clone(&backend) as _, options).await.unwrap();
    let mutex = session.mutex("a").unwrap();
    let (_first, began_at) = (mutex.lock().await.unwrap(), Instant::now());
    let second = mutex.lock().await.unwrap();
    assert_eq!(began_at.elapsed().as_millis() / 10, 110);
    backend.release.next(Some(Fault::Slow(2 * SECOND)));
    second.unlock().await.unwrap();
    assert_eq!(backend.release.count(), 2);
}

/// Goal: a request for a turn is repeated until it is done, also after a refusal for good: a password that changes passes. The
/// waiter of a lease that is gone is told.
#[tokio::test(start_paused = true)]
async fn a_request_for_a_turn_is_repeated() {
    let (backend, _, mutex, guard) = held().await;
    let standby = mutex.standby("a:1").unwrap();
    let next = waiter(&standby, 2).await;
    let asked = &backend.ask_for_turn;
    asked.next(Some(Fault::Fails(BackendErrorKind::Transient))).next(Some(Fault::AnswerLost));
    standby.ask_for_turn();
    eventually("it asks again", async || asked.count() == 3).await;
    let handing_over = tokio::spawn(guard.requeue());
    let theirs = next.await.unwrap().unwrap();
    asked.next(Some(Fault::Fails(BackendErrorKind::Permanent)));
    let again = tokio::spawn(theirs.requeue());
    let guard = handing_over.await.unwrap().unwrap();
    standby.ask_for_turn();
    eventually("it asks after a refusal", async || guard.is_contended()).await;
    assert_eq!(asked.count(), 5);
    guard.unlock().await.unwrap();
    let _theirs = again.await.unwrap().unwrap();
    asked.next(Some(Fault::Fails(BackendErrorKind::LeaseGone)));
    let told = waiter(&standby, 2).await;
    standby.ask_for_turn();
    let (reason, told) = (LostReason::Revoked, within("it is told", told).await.unwrap());
    assert_eq!(told.unwrap_err(), LockError::SessionLost { reason });
}

/// Goal: a claim that cannot be withdrawn does not block the lock for as long as the process lives:
/// the session is given up, and says why.
#[tokio::test(start_paused = true)]
async fn a_release_that_never_succeeds_gives_up_the_session() {
    let (backend, session, _, guard) = held().await;
    backend.release.always(Fault::Fails(BackendErrorKind::Transient));
    drop(guard);
    let reason = within("the session is given up", session.lost()).await;
    assert_eq!(reason, LostReason::ReleaseFailed);
    assert!(backend.renew.count() > 1, "its lease was renewed meanwhile");
}

/// Goal: callers that give up sooner than the service answers fill no queue: once many have given up, no further claims are put
/// before theirs are withdrawn. That holds whether the put or the withdrawal is slow, and counts also callers from before it was
/// slow. Another lock, and a try, do not wait for those withdrawals; afterwards those that wait get their turns in the order of
/// their calls.
#[tokio::test(start_paused = true)]
async fn impatient_callers_fill_no_queue() {
    for slow_puts in [true, false] {
        let (backend, session, mutex, guard) = held().await;
        let other = session.mutex("b").unwrap();
        let impatient = async || {
            for error in join_all((0..100).map(|_| timeout(SECOND / 1000, mutex.lock()))).await {
                error.unwrap_err();
            }
        };
        let slow = if slow_puts { &backend.put } else { &backend.release };
        slow.always(Fault::Slow(SECOND * 5));
        impatient().await;
        let under_way = if slow_puts { 64 } else { 100 };
        eventually("they are under way", async || slow.under_way() == under_way).await;
        impatient().await;
        assert_eq!(slow.under_way(), under_way);
        let patient = (0..100).map(|_| {
            let mutex = mutex.clone();
            tokio::spawn(async move { mutex.lock().await.map(|guard| guard.token().revision()) })
        });
        let patient: Vec<_> = patient.collect();
        slow.clear();
        timeout(SECOND, other.lock()).await.unwrap().unwrap().unlock().await.unwrap();
        assert!(timeout(SECOND, mutex.try_lock()).await.unwrap().unwrap().is_none());
        eventually("the patient wait", async || queue_of(&mutex).await.len() == 101).await;
        guard.unlock().await.unwrap();
        let tokens = within("all are granted", join_all(patient)).await;
        assert!(tokens.iter().map(|token| token.as_ref().unwrap().as_ref().unwrap()).is_sorted());
        eventually("nothing is left", async || queue_of(&mutex).await.is_empty()).await;

        // a claim counts from its put to the end of its withdrawal
        let _guard = mutex.lock().await.unwrap();
        backend.put.always(Fault::Slow(SECOND));
        backend.release.always(Fault::Slow(SECOND * 5));
        impatient().await;
        let others = join_all((0..64).map(|_| timeout(SECOND * 2, mutex.lock())));
        let all_put = eventually("all are put", async || backend.release.under_way() == 64);
        tokio::select! {
            () = all_put => assert_eq!(backend.put.under_way(), 0),
            _ = others => panic!("others had time to wait"),
        }
    }
}

/// Goal: a grant does not count if the session is already lost, or being closed, when it comes.
#[tokio::test(start_paused = true)]
async fn a_grant_after_the_loss_is_none() {
    for (reason, late) in [(LostReason::Expired, 2 * TTL), (LostReason::Closed, SECOND)] {
        let backend = FaultyBackend::new();
        let session = session(&backend).await;
        let mutex = session.mutex("a").unwrap();
        backend.renew.always(Fault::Hangs);
        backend.put.next(Some(Fault::Late(late)));
        let waiter = tokio::spawn(async move { mutex.lock().await });
        eventually("the claim is being queued", async || backend.put.under_way() == 1).await;
        if reason == LostReason::Closed {
            session.close().await.unwrap();
        }
        assert_eq!(waiter.await.unwrap().unwrap_err(), LockError::SessionLost { reason });
    }
}

/// Goal: a holder learns that its hold or its lease is over before another claim is granted; a hand-over or an unlock then
/// reports the loss.
#[tokio::test(start_paused = true)]
async fn a_hold_that_is_over_is_told_before_it_is_released() {
    for longest in [Some(SECOND), None] {
        let (backend, options) = (FaultyBackend::new(), SessionOptions::new(TTL));
        let options = longest.into_iter().fold(options, SessionOptions::hold_for);
        let session = Session::open(Arc::clone(&backend) as _, options).await.unwrap();
        let mutex = session.mutex("a").unwrap();
        let guard = mutex.lock().await.unwrap();
        backend.renew.always(Fault::Hangs);
        guard.lost().await;
        assert_eq!(queue_of(&mutex).await, [guard.key()]);
        let told =
            if longest.is_some() { guard.requeue().await.map(drop) } else { guard.unlock().await };
        assert!(matches!(told, Err(LockError::Lost { .. })), "{told:?}");
    }
}

/// Goal: a hand-over while the session closes leaves no claim behind, even while other claims are not yet withdrawn.
#[tokio::test(start_paused = true)]
async fn a_hand_over_while_closing_leaves_no_claim() {
    let (backend, session, mutex, guard) = held().await;
    let other = session.mutex("b").unwrap().lock().await.unwrap();
    backend.release.next(Some(Fault::Slow(TTL)));
    drop(other);
    let closing = tokio::spawn(async move { session.close().await });
    eventually("it closes", async || mutex.try_lock().await.is_err()).await;
    let reason = LostReason::Closed;
    assert_eq!(guard.requeue().await.unwrap_err(), LockError::SessionLost { reason });
    eventually("its claim goes", async || queue_of(&mutex).await.is_empty()).await;
    assert!(!closing.is_finished());
}
