//! The order of turns.

use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use fenced_lock::{Guard, ObservedClaim, Order, Owner, Token};
use testkit::Run;
use testkit::wait::{eventually, within};

use crate::lab::{LONG, Lab, queue_length, queue_of, unseen_waiter, waiter};

/// Goal: first come, first served, across sessions, with ever larger tokens; a backend that promises no order serves each waiter
/// once. Method: a hundred waiters queue one after the other, each seen in the queue before the next comes, and note their turns.
pub(crate) async fn a_hundred_waiters_are_served_in_their_order(lab: &impl Lab<Token = Token>) {
    let (name, sessions) = (lab.name(), [lab.session_for(LONG).await, lab.session_for(LONG).await]);
    let mutexes = sessions.each_ref().map(|session| session.mutex(&name).unwrap());
    let holder = mutexes[0].lock().await.unwrap();
    let turns = Arc::new(StdMutex::new(Vec::new()));
    let mut waiters = tokio::task::JoinSet::new();
    for number in 0..100 {
        let (mutex, turns) = (mutexes[number % 2].clone(), Arc::clone(&turns));
        waiters.spawn(async move {
            let guard = mutex.lock().await.unwrap();
            turns.lock().unwrap().push((number, guard.token()));
            guard.unlock().await.unwrap();
        });
        queue_length(&mutexes[0], number + 2).await;
    }
    holder.unlock().await.unwrap();
    within("all are served", waiters.join_all()).await;
    let mut turns = turns.lock().unwrap().clone();
    assert!(turns.is_sorted_by(|one, next| one.1 < next.1), "{turns:?}");
    if lab.backend().promises().order == Order::Unordered {
        turns.sort_by_key(|turn| turn.0);
    }
    assert!(turns.into_iter().map(|turn| turn.0).eq(0..100));
}

/// Goal: the queue shows who holds and who waits, in order, with what a human needs to know.
pub(crate) async fn the_queue_can_be_seen(lab: &impl Lab<Token = Token>) {
    let name = lab.name();
    let (first, second) = (lab.session_called("app 1").await, lab.session_called("app-2").await);
    let mutex = first.mutex(&name).unwrap();
    let guard = mutex.lock().await.unwrap();
    let waiter = waiter(&second.mutex(&name).unwrap(), 2).await;
    let queue = mutex.queue().await.unwrap();
    assert_eq!(queue[0].token, Some(guard.token()));
    assert_eq!(mutex.probe().await.unwrap().unwrap().key, queue[0].key);
    assert_eq!((queue[0].lease, queue[1].lease), (first.lease().id, second.lease().id));
    assert_eq!(queue[0].label.as_deref(), Some("app 1"));
    assert_eq!(queue[1].label.as_deref(), Some("app-2"));
    assert!(queue[1].age.unwrap() < Duration::from_mins(1));
    assert!(queue[0].key.starts_with(&format!("{name}/{:x}-", first.lease().id)));
    guard.unlock().await.unwrap();
    let token = waiter.await.unwrap().unwrap().token();
    assert!(queue[1].token.is_none_or(|known| known == token), "it is the right one, if shown");
}

/// Goal: a hand-over gives the next in the queue its turn. The one that handed over gets the lock back after that, as a new
/// tenure, with a claim that is shown behind the other one.
pub(crate) async fn a_hand_over_goes_to_the_next_and_comes_back(lab: &impl Lab<Token = Token>) {
    let [mutex, other] = lab.two_mutexes().await;
    let guard = mutex.lock().await.unwrap();
    let (first, key) = (guard.token(), guard.key());
    let waiter = waiter(&other, 2).await;
    let handing_over = tokio::spawn(guard.requeue());
    let others = waiter.await.unwrap().unwrap();
    assert!(!handing_over.is_finished());
    queue_length(&mutex, 2).await;
    let queue = mutex.queue().await.unwrap();
    assert_eq!((&queue[0].key, queue[0].token), (&others.key(), Some(others.token())));
    let second = others.token();
    others.unlock().await.unwrap();
    let again = handing_over.await.unwrap().unwrap();
    assert!(first < second && second < again.token());
    assert!(again.key() == queue[1].key && again.key() != key);
    assert_eq!(queue_of(&mutex).await.len(), 1);
    // with nobody waiting it comes back at once
    let again = again.requeue().await.unwrap();
    again.unlock().await.unwrap();
    assert!(queue_of(&mutex).await.is_empty());
}

/// Goal: an owner that has entered twice cannot give the lock away from under its outer entry.
pub(crate) async fn a_hand_over_with_entries_left_keeps_the_lock(lab: &impl Lab) {
    let mutex = lab.mutex(&lab.name()).await;
    let mut owner = Owner::new();
    let outer = mutex.lock_as(&mut owner).await.unwrap();
    let inner = mutex.lock_as(&mut owner).await.unwrap();
    let token = inner.token();
    let inner = inner.requeue().await.unwrap();
    assert_eq!(inner.token(), token);
    drop(inner);
    outer.unlock().await.unwrap();
}

