//! Many names, and long queues.

use std::time::Duration;

use etcd_client::{DeleteOptions, Txn, TxnOp};
use fenced_lock::{Guard, LockError, Session, SessionOptions};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use testkit::wait::{eventually, within};
use testkit::{EtcdOptions as ServerOptions, PrivateEtcd};

use super::lab::{EtcdLab, Lab, metric, queue_length};

async fn session(lab: &EtcdLab) -> Session {
    let options = SessionOptions::new(Duration::from_secs(20));
    Session::open(lab.backend(), options).await.unwrap()
}

/// Takes so many locks, some at a time.
async fn hold(session: &Session, names: &str, count: usize) -> Result<Vec<Guard>, LockError> {
    let mutexes = (0..count).map(|number| session.mutex(&format!("{names}-{number}")).unwrap());
    let locks = mutexes.map(async |mutex| mutex.lock().await);
    stream::iter(locks).buffer_unordered(200).try_collect().await
}

/// Goal: a name that is held costs nothing while nothing happens. Method: while the lease is renewed
/// some times, etcd counts fewer reads than there are names.
#[tokio::test]
async fn held_names_cost_no_reads() {
    let etcd = PrivateEtcd::start(ServerOptions::default()).await.unwrap();
    let lab = EtcdLab::of(&etcd);
    let options = SessionOptions::new(Duration::from_secs(3));
    let session = Session::open(lab.backend(), options).await.unwrap();
    let guards = hold(&session, "name", 2000).await.unwrap();
    eventually("all are watched", async || !guards.iter().any(Guard::is_contended)).await;
    let reads = metric(&etcd, "started", "Range").await;
    let renewals = async || metric(&etcd, "msg_received", "LeaseKeepAlive").await;
    let renewed = renewals().await;
    eventually("five renewals", async || renewals().await >= renewed + 5).await;
    let reads = metric(&etcd, "started", "Range").await - reads;
    assert!(reads < 1000, "{reads} reads for names at which nothing happened");
    assert!(guards.iter().all(|guard| !guard.is_lost() && !guard.is_contended()));
}

/// Goal: a queue that is larger than a message may be, of keys or of values, can be seen, tried and
/// waited in.
#[tokio::test]
async fn a_queue_may_be_larger_than_a_message() {
    let lab = EtcdLab::shared().await;
    let session = session(&lab).await;
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
            let seen = mutex.queue_snapshot().unwrap();
            seen.is_current && seen.queue.len() == length
        })
        .await;
        let waiting = mutex.clone();
        let waiter = tokio::spawn(async move { waiting.lock().await });
        queue_length(&mutex, length + 1).await;
        // the news of it are larger than a message may be, too
        let all_before = DeleteOptions::new().with_range(format!("{}/1", mutex.name()));
        client.delete(format!("{}/0", mutex.name()), Some(all_before)).await.unwrap();
        drop(within("the waiter is granted", waiter).await.unwrap().unwrap());
        queue_length(&mutex, 0).await;
    }
}
