//! A keeper of sessions on a service that goes wrong, in paused time.

use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{
    BackendErrorKind, LockError, LostReason, MemoryBackend, Owner, SessionKeeper, SessionOptions,
};
use testkit::wait::{eventually, within};
use tokio::time::{Instant, sleep};

use super::faulty::{Fault, FaultyBackend, kind_of, queue_of, waiter};
use super::{SECOND, TTL, held};

/// Goal: the errors of a loss and of a wait say what was lost or waited for, and for how long.
#[tokio::test(start_paused = true)]
async fn an_error_says_what_and_for_how_long() {
    let (backend, _session, mutex, guard) = held().await;
    let waiter = waiter(&mutex, 2).await;
    sleep(3 * SECOND).await;
    for key in queue_of(&mutex).await {
        backend.service.delete(&key);
    }
    backend.open.always(Fault::Hangs);
    let keeper = SessionKeeper::start(Arc::clone(&backend) as _, SessionOptions::new(TTL));
    for (ended, said, seconds) in [
        (guard.unlock().await, "the lock \"a\" was lost after ", 3),
        (waiter.await.unwrap().map(drop), "the lock \"a\" was lost after ", 3),
        (keeper.lock("a").await.map(drop), "there was no lock session within ", 10),
    ] {
        let error = ended.unwrap_err();
        let (LockError::Lost { after: time, .. } | LockError::Timeout { waited: time, .. }) = error
        else {
            panic!("{error}");
        };
        assert_eq!(time.as_secs(), seconds);
        assert_eq!(error.to_string(), format!("{said}{time:?}"));
    }
}

/// Goal: when one session after another is lost as soon as it is opened, or even before, the keeper opens the next after a pause.
#[tokio::test(start_paused = true)]
async fn a_keeper_does_not_flood() {
    for grants_ttl in [Some(Duration::from_millis(1)), Some(Duration::ZERO)] {
        let faulty = FaultyBackend::of(Arc::new(MemoryBackend::new()));
        let backend = Arc::new(FaultyBackend { grants_ttl, ..faulty });
        backend.renew.always(Fault::Fails(BackendErrorKind::LeaseGone));
        // a flood must not keep the time from passing
        for _ in 0..1000 {
            backend.open.next(None);
        }
        backend.open.always(Fault::Hangs);
        let keeper = SessionKeeper::start(Arc::clone(&backend) as _, SessionOptions::new(TTL));
        sleep(60 * SECOND).await;
        keeper.close().await;
        let opened = backend.open.count();
        assert!((10..=130).contains(&opened), "{opened} sessions of {grants_ttl:?}");
    }
}

/// Goal: a lease that had run out by the time its grant arrived makes no session. After a session that is lost from the start,
/// the keeper opens the next one.
#[tokio::test(start_paused = true)]
async fn a_keeper_tries_again_after_a_session_born_lost() {
    let backend = FaultyBackend::new();
    backend.open.next(Some(Fault::Late(2 * TTL)));
    let keeper = SessionKeeper::start(Arc::clone(&backend) as _, SessionOptions::new(TTL));
    eventually("the first is lost", async || keeper.latest_error().is_some()).await;
    assert_eq!(keeper.latest_error(), Some(LockError::SessionLost { reason: LostReason::Expired }));
    assert!(!within("the next is opened", keeper.session()).await.unwrap().is_lost());
}

/// Goal: an error that waiting does not mend is told at once. A caller that wants a lock waits for up to a TTL for a service that
/// is away, and is then told why it has none; it gets the lock if the service comes back in time.
#[tokio::test(start_paused = true)]
async fn a_keeper_tries_for_a_ttl() {
    let backend = FaultyBackend::new();
    backend.open.always(Fault::Fails(BackendErrorKind::Permanent));
    let refused = SessionKeeper::start(Arc::clone(&backend) as _, SessionOptions::new(TTL));
    let error = within("the refusal is told", refused.session()).await.unwrap_err();
    assert!(matches!(error, LockError::Backend(_)), "{error}");
    backend.open.always(Fault::Fails(BackendErrorKind::Transient));
    let keeper = SessionKeeper::start(Arc::clone(&backend) as _, SessionOptions::new(TTL));
    let began_at = Instant::now();
    let error = keeper.lock("a").await.unwrap_err();
    assert_eq!(kind_of::<()>(Err(error)), BackendErrorKind::Transient);
    assert_eq!(began_at.elapsed().as_secs(), TTL.as_secs());
    let back = async {
        sleep(TTL / 2).await;
        backend.open.clear();
    };
    let (guard, ()) = tokio::join!(keeper.lock("a"), back);
    guard.unwrap().unlock().await.unwrap();

    backend.put.always(Fault::Fails(BackendErrorKind::Refused));
    let began_at = Instant::now();
    let error = keeper.lock("a").await.unwrap_err();
    assert_eq!(kind_of::<()>(Err(error)), BackendErrorKind::Refused);
    assert!(began_at.elapsed() > TTL / 2 && began_at.elapsed() <= TTL);
    let asked = backend.put.count();
    assert!(asked < 30, "{asked} requests");
}

