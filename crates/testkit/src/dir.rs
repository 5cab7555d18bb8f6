//! A temporary directory that is removed with its users, even on SIGKILL.

use std::fs::Permissions;
use std::io::{self, PipeWriter};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

/// Waits for the end of file on its standard input, then removes the directory.
///
/// The second attempt is for file systems that notice a closed file late. The guardian must outlast the
/// signals that end its parent.
const GUARDIAN: &str = r#"
trap '' HUP INT TERM
read -r _
rm -rf -- "$1" || { sleep 1; rm -rf -- "$1"; }
"#;

/// The path of the guardians, independent of ours.
pub(crate) const GUARDIAN_PATH: &str = "/usr/bin:/bin";

/// How long the removal may take once the directory is unused.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(20);

/// A directory `flash-sale-XXXXXX` among the system's temporary directories.
///
/// A small shell process, the guardian, reads a pipe. This process, and the guardian of each [`Child`](super::Child) that uses
/// the directory, hold the pipe's writing end. The guardian removes the directory when the last of them has closed the pipe: on
/// drop, on exit and on SIGKILL, but never under a process that still writes to it.
#[derive(Debug)]
pub struct OwnedDir {
    path: PathBuf,
    lifeline: PipeWriter,
    guardian: tokio::process::Child,
}

impl OwnedDir {
    /// Creates the directory and its guardian. Must be called in a Tokio runtime.
    ///
    /// # Errors
    /// When the directory, the pipe or the process cannot be made.
    pub fn create() -> io::Result<Self> {
        Self::create_in(None)
    }

    /// Creates the directory in `parent`, if there is one; the parent then stays as long as this directory.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_in<'a>(parent: impl Into<Option<&'a Self>>) -> io::Result<Self> {
        let mut builder = tempfile::Builder::new();
        // only this user may read its data and logs
        builder.prefix("flash-sale-").permissions(Permissions::from_mode(0o700));
        let (dir, hold_on_parent) = match parent.into() {
            None => (builder.tempdir()?, Stdio::null()),
            Some(parent) => (builder.tempdir_in(&parent.path)?, parent.hold()?.into()),
        };
        let (held, lifeline) = io::pipe()?;
        let guardian = Command::new("/bin/sh")
            .args(["-c", GUARDIAN, "flash-sale-dir"])
            .arg(dir.path())
            .env("PATH", GUARDIAN_PATH)
            // a process group of its own, so that a Ctrl-C in the terminal reaches only our process
            .process_group(0)
            .stdin(held)
            .stdout(hold_on_parent)
            .stderr(Stdio::null())
            .spawn()?;
        // from here on, the guardian removes the directory
        Ok(Self { path: dir.keep(), lifeline, guardian })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Another writing end of the pipe. The directory stays as long as it is open.
    pub(crate) fn hold(&self) -> io::Result<PipeWriter> {
        self.lifeline.try_clone()
    }

    /// Removes the directory once no child uses it, and waits for that.
    ///
    /// # Errors
    /// When it is still there after 20 s.
    pub async fn remove(self) -> io::Result<()> {
        let Self { path, lifeline, mut guardian } = self;
        drop(lifeline);
        let ended = tokio::time::timeout(REMOVAL_TIMEOUT, guardian.wait()).await;
        if ended.is_ok_and(|status| status.is_ok_and(|status| status.success())) {
            return Ok(());
        }
        Err(io::Error::other(format!("{} could not be removed", path.display())))
    }
}
