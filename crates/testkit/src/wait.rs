//! Waiting with a bound.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How long a condition may take to come true: generous, for a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Checks the condition every 20 ms until it is true.
///
/// # Panics
/// With `what`, after [`DEADLINE`].
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition().await {
        assert!(Instant::now() < deadline, "not within {DEADLINE:?}: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Waits for `future`.
///
/// # Panics
/// With `what`, after [`DEADLINE`].
pub async fn within<F: Future>(what: &str, future: F) -> F::Output {
    let ended = tokio::time::timeout(DEADLINE, future).await;
    ended.unwrap_or_else(|_| panic!("not within {DEADLINE:?}: {what}"))
}
