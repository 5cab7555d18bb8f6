//! Owners and their entries.

use std::time::Duration;

use fenced_lock::Owner;
use futures_util::FutureExt as _;
use tokio::time::timeout;

use crate::lab::{Lab, queue_of};

/// Goal: an owner is let in again, by name, by guard and through another mutex of the name, a thousand entries deep, under the
/// same token and without a request. The last guard to go releases the lock, in whichever order they go. Method: entering again
/// is done at its first poll, before any request could have been answered.
pub(crate) async fn an_owner_enters_again(lab: &impl Lab) {
    let (name, session) = (lab.name(), lab.session().await);
    let mutexes = [session.mutex(&name).unwrap(), session.mutex(&name).unwrap()];
    let other = lab.mutex(&name).await;
    let mut owner = Owner::new();
    let outer = mutexes[0].lock_as(&mut owner).await.unwrap();
    let mut guards = vec![outer.reenter().unwrap()];
    for depth in 0..1000 {
        let entered = mutexes[depth % 2].lock_as(&mut owner).now_or_never();
        guards.push(entered.expect("no request is sent").unwrap());
    }
    let tried = mutexes[0].try_lock_as(&mut owner).now_or_never().expect("no request is sent");
    guards.push(tried.unwrap().expect("it has it already"));
    assert!(guards.iter().all(|guard| guard.token() == outer.token()));
    assert_eq!(queue_of(&other).await.len(), 1);
    drop(outer);
    let last = guards.swap_remove(500);
    drop(guards);
    assert!(other.try_lock().await.unwrap().is_none(), "one entry is left");
    last.unlock().await.unwrap();
    drop(other.try_lock().await.unwrap().expect("the last entry was given back"));
}

/// Goal: another owner waits, even in the same session, with the same mutex and in the same task.
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
