//! What many requests share, such as a connection.

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::BackendError;

/// Something that is made when it is needed, and anew when it is of no more use. One caller makes it; those who wait for
/// it meanwhile share what becomes of that. Each caller is a task, which is polled until it ends or is dropped: see
/// [`OnThread`](crate::OnThread).
pub(crate) struct Shared<T> {
    /// What the latest attempt led to, and when.
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
