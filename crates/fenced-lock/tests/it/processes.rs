//! The lock between processes: this test binary runs itself again.

use std::path::PathBuf;
use std::time::Duration;

use testkit::wait::within;
use tokio::process::Child;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::lab::{EtcdLab, Lab, TTL, queue_length, run_again};

/// What a worker is told by its environment.
const ENDPOINT: &str = "LOCK_WORKER_ENDPOINT";
const NAME: &str = "LOCK_WORKER_NAME";
const FILE: &str = "LOCK_WORKER_FILE";

fn start(worker: &str, lab: &EtcdLab, name: &str, file: &str) -> Child {
    let told = [(ENDPOINT, lab.endpoint()), (NAME, name), (FILE, file)];
    run_again(&format!("processes::{worker}"), told)
}

/// What this process is told, if it is a worker.
fn told() -> Option<(EtcdLab, String, PathBuf)> {
    let endpoint = std::env::var(ENDPOINT).ok()?;
    Some((EtcdLab::at(endpoint), std::env::var(NAME).unwrap(), std::env::var(FILE).unwrap().into()))
}

/// Goal: one holder among three processes with a hundred waiters. Method: each adds one to a number
/// in a file by reading and writing it; without exclusion some additions get lost, or a reader meets
/// half a number.
#[tokio::test]
async fn a_hundred_waiters_in_three_processes() {
    let lab = EtcdLab::shared().await;
    let name = lab.name();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("number");
    std::fs::write(&file, "0").unwrap();
    let path = file.to_str().unwrap();
    let workers: Vec<_> = (0..3).map(|_| start("adding_worker", &lab, &name, path)).collect();
    for mut worker in workers {
        let status = within("the worker ends", worker.wait()).await.unwrap();
        assert!(status.success());
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "102");
}

#[tokio::test]
#[ignore = "run by a_hundred_waiters_in_three_processes"]
async fn adding_worker() {
    let Some((lab, name, file)) = told() else { return };
    let session = lab.session().await;
    let mut waiters = JoinSet::new();
    for _ in 0..34 {
        let (mutex, file) = (session.mutex(&name).unwrap(), file.clone());
        waiters.spawn(async move {
            let guard = mutex.lock().await.unwrap();
            let number: u32 = std::fs::read_to_string(&file).unwrap().parse().unwrap();
            tokio::task::yield_now().await;
            std::fs::write(&file, (number + 1).to_string()).unwrap();
            guard.unlock().await.unwrap();
        });
    }
    waiters.join_all().await;
    session.close().await.unwrap();
}

/// Goal: when a holder dies, the next in the queue is served within the TTL and 1.5 s, which is what
/// etcd takes at the most to notice and remove a lease that has ended.
#[tokio::test]
async fn a_killed_holder_is_succeeded() {
    let lab = EtcdLab::shared().await;
    let mutex = lab.mutex(&lab.name()).await;
    let mut holder = start("holding_worker", &lab, mutex.name(), "");
    queue_length(&mutex, 1).await;
    let waiting = mutex.clone();
    let waiter = tokio::spawn(async move { waiting.lock().await.unwrap().token() });
    queue_length(&mutex, 2).await;
    holder.start_kill().unwrap();
    let killed_at = Instant::now();
    within("the next is served", waiter).await.unwrap();
    let took = killed_at.elapsed();
    assert!(took <= TTL + Duration::from_millis(1500), "it took {took:?}");
}

#[tokio::test]
#[ignore = "run by a_killed_holder_is_succeeded"]
async fn holding_worker() {
    let Some((lab, name, _)) = told() else { return };
    let _guard = lab.mutex(&name).await.lock().await.unwrap();
    std::future::pending::<()>().await;
}
