//! What is particular to etcd: its watch, its compaction, its threads, its leases, its own lock, long queues.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, DeleteOptions, Txn, TxnOp};
use fenced_lock::{
    Backend as _, Claim, EtcdBackend, EtcdOptions, LostReason, PutMode, Session, SessionOptions,
};
use rustix::process::Signal;
use testkit::shared::etcdctl;
use testkit::wait::{eventually, within};
use testkit::{EtcdOptions as ServerOptions, PrivateEtcd, Run};
use tokio::process::Command;
use tokio::time::Instant;

use super::contract::queueing;
use super::lab::{EtcdLab, FoundLab, LONG, Lab, ServerLab, TTL, queue_length, waiter};

/// Goal: etcd may compact all its history, again and again while waiters wait and the watch is cut: that neither hides a grant
/// nor ends a hold.
#[tokio::test]
async fn compaction_hides_no_grant() {
    let shared = EtcdLab::shared().await;
    let (proxy, proxied) = shared.behind_proxy().await;
    let (holder, session) = (shared.session_for(LONG).await, proxied.session_for(LONG).await);
    let name = shared.name();
    let mut client = shared.client().await;
    for _ in 0..5 {
        let guard = holder.mutex(&name).unwrap().lock().await.unwrap();
        let waiter = waiter(&session.mutex(&name).unwrap(), 2).await;
        proxy.cut();
        // another test may have compacted further
        let revision =
            client.put("elsewhere", "", None).await.unwrap().header().unwrap().revision();
        drop(client.compact(revision, None).await);
        guard.unlock().await.unwrap();
        within("the waiter is granted", waiter).await.unwrap().unwrap().unlock().await.unwrap();
    }
}

/// Goal: `etcdctl lock` and the library exclude each other.
#[tokio::test]
async fn etcdctl_takes_its_turns() {
    let lab = EtcdLab::shared().await;
    let start = |name: &str| {
        let mut command = Command::new(etcdctl());
        command.args(["--endpoints", lab.endpoint(), "lock", "--ttl=4", name]);
        Run::start(command.env("ETCDCTL_API", "3"))
    };
    // it says the key of its claim
    queueing::a_peer_takes_its_turns(&lab, start, "lock-", async |_: &str, mut peer| {
        peer.signal(Signal::TERM);
        peer.ended().await;
    })
    .await;
}

/// Goal: a claim of `etcdctl`, which has no value, asks for a turn, and so does one of an earlier version of this library. A
/// mark that changes, in either direction, is noticed: by the watch, and after a break by the list.
#[tokio::test]
async fn the_marks_of_claims_are_followed() {
    let shared = EtcdLab::shared().await;
    let (proxy, proxied) = shared.behind_proxy().await;
    let mutex = proxied.session_for(LONG).await.mutex(&shared.name()).unwrap();
    let guard = mutex.lock().await.unwrap();
    eventually("nobody waits", async || !guard.is_contended()).await;
    let (key, mut client) = (format!("{}/other", mutex.name()), shared.client().await);
    let standby = "+1700000000000 app 1\tstandby a:1";
    // the second is an earlier version's, which has such a label
    for asking in ["", &standby[1..], "+1700000000000 app 1\tasks a:1"] {
        client.put(&*key, asking, None).await.unwrap();
        eventually("it asks", async || guard.is_contended()).await;
        client.put(&*key, standby, None).await.unwrap();
        eventually("it stands by", async || !guard.is_contended()).await;
    }
    client.put(&*key, "", None).await.unwrap();
    eventually("it asks", async || guard.is_contended()).await;
    proxy.refuse();
    client.put(&*key, standby, None).await.unwrap();
    proxy.accept();
    eventually("it stands by", async || !guard.is_contended()).await;
}

/// Goal: while etcd is away, a holder cannot know that nobody waits, and is told that somebody may.
#[tokio::test]
async fn contention_is_not_known_while_etcd_is_away() {
    let (mut etcd, lab) = EtcdLab::start().await;
    let guard = lab.session_for(LONG).await.mutex("a").unwrap().lock().await.unwrap();
    eventually("nobody waits", async || !guard.is_contended()).await;
    etcd.kill().await.unwrap();
    eventually("that is not known any more", async || guard.is_contended()).await;
}

/// Goal: the backend forgets claims that were handed over, that a try made in vain, or that gave up waiting: it watches their
/// queue no longer than the queue is used.
#[tokio::test]
async fn nothing_is_left_in_memory() {
    let lab = EtcdLab::shared().await;
    let backend = lab.backend_of_its_own();
    let session =
        Session::open(Arc::clone(&backend) as _, SessionOptions::new(LONG)).await.unwrap();
    let (mutex, other) = (session.mutex(&lab.name()).unwrap(), lab.session_for(LONG).await);
    let guard = mutex.lock().await.unwrap().requeue().await.unwrap();
    assert!(mutex.try_lock().await.unwrap().is_none());
    let waiter = waiter(&mutex, 2).await;
    waiter.abort();
    queue_length(&mutex, 1).await;
    guard.unlock().await.unwrap();
    let theirs = other.mutex(mutex.name()).unwrap().lock().await.unwrap();
    assert!(mutex.try_lock().await.unwrap().is_none());
    theirs.unlock().await.unwrap();
    let what = "no claim is known any more";
    eventually(what, async || format!("{backend:?}").contains("claims: 0")).await;
}

