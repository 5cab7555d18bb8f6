//! A value that many requests share, such as a connection.

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::BackendError;

/// A value that is made when it is needed, and made anew when it is unusable. One caller makes it, and the callers that wait
/// meanwhile share the outcome. Each caller is a task, which is polled until it ends or is dropped: see
/// [`OnThread`](crate::OnThread).
pub(crate) struct Shared<T> {
    /// The outcome of the latest attempt, and when it ended.
    latest: Mutex<Option<(Instant, Result<T, BackendError>)>>,
}

impl<T: Clone> Shared<T> {
    pub(crate) fn new() -> Self {
        Self { latest: Mutex::default() }
    }

    pub(crate) async fn get(
        &self,
        is_usable: impl Fn(&T) -> bool,
        make: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let asked_at = Instant::now();
        let mut latest = self.latest.lock().await;
        match &*latest {
            Some((_, Ok(shared))) if is_usable(shared) => Ok(shared.clone()),
            Some((ended_at, Err(error))) if *ended_at > asked_at => Err(error.clone()),
            _ => {
                let outcome = make.await;
                *latest = Some((Instant::now(), outcome.clone()));
                outcome
            }
        }
    }
}
