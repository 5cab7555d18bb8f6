//! Taking and releasing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fenced_lock::{BackendErrorKind, LockError, LostReason, SessionOptions, Token};
use testkit::wait::{eventually, within};

use crate::lab::{LONG, Lab, TTL, opened, queue_length, queue_of, unseen_waiter, waiter};

/// Goal: tokens grow from grant to grant, whoever is granted: the store's fence depends on it.
pub(crate) async fn a_later_grant_has_a_larger_token(lab: &impl Lab<Token = Token>) {
    let [a, b] = lab.two_mutexes().await;
    let mut latest = None;
    for mutex in [&a, &b, &a, &a, &b] {
        let guard = mutex.lock().await.unwrap();
        assert!(latest.is_none_or(|latest| guard.token() > latest));
        latest = Some(guard.token());
        guard.unlock().await.unwrap();
    }
}

/// Goal: a label may have any characters, and any number of them. Characters that the service cannot keep are shown in another
/// form.
pub(crate) async fn any_label_will_do(lab: &impl Lab) {
    let label = format!("ü \0\n% x{}", "y".repeat(2_000_000));
    let mutex = lab.session_called(&label).await.mutex(&lab.name()).unwrap();
    let guard = within("a grant", mutex.lock()).await.unwrap().requeue().await.unwrap();
    let label = mutex.queue().await.unwrap().remove(0).label.unwrap();
    assert!(label.contains("% x") || label.contains("_ x"), "{label:?}");
    guard.unlock().await.unwrap();
    drop(mutex.try_lock().await.unwrap().unwrap());
}

/// Goal: never two holders. Method: 100 waiters in three sessions each read a number, let the others
/// run, and write it back plus one; without exclusion some additions get lost.
pub(crate) async fn one_holder_at_a_time(lab: &impl Lab) {
    let name = lab.name();
    let sum = Arc::new(AtomicU32::new(0));
    let mut waiters = tokio::task::JoinSet::new();
    let sessions = [lab.session().await, lab.session().await, lab.session().await];
    for session in sessions.iter().cycle().take(100) {
        let (mutex, sum) = (session.mutex(&name).unwrap(), Arc::clone(&sum));
        waiters.spawn(async move {
            let guard = mutex.lock().await.unwrap();
            let seen = sum.load(Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(1)).await;
            sum.store(seen + 1, Ordering::SeqCst);
            guard.unlock().await.unwrap();
        });
    }
    waiters.join_all().await;
    assert_eq!(sum.load(Ordering::SeqCst), 100);
}

/// Goal: a try takes the lock if nobody has it, and says so if somebody has. It leaves no claim that would make the next try
/// fail.
pub(crate) async fn try_takes_a_free_lock_only(lab: &impl Lab) {
    let [mutex, other] = lab.two_mutexes().await;
    for _ in 0..20 {
        let guard = mutex.lock().await.unwrap();
        assert!(other.try_lock().await.unwrap().is_none());
        assert!(mutex.try_lock().await.unwrap().is_none(), "not for another owner either");
        guard.unlock().await.unwrap();
        let guard = other.try_lock().await.unwrap().expect("it was released");
        guard.unlock().await.unwrap();
    }
    queue_length(&mutex, 0).await;
}

/// Goal: closing ends the wait of waiters, releases what is held and leaves the service empty;
/// closing twice is harmless; nothing can be locked afterwards.
pub(crate) async fn closing_releases_everything(lab: &impl Lab) {
    let (session, other) = (lab.session().await, lab.session().await);
    let mutex = session.mutex(&lab.name()).unwrap();
    let guard = mutex.lock().await.unwrap();
    let waiter = waiter(&mutex, 2).await;
    session.close().await.unwrap();
    session.close().await.unwrap();
    let reason = LostReason::Closed;
    assert_eq!(waiter.await.unwrap().unwrap_err(), LockError::SessionLost { reason });
    assert!(guard.is_lost());
    assert_eq!(session.lost().await, reason);
    assert!(mutex.lock().await.is_err());
    assert!(queue_of(&other.mutex(mutex.name()).unwrap()).await.is_empty());
}

