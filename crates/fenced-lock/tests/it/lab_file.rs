//! What the contract needs of the backend on files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fenced_lock::{Backend, FileBackend, FileOptions, Token};
use tempfile::TempDir;

use super::lab::{FoundLab, Lab};

/// A directory.
pub(crate) struct FileLab {
    directory: PathBuf,
    /// What removes it.
    _owned: Option<TempDir>,
}

impl FileLab {
    /// One of its own, which goes with it.
    pub(crate) fn new() -> Self {
        let owned = tempfile::tempdir().unwrap();
        Self { directory: owned.path().to_owned(), _owned: Some(owned) }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The claims of all queues.
    pub(crate) fn claims(&self) -> Vec<PathBuf> {
        let Ok(queues) = self.directory().join("queues").read_dir() else { return Vec::new() };
        let claims = queues.flat_map(|queue| queue.unwrap().path().read_dir().unwrap());
        claims.map(|claim| claim.unwrap().path()).collect()
    }
}

impl Lab for FileLab {
    type Token = Token;

    fn backend(&self) -> Arc<dyn Backend<Token = Token>> {
        Arc::new(FileBackend::new(FileOptions::new(self.directory())).unwrap())
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

impl FoundLab for FileLab {
    fn address(&self) -> String {
        self.directory.to_str().unwrap().to_owned()
    }

    fn at(address: &str) -> Self {
        Self { directory: address.into(), _owned: None }
    }
}