/// Goal: work under a lock counts as done if the lock was held until the work ended, even if the release is refused or the
/// service falls silent and the session ends. It does not if the lease turns out to be gone. A guard that the work
/// keeps, keeps the lock.
#[tokio::test(start_paused = true)]
async fn work_is_done_though_the_release_is_refused() {
    let backend = FaultyBackend::new();
    let keeper = SessionKeeper::start(Arc::clone(&backend) as _, SessionOptions::new(TTL));
    backend.release.always(Fault::Fails(BackendErrorKind::Refused));
    assert_eq!(keeper.with("a", async |_| 7).await, Ok(7));
    backend.release.clear();
    let guard = keeper.with("b", async |guard| guard).await.unwrap();
    assert_eq!(keeper.try_lock("b").await.map(|locked| locked.is_some()), Ok(false));
    guard.unlock().await.unwrap();
    backend.renew.always(Fault::Hangs);
    backend.release.always(Fault::Fails(BackendErrorKind::Transient));
    let first = keeper.session().await.unwrap();
    // so long that the lease ends before a TTL of tries to release
    let work = async |_| sleep(TTL / 2).await;
    assert_eq!(keeper.with("c", work).await, Ok(()));
    assert_eq!(first.lost_reason(), Some(LostReason::Expired));
    backend.renew.clear();
    backend.release.always(Fault::Fails(BackendErrorKind::LeaseGone));
    let revoked = LockError::SessionLost { reason: LostReason::Revoked };
    assert_eq!(keeper.with("d", async |_| 7).await, Err(revoked));
    backend.release.clear();
    keeper.close().await;
}

/// Goal: a keeper lets an owner in again without a request; after a loss the owner gets a later grant, in the next session.
#[tokio::test(start_paused = true)]
async fn a_keeper_lets_an_owner_in_again() {
    let backend = FaultyBackend::new();
    let keeper = SessionKeeper::start(Arc::clone(&backend) as _, SessionOptions::new(TTL));
    let (mut owner, mut other) = (Owner::new(), Owner::new());
    let outer = keeper.lock_as("a", &mut owner).await.unwrap();
    let inner = keeper.lock_as("a", &mut owner).await.unwrap();
    let tried = keeper.try_lock_as("a", &mut owner).await.unwrap().unwrap();
    let by_mutex = keeper.mutex("a").unwrap().lock_as(&mut owner).await.unwrap();
    assert_eq!([inner.token(), tried.token(), by_mutex.token()], [outer.token(); 3]);
    assert_eq!(backend.put.count(), 1);
    assert!(keeper.try_lock_as("a", &mut other).await.unwrap().is_none());
    backend.service.revoke(keeper.session().await.unwrap().lease().id);
    outer.lost().await;
    let later = keeper.lock_as("a", &mut owner).await.unwrap();
    assert!(later.token() > outer.token() && outer.unlock().await.is_err());
}

/// Goal: the mutex of a keeper claims again what was lost, also what asked for a turn, and waits for a session for longer than a
/// TTL; but it returns at once what the service refuses.
#[tokio::test(start_paused = true)]
async fn the_mutex_of_a_keeper_leaves_refusals_to_its_caller() {
    let (backend, _session, mutex, guard) = held().await;
    backend.open.always(Fault::Fails(BackendErrorKind::Transient));
    let keeper = SessionKeeper::start(Arc::clone(&backend) as _, SessionOptions::new(TTL));
    let standby = keeper.mutex("a").unwrap().standby("a:1").unwrap();
    let waiting = tokio::spawn({
        let standby = standby.clone();
        async move { standby.lock().await }
    });
    sleep(3 * TTL).await;
    backend.open.clear();
    eventually("it waits", async || queue_of(&mutex).await.len() == 2).await;
    assert!(!guard.is_contended());
    standby.ask_for_turn();
    within("it asks", guard.contended()).await;
    let first = queue_of(&mutex).await.remove(1);
    backend.service.delete(&first);
    eventually("it claims again", async || {
        queue_of(&mutex).await.get(1).is_some_and(|key| *key != first)
    })
    .await;
    eventually("it asks again", async || guard.is_contended()).await;
    guard.unlock().await.unwrap();
    within("its turn", waiting).await.unwrap().unwrap().unlock().await.unwrap();

    backend.put.always(Fault::Fails(BackendErrorKind::Refused));
    let asked = backend.put.count();
    let error = standby.lock().await.unwrap_err();
    assert_eq!(kind_of::<()>(Err(error)), BackendErrorKind::Refused);
    assert_eq!(backend.put.count(), asked + 1);
}

