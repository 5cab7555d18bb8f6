//! Ends the lock session of a dead predecessor: `--lease-file`.
//!
//! A killed instance gives nothing up, so its claims stand until its lease ends by itself, a TTL later. The instance that
//! follows it may end the lease at once if its process is proved dead. The proof: a process keeps an exclusive lock on the
//! file, which has the id of its lease, and the system ends that lock with the process, not before. Names, process ids and
//! host names prove nothing: two instances may have one name, and ids are used again. Two live instances that share a file
//! do not harm each other: one waits for the lock of the file.

use std::fs::{File, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{Backend, BackendErrorKind, ClusterId, Lease, SessionKeeper, Token};
use tokio::time::sleep;

/// The pause between two attempts to lock the file, or to end the lease.
const PAUSE: Duration = Duration::from_secs(1);

/// The most bytes of the file that are read: more than an id has.
const MAX_BYTES: u64 = 64;

/// Opens the file, and makes it if need be.
pub(super) fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create(true).truncate(false).open(path)
}

/// Ends the lease in the file once the process that wrote it is dead, then keeps the file locked, with the lease of this
/// process in it.
pub(super) async fn keep(
    mut file: File,
    locks: Arc<dyn Backend<Token = Token>>,
    sessions: SessionKeeper,
) {
    while let Err(error) = file.try_lock() {
        if let TryLockError::Error(error) = error {
            tracing::warn!(%error, "cannot lock the lease file");
            return;
        }
        sleep(PAUSE).await;
    }
    let mut text = String::new();
    let read = (&file).take(MAX_BYTES).read_to_string(&mut text);
    let lease = text.trim();
    if let Ok(id) = i64::from_str_radix(lease, 16) {
        // a lease that has ended by itself is no error
        while let Err(error) = locks.close(Lease::new(id, Duration::ZERO, ClusterId(0))).await {
            tracing::debug!(?error, "could not end the lease of the predecessor");
            if error.kind != BackendErrorKind::Transient {
                break;
            }
            sleep(PAUSE).await;
        }
        tracing::warn!(lease, "the process before this one died: its lease was ended");
    } else if read.is_err() || !lease.is_empty() {
        tracing::warn!("the lease file is another one's: it is left alone");
        return;
    }
    let mut write = |text: &str| {
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(text.as_bytes())
    };
    while let Ok(session) = sessions.session().await {
        if let Err(error) = write(&format!("{:x}\n", session.lease().id)) {
            tracing::warn!(%error, "cannot write the lease file");
        }
        session.lost().await;
    }
    // it was given up in order
    let _ = write("");
}
