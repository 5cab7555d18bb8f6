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

/// Goal: what `etcdctl` holds, the library waits for; what the library holds, `etcdctl` waits for, and a claim of the
/// library behind it waits for both.
#[tokio::test]
async fn etcdctl_is_excluded_and_excludes() {
    let lab = EtcdLab::shared().await;
    let mutex = lab.mutex(&lab.name()).await;
    let mut etcdctl = lock(&lab, mutex.name());
    etcdctl.line().await;
    assert!(mutex.try_lock().await.unwrap().is_none());
    let first = waiter(&mutex, 2).await;
    assert!(!first.is_finished());
    etcdctl.signal(Signal::TERM);
    let guard = within("the library is granted", first).await.unwrap().unwrap();

    let mut etcdctl = lock(&lab, mutex.name());
    queue_length(&mutex, 2).await;
    let next = waiter(&mutex, 3).await;
    let queue = mutex.queue().await.unwrap();
    assert_eq!(queue[1].label, None, "a foreign claim is shown without a label");
    guard.unlock().await.unwrap();
    etcdctl.line().await;
    assert!(!next.is_finished());
    etcdctl.signal(Signal::TERM);
    drop(within("the library is granted", next).await.unwrap().unwrap());
}
