//! A job that several processes of one machine start at the same time and one of them runs. No server is needed.
//!
//! The locks are in `LOCKS` (default: `locks` in the temporary directory). A shell script takes part by
//! `flock "$LOCKS/nightly-report.lock" ./report.sh`.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{FileBackend, FileOptions, Session, SessionOptions};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::var_os("LOCKS").map(PathBuf::from);
    let directory = directory.unwrap_or_else(|| std::env::temp_dir().join("locks"));
    let files = FileBackend::new(FileOptions::new(directory))?;
    let session =
        Session::open(Arc::new(files), SessionOptions::new(Duration::from_secs(10))).await?;

    match session.mutex("nightly-report")?.try_lock().await? {
        Some(guard) => {
            println!("the report is written, under token {}", guard.token());
            guard.unlock().await?;
        }
        None => println!("another process writes the report"),
    }
    Ok(session.close().await?)
}
