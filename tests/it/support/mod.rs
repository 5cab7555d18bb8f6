//! What several areas need.

pub(crate) mod store;

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How long a condition may take to come true: generous, for a machine with much to do.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Asks every 20 ms until the answer is yes; panics with `what` after [`DEADLINE`].
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition().await {
        assert!(Instant::now() < deadline, "not within {DEADLINE:?}: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Whether a process of this id exists, one that has ended but was not waited for included.
pub(crate) fn process_exists(pid: u32) -> bool {
    let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::test_kill_process(pid).is_ok()
}
