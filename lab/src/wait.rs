//! Waiting with a bound.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::error::LabError;

const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Looks again and again until the condition is true.
///
/// # Errors
/// Those of the condition; [`LabError::NotInTime`] with `what`, after `bound`.
pub(crate) async fn until(
    what: &'static str,
    bound: Duration,
    mut condition: impl AsyncFnMut() -> Result<bool, LabError>,
) -> Result<(), LabError> {
    let wait = async {
        while !condition().await? {
            sleep(LOOK_EVERY).await;
        }
        Ok(())
    };
    let seconds = bound.as_secs();
    timeout(bound, wait).await.unwrap_or(Err(LabError::NotInTime { what, seconds }))
}