/// Goal: the holder is told, without asking, when somebody begins to wait and when nobody waits any more.
pub(crate) async fn contention_is_known_to_the_holder(lab: &impl Lab) {
    let [mutex, other] = lab.two_mutexes().await;
    let guard = mutex.lock().await.unwrap();
    eventually("alone in the queue", async || !guard.is_contended()).await;
    let waiter = unseen_waiter(&other);
    eventually("somebody waits", async || guard.is_contended()).await;
    waiter.abort();
    eventually("alone again", async || !guard.is_contended()).await;
}

/// Goal: a claim that stands by is no contention until it is told to ask for a turn, and then keeps its place;
/// it takes over at once when the holder is gone, and stands by again once it has handed over. Who watches the holder is told of
/// each, with its note. Where a standby is not promised, it asks as any other claim.
pub(crate) async fn a_standby_asks_for_no_turn(lab: &impl Lab<Token = Token>) {
    let (name, backend, note) = (lab.name(), lab.backend(), "10.0.0.1:7000");
    let (first, second) = (lab.session_for(LONG).await, lab.session_for(LONG).await);
    let mutex = first.mutex(&name).unwrap();
    let standby = second.mutex(&name).unwrap().standby(note).unwrap();
    if !backend.promises().standby {
        let guard = mutex.lock().await.unwrap();
        eventually("alone in the queue", async || !guard.is_contended()).await;
        let waiter = unseen_waiter(&standby);
        eventually("it asks", async || guard.is_contended()).await;
        guard.unlock().await.unwrap();
        return drop(within("its turn", waiter).await.unwrap().unwrap());
    }
    let mut holder = backend.watch_holder(&name).unwrap();
    let mut holder_is = async |guard: Option<&Guard>| {
        let key = guard.map(Guard::key);
        let is_key = |key: &String, claim: &ObservedClaim| *claim.key == *key.as_bytes();
        let shown = holder.wait_for(|holder| match (holder, &key) {
            (Some(holder), Some(key)) => is_key(key, holder),
            (holder, key) => holder.is_none() && key.is_none(),
        });
        within("the holder is shown", shown).await.unwrap().clone()
    };
    let guard = mutex.lock().await.unwrap();
    assert_eq!(holder_is(Some(&guard)).await.unwrap().note, None);
    let next = waiter(&standby, 2).await;
    // who comes later, and goes, shows that the standby was seen
    let asking = unseen_waiter(&mutex);
    eventually("somebody asks", async || guard.is_contended()).await;
    asking.abort();
    eventually("nobody asks any more", async || !guard.is_contended()).await;
    let waiting = async || mutex.queue().await.unwrap().remove(1);
    let before = waiting().await;
    assert_eq!((before.note.as_deref(), before.is_standby), (Some(note), true));
    standby.ask_for_turn();
    eventually("it asks", async || guard.is_contended()).await;
    let after = waiting().await;
    assert_eq!((after.note.as_deref(), after.is_standby), (Some(note), false));
    assert_eq!((&after.key, after.token), (&before.key, before.token));
    let handing_over = tokio::spawn(guard.requeue());
    let theirs = within("its turn", next).await.unwrap().unwrap();
    assert_eq!(holder_is(Some(&theirs)).await.unwrap().note.as_deref(), Some(note));
    let again = tokio::spawn(theirs.requeue());
    let guard = within("our turn again", handing_over).await.unwrap().unwrap();
    eventually("it stands by again", async || !guard.is_contended()).await;
    assert!(waiting().await.is_standby);
    lab.revoke(first.lease().id).await;
    let theirs = within("it takes over", again).await.unwrap().unwrap();
    assert!(theirs.token() > guard.token());
    assert_eq!(holder_is(Some(&theirs)).await.unwrap().revision, theirs.token().revision());
    theirs.unlock().await.unwrap();
    holder_is(None).await;
    assert!(mutex.standby("no address").is_err() && standby.standby("n".repeat(257)).is_err());
}

/// Goal: another program's lock and ours are the same lock: each waits for the other, first come, first served, and when one
/// dies, the next gets the lock. Method: `start` has the other program take the lock of this name, or wait for it; once it has
/// it, it says `granted`.
pub(crate) async fn a_peer_takes_its_turns(
    lab: &impl Lab,
    start: impl Fn(&str) -> Run,
    granted: &str,
    release: impl AsyncFn(&str, Run),
) {
    let mutex = lab.session_for(LONG).await.mutex(&lab.name()).unwrap();
    let guard = mutex.lock().await.unwrap();
    let mut second = start(mutex.name());
    queue_length(&mutex, 2).await;
    let third = waiter(&mutex, 3).await;
    let mut fourth = start(mutex.name());
    queue_length(&mutex, 4).await;
    let queue = mutex.queue().await.unwrap();
    assert_eq!(queue[0].key, guard.key());
    assert!(queue.iter().map(|entry| entry.label.is_some()).eq([true, false, true, false]));
    guard.unlock().await.unwrap();
    assert!(second.line().await.starts_with(granted));
    assert!(!third.is_finished());
    assert!(mutex.try_lock().await.unwrap().is_none());
    release(mutex.name(), second).await;
    let guard = within("our turn", third).await.unwrap().unwrap();
    assert_eq!(queue_of(&mutex).await.len(), 2, "theirs waits");
    guard.unlock().await.unwrap();
    assert!(fourth.line().await.starts_with(granted));
    let fifth = waiter(&mutex, 2).await;
    fourth.kill().await;
    drop(within("our turn again", fifth).await.unwrap().unwrap());
}
