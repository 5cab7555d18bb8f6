//! A runtime on a thread of its own.

use std::ops::Deref;
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use super::BackendError;
use super::chaos::Safeguard;

/// A current-thread runtime on its own thread: leases are renewed on time, however busy the program's runtime is.
/// Dropping it ends the thread and does not block, so a backend may be dropped anywhere.
#[derive(Debug)]
pub(crate) struct OwnThread {
    runtime: Handle,
    /// The thread ends when this is dropped.
    _running: oneshot::Sender<()>,
}

impl OwnThread {
    /// Starts a thread of this name.
    pub(crate) fn start(name: &str) -> Result<Self, BackendError> {
        let (running, ended) = oneshot::channel::<()>();
        if !Safeguard::OwnThread.is_on() {
            return Ok(Self { runtime: Handle::current(), _running: running });
        }
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(BackendError::permanent)?;
        let handle = runtime.handle().clone();
        let run = move || {
            // an error means that the sender is gone
            drop(runtime.block_on(ended));
        };
        let thread = thread::Builder::new().name(name.into()).spawn(run);
        thread.map_err(BackendError::permanent)?;
        Ok(Self { runtime: handle, _running: running })
    }

    /// No thread, for a test with paused time.
    #[cfg(test)]
    pub(crate) fn on(runtime: Handle) -> Self {
        Self { runtime, _running: oneshot::channel().0 }
    }
}

impl Deref for OwnThread {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.runtime
    }
}
