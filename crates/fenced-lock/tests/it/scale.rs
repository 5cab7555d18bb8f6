//! Many names, and long queues.

use std::sync::Arc;

use etcd_client::{DeleteOptions, Txn, TxnOp};
use fenced_lock::{Session, SessionOptions};
use testkit::wait::{eventually, within};

use super::lab::{EtcdLab, LONG, Lab as _, queue_length, waiter};

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
        // the news of it are larger than a message may be, too
        let all_before = DeleteOptions::new().with_range(format!("{}/1", mutex.name()));
        client.delete(format!("{}/0", mutex.name()), Some(all_before)).await.unwrap();
        drop(within("the waiter is granted", waiter).await.unwrap().unwrap());
        queue_length(&mutex, 0).await;
    }
}
