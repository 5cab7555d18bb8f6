//! Goal: each point of a tenure is where its name says. Method: the program is killed there, and Redis
//! tells what was written.

use std::os::unix::process::ExitStatusExt;

use testkit::shared::{Raw, fresh_database};
use testkit::shared::{fresh_lock_name, shared_endpoint};
use testkit::wait::{eventually, within};

use super::program::Program;
use crate::support::etcd::session;

/// Has the program killed at `point` by its first order. Returns the connection to what it left.
async fn killed_at(point: &str) -> Raw {
    let (etcd, redis, lock) = (shared_endpoint().await, fresh_database().await, fresh_lock_name());
    let fault = format!("{point}:kill:file=DIR/now");
    let flags = ["--lock-ttl", "2s", "--fault-at", &fault];
    let mut program = Program::start(&etcd, &redis, &lock, &flags).await;
    program.sell(10).await;
    let file = program.ask_for("now");
    let _order = program.send_order("a").await;
    if point == "before-release" {
        // another client has to want the lock
        let other = session(&etcd, "other").await;
        let mutex = other.mutex(&lock).unwrap();
        within("the dead holder is succeeded", mutex.lock()).await.unwrap().unlock().await.unwrap();
    }
    assert_eq!(program.exit().await.signal(), Some(9), "{point}");
    assert!(!file.exists(), "{point}");
    Raw::connect(&redis).await
}

#[tokio::test]
async fn each_point_is_before_or_behind_the_write() {
    for (point, orders) in [
        ("after-grant", 0),
        ("before-write", 0),
        ("after-send", 1),
        ("after-answer", 1),
        ("before-release", 1),
    ] {
        let mut redis = killed_at(point).await;
        // what was sent may come after the end of who sent it
        eventually("the order is in the ledger", async || {
            redis.run::<u32>("LLEN ledger").await == orders
        })
        .await;
        assert_eq!(redis.run::<u32>("GET stock").await, 10 - orders, "{point}");
    }
}
