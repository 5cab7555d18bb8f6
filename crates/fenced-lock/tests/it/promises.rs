//! What the README says that each backend promises.

use fenced_lock::{Backend, EtcdBackend, EtcdOptions, MemoryBackend};
use fenced_lock::{FileBackend, FileOptions};
use fenced_lock::{PostgresAdvisoryBackend, PostgresBackend, PostgresOptions};
use fenced_lock::{RedisBackend, RedisOptions, RedlockBackend};
use fenced_lock::{ZooKeeperBackend, ZooKeeperOptions};

/// The backend's row in the table of the README.
fn row(name: &str, backend: &impl Backend) -> String {
    let promises = backend.promises();
    format!(
        "| `{name}` | {:?} | {:?} | {:?} | {:?} | {:?} | {:?} | {:?} |",
        promises.order,
        promises.wake,
        promises.token,
        promises.ends,
        promises.loss,
        promises.shows_waiters,
        promises.standby
    )
}

/// Goal: the README promises what the backends do, no more and no less.
#[test]
fn the_readme_says_what_the_backends_promise() {
    let etcd = EtcdOptions::new(["http://127.0.0.1:2379"]);
    let postgres = PostgresOptions::new("postgres://127.0.0.1");
    let redis = RedisOptions::new("redis://127.0.0.1");
    let nodes = [(); 3].map(|()| redis.clone());
    let zookeeper = ZooKeeperOptions::new("127.0.0.1:2181");
    let rows = [
        row("EtcdBackend", &EtcdBackend::new(etcd).unwrap()),
        row("FileBackend", &FileBackend::new(FileOptions::new("unused")).unwrap()),
        row("PostgresBackend", &PostgresBackend::new(&postgres).unwrap()),
        row("PostgresAdvisoryBackend", &PostgresAdvisoryBackend::new(&postgres).unwrap()),
        row("RedisBackend", &RedisBackend::new(redis).unwrap()),
        row("RedlockBackend", &RedlockBackend::new(nodes).unwrap()),
        row("ZooKeeperBackend", &ZooKeeperBackend::new(zookeeper).unwrap()),
        row("MemoryBackend", &MemoryBackend::new()),
    ];
    let readme = include_str!("../../README.md");
    for row in rows {
        assert!(readme.lines().any(|line| line == row), "the README has no row {row}");
    }
}
