//! Waiting with a bound.

use std::io;
use std::time::Duration;

use tokio::time::{sleep, timeout};

/// The time between two checks of a condition: it begins short and doubles, so that a long wait costs little.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// How long a condition may take to come true: long enough for a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Waits for a step, at most until `limit`.
///
/// # Errors
/// Those of the step; [`TimedOut`](io::ErrorKind::TimedOut) with `what` after `limit`.
pub async fn in_time<T, E: From<io::Error>>(
    what: &str,
    limit: Duration,
    step: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let late = || io::Error::new(io::ErrorKind::TimedOut, format!("not within {limit:?}: {what}"));
    timeout(limit, step).await.unwrap_or_else(|_| Err(late().into()))
}

/// Checks the condition again and again until it is true, at most until `limit`.
///
/// # Errors
/// Those of the condition; [`TimedOut`](io::ErrorKind::TimedOut) with `what` after `limit`.
pub async fn until<E: From<io::Error>>(
    what: &str,
    limit: Duration,
    mut is_so: impl AsyncFnMut() -> Result<bool, E>,
) -> Result<(), E> {
    let wait = async {
        let mut pause = FIRST_PAUSE;
        while !is_so().await? {
            sleep(pause).await;
            pause = LONGEST_PAUSE.min(pause * 2);
        }
        Ok(())
    };
    in_time(what, limit, wait).await
}

/// Checks the condition again and again until it is true.
///
/// # Panics
/// With `what`, after [`DEADLINE`].
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let is_so = async || io::Result::Ok(condition().await);
    until(what, DEADLINE, is_so).await.unwrap();
}

/// Waits for `future`.
///
/// # Panics
/// With `what`, after [`DEADLINE`].
pub async fn within<F: Future>(what: &str, future: F) -> F::Output {
    let ended = timeout(DEADLINE, future).await;
    ended.unwrap_or_else(|_| panic!("not within {DEADLINE:?}: {what}"))
}
