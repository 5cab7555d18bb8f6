//! Goal: each point of a tenure is where its name says. Method: the program is killed there, and Redis shows what was written.

use std::os::unix::process::ExitStatusExt;

use testkit::shared::Raw;
use testkit::wait::{eventually, within};

use super::program::Program;

/// Has the program killed at `point` by its first order. Returns the connection to what it left.
async fn killed_at(point: &str) -> Raw {
    let fault = format!("{point}:kill:DIR/now");
    let mut program = Program::selling(&["--lock-ttl", "2s", "--fault-at", &fault]).await;
    let file = program.ask_for("now");
    let _order = program.send_order("a").await;
    if point == "before-release" {
        // another client has to want the lock
        let other = program.other_session().await;
        let mutex = other.mutex(&program.lock).unwrap();
        within("the dead holder is succeeded", mutex.lock()).await.unwrap().unlock().await.unwrap();
    }
    assert_eq!(program.exit().await.signal(), Some(9), "{point}");
    assert!(!file.exists(), "{point}");
    program.redis().await
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
