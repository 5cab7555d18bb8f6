//! The lock in a program of its own, as one would lift it out: the directory `src/lock` is a module of
//! this program, and needs nothing else of the flash sale. It is compiled with every test run, so that
//! this stays so.
//!
//! ```sh
//! etcd &
//! cargo run --example lock_alone
//! ```

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use lock::{EtcdBackend, EtcdOptions, Session, SessionOptions};

#[path = "../src/lock/mod.rs"]
pub mod lock;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let etcd = EtcdBackend::new(EtcdOptions::new(["http://127.0.0.1:2379"]))?;
    let session =
        Session::open(Arc::new(etcd), SessionOptions::new(Duration::from_secs(30))).await?;
    let guard = session.mutex("nightly-report")?.lock().await?;
    println!("under token {}", guard.token());
    guard.unlock().await?;
    Ok(session.close().await?)
}
