//! Starts tasks, and makes random numbers.
//!
//! With `--cfg fenced_lock_chaos`, both belong to the simulated process that runs, if there is one: see `fenced_lock::process`.

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use uuid::Uuid;

/// Starts a task. It belongs to the process of its caller.
pub(crate) fn spawn<F>(task: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    let runtime = Handle::current();
    #[cfg(fenced_lock_chaos)]
    return fenced_lock::process::spawn_on(&runtime, task);
    #[cfg(not(fenced_lock_chaos))]
    runtime.spawn(task)
}

/// A random id, different from all others.
pub(crate) fn random_id() -> Uuid {
    #[cfg(fenced_lock_chaos)]
    if let Some(process) = fenced_lock::process::current() {
        let halves = u128::from(process.random()) << 64 | u128::from(process.random());
        return uuid::Builder::from_random_bytes(halves.to_be_bytes()).into_uuid();
    }
    Uuid::new_v4()
}

pub(crate) fn random_byte() -> u8 {
    let [random, ..] = random_id().into_bytes();
    random
}
