//! `etcdctl lock` and the library are clients of one lock.

use rustix::process::Signal;
use testkit::Run;
use testkit::shared::etcdctl;
use testkit::wait::within;
use tokio::process::Command;

use super::lab::{EtcdLab, Lab, queue_length, waiter};

/// An `etcdctl lock NAME`: it prints its key when it is granted, and holds until it is told to end.
fn lock(lab: &EtcdLab, name: &str) -> Run {
    let mut command = Command::new(etcdctl());
    command.args(["--endpoints", lab.endpoint(), "lock", name]).env("ETCDCTL_API", "3");
    Run::start(&mut command)
}

/// Has it release the lock.
async fn end(mut etcdctl: Run) {
    etcdctl.signal(Signal::TERM);
    etcdctl.ended().await;
}

/// Goal: what `etcdctl` holds, the library waits for.
#[tokio::test]
async fn the_library_waits_for_etcdctl() {
    let lab = EtcdLab::shared().await;
    let mutex = lab.mutex(&lab.name()).await;
    let mut etcdctl = lock(&lab, mutex.name());
    etcdctl.line().await;
    assert!(mutex.try_lock().await.unwrap().is_none());
    let waiter = waiter(&mutex, 2).await;
    assert!(!waiter.is_finished());
    end(etcdctl).await;
    drop(within("the library is granted", waiter).await.unwrap().unwrap());
}

/// Goal: what the library holds, `etcdctl` waits for, and a claim of the library behind it waits for
/// both.
#[tokio::test]
async fn etcdctl_waits_for_the_library() {
    let lab = EtcdLab::shared().await;
    let mutex = lab.mutex(&lab.name()).await;
    let guard = mutex.lock().await.unwrap();
    let mut etcdctl = lock(&lab, mutex.name());
    queue_length(&mutex, 2).await;
    let waiter = waiter(&mutex, 3).await;
    let queue = mutex.queue().await.unwrap();
    assert_eq!(queue[1].label, None, "a foreign claim is shown without a label");
    guard.unlock().await.unwrap();
    etcdctl.line().await;
    assert!(!waiter.is_finished());
    end(etcdctl).await;
    drop(within("the library is granted", waiter).await.unwrap().unwrap());
}
