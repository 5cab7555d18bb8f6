//! Callers that go away.

use std::time::Duration;

use crate::lab::{Lab, queue_length, waiter};

/// Goal: a future that is dropped while it waits withdraws its claim, and those behind it go on. A hand-over that is dropped
/// withdraws both the old claim and the new one.
pub(crate) async fn a_caller_that_goes_away_leaves_no_claim(lab: &impl Lab) {
    let [mutex, other] = lab.two_mutexes().await;
    let guard = mutex.lock().await.unwrap();
    let first = waiter(&other, 2).await;
    let behind = waiter(&mutex, 3).await;
    first.abort();
    queue_length(&mutex, 2).await;
    guard.unlock().await.unwrap();
    let guard = behind.await.unwrap().unwrap();
    let waiter = waiter(&other, 2).await;
    let handing_over = tokio::spawn(guard.requeue());
    let others = waiter.await.unwrap().unwrap();
    queue_length(&mutex, 2).await;
    handing_over.abort();
    queue_length(&mutex, 1).await;
    others.unlock().await.unwrap();
    queue_length(&mutex, 0).await;
}

/// Goal: there is no moment at which an abort leaves a claim behind. Method: two hundred attempts,
/// aborted after different times from none at all to well after the grant.
pub(crate) async fn many_aborted_at_any_moment_leave_no_claim(lab: &impl Lab) {
    let mutex = lab.mutex(&lab.name()).await;
    let mut attempts = tokio::task::JoinSet::new();
    for number in 0..200_u64 {
        let mutex = mutex.clone();
        let life = Duration::from_micros(number * 100);
        attempts.spawn(async move { tokio::time::timeout(life, mutex.lock()).await.map(drop) });
    }
    attempts.join_all().await;
    queue_length(&mutex, 0).await;
    mutex.lock().await.unwrap().unlock().await.unwrap();
}