/// Goal: a renewal tells a lease that is gone from an etcd that is away, although etcd answers the former without an error. A
/// lease lives no shorter than was asked for, though etcd counts in seconds.
#[tokio::test]
async fn a_renewal_learns_that_the_lease_is_gone() {
    let lab = EtcdLab::shared().await;
    let session = lab.session_for(Duration::from_millis(5500)).await;
    assert_eq!(session.lease().ttl, Duration::from_secs(6));
    lab.revoke(session.lease().id).await;
    assert_eq!(within("the loss is told", session.lost()).await, LostReason::Revoked);
}

/// Goal: a member that is alone has more time for the answer to a renewal than one of several has: there is nobody else to ask.
#[tokio::test]
async fn a_member_that_is_alone_may_be_slow() {
    let (proxy, proxied) = EtcdLab::shared().await.behind_proxy().await;
    let guard = proxied.mutex(&proxied.name()).await.lock().await.unwrap();
    let valid_until = guard.valid_until();
    // there and back takes a sixth of the lease's time
    proxy.delay(TTL / 12);
    eventually("a renewal", async || guard.valid_until() > valid_until).await;
}

/// Goal: a queue that is larger than a message may be, of keys or of values, can be seen, tried and
/// waited in.
#[tokio::test]
async fn a_queue_may_be_larger_than_a_message() {
    let lab = EtcdLab::shared().await;
    let backend = lab.backend_of_its_own();
    let options = SessionOptions::new(LONG);
    let session = Session::open(Arc::clone(&backend) as _, options).await.unwrap();
    let mut client = lab.client().await;
    for (length, value, batch) in [(20_000, 0, 50), (100, 100_000, 10)] {
        let mutex = session.mutex(&format!("{}-{}", lab.name(), "long".repeat(60))).unwrap();
        let key = |number| format!("{}/{number:06}", mutex.name());
        for begin in (0..length).step_by(batch) {
            let puts = (begin..length.min(begin + batch))
                .map(|n| TxnOp::put(key(n), vec![b' '; value], None));
            client.txn(Txn::new().and_then(puts.collect::<Vec<_>>())).await.unwrap();
        }
        assert_eq!(mutex.queue().await.unwrap().len(), length);
        assert!(mutex.try_lock().await.unwrap().is_none());
        eventually("all is seen", async || {
            let seen = backend.queue_snapshot(mutex.name());
            seen.is_current && seen.queue.len() == length
        })
        .await;
        let waiter = waiter(&mutex, length + 1).await;
        // the events of this deletion are larger than a message as well
        let all_before = DeleteOptions::new().with_range(format!("{}/1", mutex.name()));
        client.delete(format!("{}/0", mutex.name()), Some(all_before)).await.unwrap();
        drop(within("the waiter is granted", waiter).await.unwrap().unwrap());
        queue_length(&mutex, 0).await;
    }
}

/// Goal: as documented of a dead holder's end, a new leader grants its lease the whole TTL again, so its lock is free within
/// twice the TTL, not within one. Method: nobody renews the holder's lease, and the leader is killed when most of its TTL is
/// over.
#[tokio::test]
async fn a_new_leader_renews_a_dead_holders_lease() {
    let mut members =
        PrivateEtcd::start_cluster_in(None, 3, ServerOptions::default()).await.unwrap();
    let mut leader = None;
    for (index, member) in members.iter().enumerate() {
        leader = leader.or(member.is_leader().await.then_some(index));
    }
    let mut leader = members.swap_remove(leader.unwrap());
    let endpoints: Vec<_> = members.iter().map(PrivateEtcd::endpoint).collect();
    let backend = Arc::new(EtcdBackend::new(EtcdOptions::new(&endpoints)).unwrap());
    let session =
        Session::open(Arc::clone(&backend) as _, SessionOptions::new(LONG)).await.unwrap();
    let lease = backend.open(3 * TTL).await.unwrap();
    let opened_at = Instant::now();
    let claim = Claim::new("a", lease.id, 1);
    backend.put(&claim, &PutMode::AtEnd).await.unwrap().unwrap();
    let waiter = waiter(&session.mutex("a").unwrap(), 2).await;
    let mut client = Client::connect(&endpoints, None).await.unwrap();
    let mut left = async || {
        let answer = client.lease_time_to_live(lease.id, None).await;
        answer.ok().and_then(|answer| u64::try_from(answer.ttl()).ok())
    };
    eventually("most of it is over", async || left().await.is_some_and(|left| left <= 2)).await;
    leader.kill().await.unwrap();
    eventually("it is renewed", async || left().await.is_some_and(|left| left > 3)).await;
    drop(within("the waiter is granted", waiter).await.unwrap().unwrap());
    println!("granted after {:?} with a TTL of {:?}", opened_at.elapsed(), lease.ttl);
}
