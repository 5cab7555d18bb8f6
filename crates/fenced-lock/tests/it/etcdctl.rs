//! `etcdctl lock` and the library are clients of one lock.

use std::process::Stdio;

use testkit::shared::etcdctl;
use testkit::wait::within;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::lab::{EtcdLab, Lab, queue_length};

/// An `etcdctl lock NAME`: it prints its key when it is granted, and holds until it is told to end.
struct Etcdctl {
    process: Child,
    output: Lines<BufReader<ChildStdout>>,
}

impl Etcdctl {
    fn lock(lab: &EtcdLab, name: &str) -> Self {
        let mut process = Command::new(etcdctl())
            .args(["--endpoints", lab.endpoint(), "lock", name])
            .env("ETCDCTL_API", "3")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("etcdctl is installed by `make setup`");
        let output = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, output }
    }

    async fn granted(&mut self) {
        let key = within("etcdctl is granted", self.output.next_line()).await.unwrap();
        assert!(key.is_some(), "etcdctl ended without the lock");
    }

    /// Has it release the lock.
    async fn end(mut self) {
        let pid = self.process.id().unwrap().try_into().unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        within("etcdctl ends", self.process.wait()).await.unwrap();
    }
}

/// Goal: what `etcdctl` holds, the library waits for.
#[tokio::test]
async fn the_library_waits_for_etcdctl() {
    let lab = EtcdLab::shared().await;
    let mutex = lab.mutex(&lab.name()).await;
    let mut etcdctl = Etcdctl::lock(&lab, mutex.name());
    etcdctl.granted().await;
    assert!(mutex.try_lock().await.unwrap().is_none());
    let waiting = mutex.clone();
    let waiter = tokio::spawn(async move { waiting.lock().await });
    queue_length(&mutex, 2).await;
    assert!(!waiter.is_finished());
    etcdctl.end().await;
    drop(within("the library is granted", waiter).await.unwrap().unwrap());
}

/// Goal: what the library holds, `etcdctl` waits for, and a claim of the library behind it waits for
/// both.
#[tokio::test]
async fn etcdctl_waits_for_the_library() {
    let lab = EtcdLab::shared().await;
    let mutex = lab.mutex(&lab.name()).await;
    let guard = mutex.lock().await.unwrap();
    let mut etcdctl = Etcdctl::lock(&lab, mutex.name());
    queue_length(&mutex, 2).await;
    let waiting = mutex.clone();
    let waiter = tokio::spawn(async move { waiting.lock().await });
    queue_length(&mutex, 3).await;
    let queue = mutex.queue().await.unwrap();
    assert_eq!(queue[1].label, None, "a foreign claim is shown without a label");
    guard.unlock().await.unwrap();
    etcdctl.granted().await;
    assert!(!waiter.is_finished());
    etcdctl.end().await;
    drop(within("the library is granted", waiter).await.unwrap().unwrap());
}

/// Goal: `etcdctl lock a/b` and our lock `a` are different locks.
#[tokio::test]
async fn etcdctl_on_a_longer_name_is_no_holder() {
    let lab = EtcdLab::shared().await;
    let mutex = lab.mutex(&lab.name()).await;
    let mut etcdctl = Etcdctl::lock(&lab, &format!("{}/b", mutex.name()));
    etcdctl.granted().await;
    drop(mutex.try_lock().await.unwrap().expect("the lock is free"));
    etcdctl.end().await;
}
