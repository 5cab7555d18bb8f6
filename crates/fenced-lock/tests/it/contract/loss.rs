//! Holds and sessions that are lost.

use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{
    GrantToken, Guard, LockError, LostReason, Owner, Session, SessionKeeper, SessionOptions, Token,
};
use testkit::wait::{eventually, within};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::faulty::{Fault, FaultyBackend};
use crate::lab::{HOUR, Lab, TTL, queue_length, queue_of, waiter};

/// Goal: when a lease is revoked, its holder and its waiters are told, and others are served.
pub(crate) async fn a_revoked_lease_is_told_to_holder_and_waiters(lab: &impl Lab) {
    let (name, other) = (lab.name(), lab.name());
    let session = lab.session().await;
    let bystander = lab.session().await;
    let guard = session.mutex(&name).unwrap().lock().await.unwrap();
    let others = bystander.mutex(&other).unwrap().lock().await.unwrap();
    let waiting = waiter(&session.mutex(&other).unwrap(), 2).await;
    let next = waiter(&bystander.mutex(&name).unwrap(), 2).await;

    lab.revoke(session.lease().id).await;

    within("the holder is told", guard.lost()).await;
    assert!(guard.is_lost());
    assert!(guard.valid_until() <= Instant::now());
    let ended = within("the waiter is told", waiting).await.unwrap().unwrap_err();
    assert!(matches!(ended, LockError::Lost { .. } | LockError::SessionLost { .. }), "{ended}");
    drop(within("the next is served", next).await.unwrap().unwrap());
    let reason = within("the session is lost", session.lost()).await;
    assert!(matches!(reason, LostReason::Revoked | LostReason::Expired), "{reason}");
    assert!(!others.is_lost());
}

/// Goal: an operator who deletes the holder's key takes the lock away, and the holder is told although its session lives. An
/// unlock right after the deletion, before anybody was told, says that the lock was lost.
pub(crate) async fn a_deleted_claim_is_told_to_its_holder(lab: &impl Lab) {
    let [mutex, other] = lab.two_mutexes().await;
    let guard = mutex.lock().await.unwrap();
    lab.delete(&guard.key()).await;
    within("the holder is told", guard.lost()).await;
    assert!(guard.valid_until() <= Instant::now());
    let taken = other.lock().await.unwrap();
    assert!(matches!(guard.unlock().await, Err(LockError::Lost { .. })));
    assert!(!taken.is_lost(), "a late unlock removes nobody else's claim");
    assert_eq!(queue_of(&other).await.len(), 1);
    taken.unlock().await.unwrap();
    for _ in 0..5 {
        let guard = mutex.lock().await.unwrap();
        lab.delete(&guard.key()).await;
        assert!(matches!(guard.unlock().await, Err(LockError::Lost { .. })));
    }
}

/// Goal: an unlock right after the end of the lease grants nothing to a waiter of the same lease, whose claim ended with it.
pub(crate) async fn a_revoked_lease_grants_nothing_while_unlocking(lab: &impl Lab) {
    for _ in 0..5 {
        let session = lab.session().await;
        let mutex = session.mutex(&lab.name()).unwrap();
        let guard = mutex.lock().await.unwrap();
        let waiter = waiter(&mutex, 2).await;
        lab.revoke(session.lease().id).await;
        assert!(guard.unlock().await.is_err());
        let ended = within("the waiter is told", waiter).await.unwrap().unwrap_err();
        assert!(matches!(ended, LockError::Lost { .. } | LockError::SessionLost { .. }), "{ended}");
    }
}

/// Goal: a request that finds its lease gone ends the session at once.
pub(crate) async fn queueing_on_a_revoked_lease_loses_the_session(lab: &impl Lab) {
    let reason = LostReason::Revoked;
    for tries in [false, true] {
        let session = lab.session().await;
        let mutex = session.mutex(&lab.name()).unwrap();
        lab.revoke(session.lease().id).await;
        let locked = if tries { mutex.try_lock().await } else { mutex.lock().await.map(Some) };
        assert_eq!(locked.unwrap_err(), LockError::SessionLost { reason });
        assert_eq!(session.lost_reason(), Some(reason));
    }
}

