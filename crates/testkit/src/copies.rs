//! Copies of a Redis' data, to restart it with older data.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::PrivateRedis;

/// The data of a Redis at one moment.
pub struct DataCopy(TempDir);

impl DataCopy {
    /// Copies the current data. No acknowledged write is missing, because each write is synced before its answer.
    pub fn of(redis: &PrivateRedis) -> Self {
        let copy = tempfile::tempdir().unwrap();
        copy_files(&data_dir(redis), copy.path());
        Self(copy)
    }
}

/// Kills the Redis and restarts it at the same address with this data, or empty.
pub async fn restart_with(redis: &mut PrivateRedis, copy: Option<&DataCopy>) {
    redis.kill().await.unwrap();
    std::fs::remove_dir_all(data_dir(redis)).unwrap();
    if let Some(DataCopy(copy)) = copy {
        copy_files(copy.path(), &data_dir(redis));
    }
    redis.restart().await.unwrap();
}

fn data_dir(redis: &PrivateRedis) -> PathBuf {
    redis.dir().join("appendonlydir")
}

fn copy_files(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for file in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}