/// Goal: a session that nobody uses any more gives up its lease; a guard counts as use.
pub(crate) async fn an_unused_session_closes_by_itself(lab: &impl Lab) {
    let name = lab.name();
    let watching = lab.mutex(&name).await;
    // the same backend for both: another one may not know the lease
    let backend = lab.backend();
    let session = opened(Arc::clone(&backend), SessionOptions::new(TTL)).await;
    let lease = session.lease();
    let guard = session.mutex(&name).unwrap().lock().await.unwrap();
    drop(session);
    let key = queue_of(&watching).await;
    tokio::time::sleep(TTL * 3 / 2).await;
    assert_eq!(queue_of(&watching).await, key, "the guard keeps the session alive");
    assert!(!guard.is_lost());
    drop(guard);
    eventually("the lease is revoked", async || {
        let renewed = backend.renew(lease).await;
        renewed.is_err_and(|error| error.kind == BackendErrorKind::LeaseGone)
    })
    .await;
    assert!(queue_of(&watching).await.is_empty());
}

/// Goal: the service takes no name for a path, a pattern, another name's claim or a command: each name is a lock of its own,
/// which is held, waited for, looked at and released as any other, and none touches another one's claims. A name that would mix
/// up queues is refused before anything is sent.
pub(crate) async fn any_name_will_do(lab: &impl Lab) {
    let own = lab.name();
    let long = |end: &str| format!("{}{end}", "z".repeat(200));
    let tail = |begin: &str| format!("{begin}{own}");
    let names = r#".. . ... ../.. / // % %2e%2e * \ ' " {} $1 -lock- __lock__0000000001 3000000000
        _c_00000000-0000-0001-0000-000000000001-lock-0000000001"#;
    let letters = "\u{1f389} \u{1f389}\u{1f38a} \u{e000} \u{fffd} \u{ffff} \u{10ffff} \
        e\u{301} \u{e9} E\u{301}";
    let names = names.split_whitespace().chain(letters.split_whitespace()).chain([" ", "\u{2028}"]);
    let mut names: Vec<_> = names.map(ToOwned::to_owned).collect();
    // the keys of one begin like those of the other, in whichever order they are taken
    names.extend(["/b", "", "/c"].map(|end| own.clone() + end));
    names.extend(["/", " ", "%", "../", "./", "%2F", "*"].map(tail));
    names.extend(
        ["/..", "/", " ", "%", "*", "-", "?", "-lock-", ".lock", "-3000000000", "+", "\\"]
            .map(|end| own.clone() + end),
    );
    names.extend(["", ".", "..", "/..", "../..", "...", "../queues/x", "+", "%2e"].map(long));
    names.extend(["\u{1f389}".repeat(64), "%".repeat(256), ".".repeat(256), "Z".repeat(200)]);
    names.push("ü/x".repeat(64));
    let (session, other) = (lab.session_for(LONG).await, lab.session_for(LONG).await);
    for name in ["", "a\nb", "a\0b", &"x".repeat(257)] {
        let refused = session.mutex(name).unwrap_err();
        assert_eq!(refused, LockError::InvalidName { name: name.to_owned() });
    }
    let mut guards = Vec::new();
    for name in &names {
        let mutex = session.mutex(name).unwrap();
        let guard = within(name, mutex.try_lock()).await.unwrap();
        let guard = guard.unwrap_or_else(|| panic!("{name:?} is another lock"));
        assert!(other.mutex(name).unwrap().try_lock().await.unwrap().is_none(), "{name:?}");
        guards.push((guard, mutex));
    }
    for (guard, mutex) in &guards {
        assert_eq!(queue_of(mutex).await, [guard.key()], "{:?}", guard.name());
        let first = mutex.probe().await.unwrap().expect("it is held");
        assert_eq!(first.key, guard.key());
        assert!(!guard.is_lost(), "{:?}", guard.name());
    }
    for (guard, mutex) in guards {
        let name = guard.name().to_owned();
        let next = unseen_waiter(&other.mutex(&name).unwrap());
        guard.unlock().await.unwrap();
        let next = within(&name, next).await.unwrap().unwrap();
        next.unlock().await.unwrap();
        assert!(queue_of(&mutex).await.is_empty(), "{name:?}");
    }
}
