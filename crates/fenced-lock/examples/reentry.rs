//! Nested calls that take the same lock: an owner that holds it enters again, without a request.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{EtcdBackend, EtcdOptions, LockError, Mutex, Owner, Session, SessionOptions};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let endpoint = std::env::var("ETCD").unwrap_or_else(|_| "http://127.0.0.1:2379".to_owned());
    let etcd = EtcdBackend::new(EtcdOptions::new([endpoint]))?;
    let session =
        Session::open(Arc::new(etcd), SessionOptions::new(Duration::from_secs(10))).await?;
    let accounts = session.mutex("accounts")?;

    let mut owner = Owner::new();
    transfer(&accounts, &mut owner).await?;
    Ok(session.close().await?)
}

async fn transfer(accounts: &Mutex, owner: &mut Owner) -> Result<(), LockError> {
    let guard = accounts.lock_as(owner).await?;
    println!("transfer, under token {}", guard.token());
    withdraw(accounts, owner).await?;
    // the last guard releases the lock
    guard.unlock().await
}

/// Of use by itself as well, so it takes the lock.
async fn withdraw(accounts: &Mutex, owner: &mut Owner) -> Result<(), LockError> {
    let guard = accounts.lock_as(owner).await?;
    println!("withdraw, under token {}", guard.token());
    guard.unlock().await
}
