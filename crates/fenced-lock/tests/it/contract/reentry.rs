//! Owners and their entries.

use std::time::Duration;

use fenced_lock::Owner;
use tokio::time::timeout;

use crate::lab::{Lab, queue_of};

/// Goal: an owner is let in again, by name and by guard, under the same token, and the lock is
/// released with the last guard, in whichever order they go.
pub(crate) async fn an_owner_enters_again(lab: &impl Lab) {
    let [mutex, other] = lab.two_mutexes().await;
    let mut owner = Owner::new();
    let outer = mutex.lock_as(&mut owner).await.unwrap();
    let inner = mutex.lock_as(&mut owner).await.unwrap();
    let innermost = inner.reenter().unwrap();
    let tried = mutex.try_lock_as(&mut owner).await.unwrap().expect("it has it already");
    for guard in [&inner, &innermost, &tried] {
        assert_eq!(guard.token(), outer.token());
    }
    assert_eq!(queue_of(&mutex).await.len(), 1);
    drop(outer);
    tried.unlock().await.unwrap();
    innermost.unlock().await.unwrap();
    assert!(other.try_lock().await.unwrap().is_none(), "one entry is left");
    inner.unlock().await.unwrap();
    drop(other.try_lock().await.unwrap().expect("the last entry was given back"));
}

/// Goal: re-entry is counted in this process, across mutex values of one name: a thousand entries
/// deep, no request is sent. Method: entering again is done at its first poll, before any request
/// could have been answered, and the queue has one claim throughout.
pub(crate) async fn a_thousand_entries_cost_no_request(lab: &impl Lab) {
    let (name, session) = (lab.name(), lab.session().await);
    let mutexes = [session.mutex(&name).unwrap(), session.mutex(&name).unwrap()];
    let mut owner = Owner::new();
    let first = mutexes[0].lock_as(&mut owner).await.unwrap();
    let mut guards = Vec::new();
    for depth in 1..1000 {
        let entering = mutexes[depth % 2].lock_as(&mut owner);
        // polled once: a request could not be answered by then
        let entered = futures_util::FutureExt::now_or_never(entering);
        guards.push(entered.expect("no request is sent").unwrap());
    }
    assert!(guards.iter().all(|guard| guard.token() == first.token()));
    assert_eq!(queue_of(&mutexes[0]).await.len(), 1);
    drop(first);
    let last = guards.pop().unwrap();
    drop(guards);
    assert_eq!(queue_of(&mutexes[0]).await.len(), 1, "one entry is left");
    last.unlock().await.unwrap();
    assert!(queue_of(&mutexes[0]).await.is_empty());
}

/// Goal: the same session, the same mutex, the same task: another owner is somebody else.
pub(crate) async fn another_owner_waits(lab: &impl Lab) {
    let mutex = lab.mutex(&lab.name()).await;
    let (mut one, mut other) = (Owner::new(), Owner::new());
    let guard = mutex.lock_as(&mut one).await.unwrap();
    let limit = Duration::from_millis(200);
    assert!(timeout(limit, mutex.lock_as(&mut other)).await.is_err());
    assert!(timeout(limit, mutex.lock()).await.is_err());
    guard.unlock().await.unwrap();
    drop(mutex.lock_as(&mut other).await.unwrap());
}
