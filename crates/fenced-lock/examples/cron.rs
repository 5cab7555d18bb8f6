//! A job that several machines start at the same time and one of them runs.
//!
//! `try_lock` does not wait: a machine that does not get the lock has nothing to do.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{EtcdBackend, EtcdOptions, Session, SessionOptions};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let endpoint = std::env::var("ETCD").unwrap_or_else(|_| "http://127.0.0.1:2379".to_owned());
    let etcd = EtcdBackend::new(EtcdOptions::new([endpoint]))?;
    let session =
        Session::open(Arc::new(etcd), SessionOptions::new(Duration::from_secs(10))).await?;

    match session.mutex("nightly-report")?.try_lock().await? {
        Some(guard) => {
            // `run` stops waiting for the job as soon as the lock is lost
            guard.run(async { println!("the report is written") }).await?;
            guard.unlock().await?;
        }
        None => println!("another machine writes the report"),
    }
    Ok(session.close().await?)
}
