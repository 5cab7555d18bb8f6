//! A runtime on a thread of its own.

use std::{io, thread};

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use super::chaos::Safeguard;

/// A current-thread runtime on its own thread: leases are renewed on time, however busy the program's runtime is.
/// It ends when the sender is dropped, which does not block.
pub(crate) fn runtime_on_own_thread(name: &str) -> io::Result<(Handle, oneshot::Sender<()>)> {
    let (running, ended) = oneshot::channel::<()>();
    if !Safeguard::OwnThread.is_on() {
        return Ok((Handle::current(), running));
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    thread::Builder::new().name(name.into()).spawn(move || {
        // an error means that the sender is gone
        drop(runtime.block_on(ended));
    })?;
    Ok((handle, running))
}