/// Goal: a keeper that is being closed gives out no session, though the one that is finishing its releases still lives.
#[tokio::test(start_paused = true)]
async fn a_closing_keeper_gives_out_nothing() {
    let backend = FaultyBackend::new();
    let keeper = SessionKeeper::start(Arc::clone(&backend) as _, SessionOptions::new(TTL));
    let guard = keeper.session().await.unwrap().mutex("a").unwrap().lock().await.unwrap();
    backend.release.next(Some(Fault::Late(3 * SECOND)));
    drop(guard);
    let closing = tokio::spawn({
        let keeper = keeper.clone();
        async move { keeper.close().await }
    });
    sleep(SECOND).await;
    assert!(!closing.is_finished());
    assert!(keeper.session().await.is_err());
    closing.await.unwrap();
}

/// Goal: when a caller closes the session, the keeper opens another one, and counts no loss. A guard outlives the keeper that it
/// came from; its session ends with the guard.
#[tokio::test(start_paused = true)]
async fn a_closed_session_is_no_loss() {
    let backend = FaultyBackend::new();
    let keeper = SessionKeeper::start(Arc::clone(&backend) as _, SessionOptions::new(TTL));
    let first = keeper.session().await.unwrap();
    first.close().await.unwrap();
    let second = within("the next is opened", keeper.session()).await.unwrap();
    assert_ne!(first.lease(), second.lease());
    assert_eq!(keeper.losses(), 0);
    let guard = second.mutex("a").unwrap().lock().await.unwrap();
    drop((keeper, second));
    sleep(2 * TTL).await;
    guard.unlock().await.unwrap();
    eventually("it is closed", async || backend.close.count() == 2).await;
}

/// Goal: a service that refuses everything is not flooded: in the end a keeper asks once a minute after a permanent error, such
/// as for want of rights, and once a second after others; all who wait together ask no more than that. A permanent error is
/// logged once.
#[tokio::test(start_paused = true)]
async fn a_service_that_refuses_everything_is_left_alone() {
    for (kind, opened, told) in [
        (BackendErrorKind::Transient, 3600..=7300, 12..=13),
        (BackendErrorKind::Refused, 3600..=7300, 12..=13),
        (BackendErrorKind::Permanent, 60..=130, 1..=1),
    ] {
        let log = tempfile::NamedTempFile::new().unwrap();
        let events = tracing_subscriber::fmt().with_writer(log.reopen().unwrap()).finish();
        // where there is one subscriber, the thread of another test that comes first, and has none, switches an event off for good
        let second = tracing_subscriber::fmt().with_writer(std::io::sink).finish();
        let _second = tracing::Dispatch::new(second);
        let _recorded = tracing::subscriber::set_default(events);
        let backend = FaultyBackend::new();
        let session = super::session(&backend).await;
        let mutex = session.mutex("a").unwrap();
        let faults =
            [&backend.open, &backend.put, &backend.release, &backend.renew, &backend.close];
        for requests in faults {
            requests.always(Fault::Fails(kind));
        }
        let before: Vec<_> = faults.iter().map(|requests| requests.count()).collect();
        let keeper = SessionKeeper::start(Arc::clone(&backend) as _, SessionOptions::new(TTL));
        let locking = [(); 10].map(|()| {
            let mutex = mutex.clone();
            tokio::spawn(async move { mutex.lock().await.map(drop) })
        });
        sleep(3600 * SECOND).await;
        assert!(locking.iter().all(tokio::task::JoinHandle::is_finished));
        keeper.close().await;
        let asked: Vec<_> =
            faults.iter().zip(before).map(|(requests, before)| requests.count() - before).collect();
        assert!(opened.contains(&asked[0]), "{kind:?}: {asked:?}");
        // by one session of ten seconds with ten waiters
        assert!(asked[1..].iter().all(|asked| *asked < 300), "{kind:?}: {asked:?}");
        let log = std::fs::read_to_string(log.path()).unwrap();
        let lines = log.lines().filter(|line| line.contains("could not open a lock session"));
        assert!(told.contains(&lines.count()), "{kind:?}: {log}");
    }
}