/// Goal: a waiter whose key is deleted ends with an error and is never granted; those behind it move
/// up.
pub(crate) async fn a_deleted_waiter_is_told_and_the_others_go_on(lab: &impl Lab) {
    let [mutex, other] = lab.two_mutexes().await;
    let guard = mutex.lock().await.unwrap();
    let deleted = waiter(&other, 2).await;
    let behind = waiter(&mutex, 3).await;
    lab.delete(&queue_of(&mutex).await[1]).await;
    let ended = within("the waiter is told", deleted).await.unwrap().unwrap_err();
    assert!(matches!(ended, LockError::Lost { .. }));
    assert!(ended.is_retryable(), "the next claim may be granted");
    guard.unlock().await.unwrap();
    drop(within("the next is served", behind).await.unwrap().unwrap());
}

/// Goal: what runs under a guard is stopped when the hold is lost, and does not begin after that; the hold cannot be entered
/// again, and unlocking it says that it was lost.
pub(crate) async fn a_lost_hold_is_of_no_use(lab: &impl Lab) {
    let session = lab.session().await;
    let mutex = session.mutex(&lab.name()).unwrap();
    let mut owner = Owner::new();
    let guard = mutex.lock_as(&mut owner).await.unwrap();
    let inner = guard.reenter().unwrap();
    assert_eq!(guard.run(async { 7 }).await, Ok(7));
    // beside the run, which drops its future in the middle
    let run = within("the run ends", guard.run(std::future::pending::<()>()));
    let (ended, ()) = tokio::join!(run, lab.revoke(session.lease().id));
    assert!(matches!(ended, Err(LockError::Lost { .. })));
    let late = guard.run(async { unreachable!("the hold is lost") }).await;
    assert!(matches!(late, Err(LockError::Lost { .. })));
    assert!(matches!(guard.reenter().unwrap_err(), LockError::Lost { .. }));
    assert!(mutex.lock_as(&mut owner).await.is_err());
    assert!(matches!(inner.unlock().await, Err(LockError::Lost { .. })), "an inner entry too");
    assert!(matches!(guard.unlock().await, Err(LockError::Lost { .. })));
}

/// Goal: an owner that lost its hold takes the lock anew while its old guard lives. The new hold has a claim of its own, which
/// the end of the old guard does not touch.
pub(crate) async fn an_owner_takes_the_lock_anew_after_a_loss(lab: &impl Lab<Token = Token>) {
    let mutex = lab.mutex(&lab.name()).await;
    let mut owner = Owner::new();
    let old = mutex.lock_as(&mut owner).await.unwrap();
    lab.delete(&old.key()).await;
    within("the holder is told", old.lost()).await;
    let new = within("a new grant", mutex.lock_as(&mut owner)).await.unwrap();
    assert!(new.token() > old.token());
    assert_eq!(queue_of(&mutex).await, [new.key()]);
    // as a drop does, but waits until the release has ended
    assert!(matches!(old.unlock().await.unwrap_err(), LockError::Lost { .. }));
    assert_eq!(queue_of(&mutex).await, [new.key()]);
    let inner = mutex.lock_as(&mut owner).await.unwrap();
    assert_eq!(inner.token(), new.token(), "a re-entry of the new hold");
    inner.unlock().await.unwrap();
    new.unlock().await.unwrap();
}

/// Goal: a session that this process has lost blocks no other process: when the local clock ends a session, the process closes it
/// at the service, although the lease would live there for long, and although a guard still lives here. It does so only when the
/// margin is over, in which a holder that looked at the clock may still act.
pub(crate) async fn a_session_lost_here_is_closed_there<T: GrantToken>(lab: &impl Lab<Token = T>) {
    let name = lab.name();
    // its leases are believed in for two seconds, and its renewals are not answered
    let grants_ttl = Some(Duration::from_secs(2));
    let silent = FaultyBackend { grants_ttl, ..FaultyBackend::of(lab.backend()) };
    silent.renew.always(Fault::Hangs);
    let silent = Arc::new(silent);
    let mut held = None;
    // a busy machine may take longer than these leases last
    eventually("the lock is held", async || {
        let Ok(session) = Session::open(silent.clone(), SessionOptions::new(HOUR)).await else {
            return false;
        };
        held = session.mutex(&name).unwrap().lock().await.ok().map(|guard| (session, guard));
        held.is_some()
    })
    .await;
    let (session, guard) = held.unwrap();
    let mutex = lab.session_for(HOUR).await.mutex(&name).unwrap();
    let next = within("the next is served", mutex.lock()).await.unwrap();
    assert!(guard.is_lost());
    // at most half of the TTL
    assert!(Instant::now() >= guard.valid_until() + Duration::from_secs(1), "too early");
    assert_eq!(session.lost_reason(), Some(LostReason::Expired));
    next.unlock().await.unwrap();
}

