//! A runtime on a thread of its own.

use std::io;
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::chaos::Defence;

/// A current-thread runtime on its own thread: whatever keeps the service's runtime busy, leases are
/// renewed. It ends when this is dropped.
pub(super) struct LockThread {
    handle: Handle,
    /// Its drop ends the thread, which then drops the runtime; nobody waits for that, so this may be
    /// dropped anywhere, on the thread itself too.
    _running: oneshot::Sender<()>,
}

impl LockThread {
    pub(super) fn start() -> io::Result<Self> {
        if !Defence::OwnThread.is_on() {
            return Ok(Self { handle: Handle::current(), _running: oneshot::channel().0 });
        }
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (running, ended) = oneshot::channel::<()>();
        thread::Builder::new().name("etcd-lock".into()).spawn(move || {
            // an error is what tells that the sender is gone
            drop(runtime.block_on(ended));
        })?;
        Ok(Self { handle, _running: running })
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }
}
