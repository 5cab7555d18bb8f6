//! What the contract needs of the backend on files.

use std::path::Path;
use std::sync::Arc;

use fenced_lock::{Backend, FileBackend, FileOptions, Token};
use tempfile::TempDir;

use super::lab::Lab;

/// A directory of its own, which goes with it.
pub(crate) struct FileLab {
    directory: TempDir,
}

impl FileLab {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The claims of all queues.
    pub(crate) fn claims(&self) -> Vec<std::path::PathBuf> {
        let Ok(queues) = self.directory().join("queues").read_dir() else { return Vec::new() };
        let claims = queues.flat_map(|queue| queue.unwrap().path().read_dir().unwrap());
        claims.map(|claim| claim.unwrap().path()).collect()
    }
}

pub(crate) fn backend_in(directory: &Path) -> Arc<FileBackend> {
    Arc::new(FileBackend::new(FileOptions::new(directory)).unwrap())
}

impl Lab for FileLab {
    type Token = Token;

    fn backend(&self) -> Arc<dyn Backend<Token = Token>> {
        backend_in(self.directory())
    }

    async fn revoke(&self, lease: i64) {
        std::fs::remove_file(self.directory().join(format!("sessions/{lease:x}"))).unwrap();
    }

    async fn delete(&self, key: &str) {
        let (_, claim) = key.rsplit_once('/').unwrap();
        let mut claims = self.claims().into_iter();
        let file = claims.find(|path| path.to_str().unwrap().ends_with(&format!("-{claim}")));
        std::fs::remove_file(file.unwrap()).unwrap();
    }
}
