//! What the README says that each backend promises.

use fenced_lock::{Backend, EtcdBackend, EtcdOptions, MemoryBackend};
use fenced_lock::{FileBackend, FileOptions};
use fenced_lock::{PostgresAdvisoryBackend, PostgresBackend, PostgresOptions};
use fenced_lock::{RedisBackend, RedisOptions, RedlockBackend};
use fenced_lock::{ZooKeeperBackend, ZooKeeperOptions};

/// The backend's row in the table of the README.
fn row(backend: &impl Backend) -> String {
    let name = std::any::type_name_of_val(backend).rsplit("::").next().unwrap();
    let promises = backend.promises();
    format!(
        "| `{name}` | {:?} | {:?} | {:?} | {:?} | {:?} | {:?} |",
        promises.order, promises.wake, promises.token, promises.ends, promises.loss, promises.queue
    )
}

/// Goal: the README promises what the backends do, no more and no less.
#[test]
fn the_readme_says_what_the_backends_promise() {
    let rows = [
        row(&EtcdBackend::new(EtcdOptions::new(["http://127.0.0.1:2379"])).unwrap()),
        row(&FileBackend::new(FileOptions::new("unused")).unwrap()),
        row(&PostgresBackend::new(&PostgresOptions::new("postgres://127.0.0.1")).unwrap()),
        row(&PostgresAdvisoryBackend::new(&PostgresOptions::new("postgres://127.0.0.1")).unwrap()),
        row(&RedisBackend::new(RedisOptions::new("redis://127.0.0.1")).unwrap()),
        row(&RedlockBackend::new([1, 2, 3].map(|_| RedisOptions::new("redis://127.0.0.1")))
            .unwrap()),
        row(&ZooKeeperBackend::new(ZooKeeperOptions::new("127.0.0.1:2181")).unwrap()),
        row(&MemoryBackend::new()),
    ];
    let readme = include_str!("../../README.md");
    for row in rows {
        assert!(readme.lines().any(|line| line == row), "the README has no row {row}");
    }
}
