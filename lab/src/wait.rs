//! Waiting with a bound.

use std::time::Duration;

use anyhow::Result;
use tokio::time::{sleep, timeout};

const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A condition did not come true in time.
#[derive(Debug, thiserror::Error)]
#[error("not within {} s: {what}", bound.as_secs())]
pub(crate) struct NotInTime {
    pub(crate) what: &'static str,
    pub(crate) bound: Duration,
}

/// Waits for a step.
///
/// # Errors
/// Those of the step; [`NotInTime`] with `what`, after `bound`.
pub(crate) async fn within<T>(
    what: &'static str,
    bound: Duration,
    step: impl Future<Output = Result<T>>,
) -> Result<T> {
    timeout(bound, step).await.unwrap_or_else(|_| Err(NotInTime { what, bound }.into()))
}

/// Looks again and again until the condition is true.
///
/// # Errors
/// Those of the condition; [`NotInTime`] with `what`, after `bound`.
pub(crate) async fn until(
    what: &'static str,
    bound: Duration,
    mut condition: impl AsyncFnMut() -> Result<bool>,
) -> Result<()> {
    let is_so = async {
        while !condition().await? {
            sleep(LOOK_EVERY).await;
        }
        Ok(())
    };
    within(what, bound, is_so).await
}