/// Does any work under a lock, in a task of its own.
fn in_a_task<T: GrantToken, F: Future<Output: Send> + Send + 'static>(
    keeper: SessionKeeper<T>,
    name: String,
    work: impl FnOnce(Guard<T>) -> F + Send + 'static,
) -> JoinHandle<Result<F::Output, LockError>> {
    tokio::spawn(async move { keeper.with(&name, work).await })
}

/// Goal: a keeper's wait for a lock survives the loss of its session: the lock is granted in the next one. Work that was done is
/// told apart from work that a loss stopped, and the lock is free after both. A closed keeper has no session any more.
pub(crate) async fn a_keeper_locks_beyond_a_loss(lab: &impl Lab) {
    let name = lab.name();
    let keeper = SessionKeeper::start(lab.backend(), SessionOptions::new(TTL));
    let other = lab.session_for(HOUR).await.mutex(&name).unwrap();
    let held = other.lock().await.unwrap();
    let captured = name.clone();
    let work = async move |guard: Guard<_>| [captured, guard.name().to_owned()];
    let waiter = in_a_task(keeper.clone(), name.clone(), work);
    assert!(keeper.try_lock(&name).await.unwrap().is_none());
    queue_length(&other, 2).await;
    lab.revoke(keeper.session().await.unwrap().lease().id).await;
    held.unlock().await.unwrap();
    let done = within("the work is done", waiter).await.unwrap().unwrap();
    assert_eq!(done, [name.clone(), name.clone()]);

    let revoke = async |_: Guard<_>| {
        lab.revoke(keeper.current().unwrap().lease().id).await;
        std::future::pending::<()>().await;
    };
    let ended = within("the work ends", keeper.with(&name, revoke)).await;
    assert!(matches!(ended, Err(LockError::Lost { .. })));
    let guard = keeper.lock(&name).await.unwrap();
    keeper.close().await;
    assert!(guard.is_lost());
    let reason = LostReason::Closed;
    assert_eq!(keeper.session().await.unwrap_err(), LockError::SessionLost { reason });
}

/// Goal: a task that hangs does not keep a lock for ever: its guard is lost after the longest hold, and the next is served,
/// while the session goes on.
pub(crate) async fn the_longest_hold_ends(lab: &impl Lab) {
    let name = lab.name();
    let options = SessionOptions::new(HOUR).hold_for(Duration::from_millis(200));
    let session = Session::open(lab.backend(), options).await.unwrap();
    let mutex = session.mutex(&name).unwrap();
    let mut owner = Owner::new();
    let guard = mutex.lock_as(&mut owner).await.unwrap();
    let inner = guard.reenter().unwrap();
    let next = lab.session_for(HOUR).await.mutex(&name).unwrap();
    let next = within("the next is served", next.lock()).await.unwrap();
    assert!(guard.is_lost() && !next.is_lost() && !session.is_lost());
    assert!(Instant::now() >= guard.valid_until() + Duration::from_millis(20), "too early");
    within("the holder is told", guard.lost()).await;
    assert!(matches!(inner.unlock().await, Err(LockError::Lost { .. })));
    drop(guard);
    next.unlock().await.unwrap();
    mutex.lock_as(&mut owner).await.unwrap().unlock().await.unwrap();

    let options = SessionOptions::new(HOUR).hold_for(Duration::MAX);
    let for_ever = Session::open(lab.backend(), options).await.unwrap();
    for_ever.mutex(&name).unwrap().lock().await.unwrap().unlock().await.unwrap();
}
