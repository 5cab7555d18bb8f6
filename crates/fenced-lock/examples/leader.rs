//! One leader among many processes. A leader that loses the lock stops leading and waits for the lock again.
//!
//! Leads for `TERMS` terms (default: one), then ends.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{EtcdBackend, EtcdOptions, LockError, SessionKeeper, SessionOptions, Token};
use tokio::time::sleep;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let endpoint = std::env::var("ETCD").unwrap_or_else(|_| "http://127.0.0.1:2379".to_owned());
    let terms = std::env::var("TERMS").ok().and_then(|terms| terms.parse().ok()).unwrap_or(1);
    let etcd = EtcdBackend::new(EtcdOptions::new([endpoint]))?;
    let locks = SessionKeeper::start(Arc::new(etcd), SessionOptions::new(Duration::from_secs(5)));

    let mut led = 0;
    while led < terms {
        match locks.with("locks/leader", async |guard| lead(guard.token()).await).await {
            Ok(()) => led += 1,
            // lost while it led: wait for the lock again
            Err(error @ (LockError::Lost { .. } | LockError::SessionLost { .. })) => {
                println!("{error}");
            }
            Err(error) => return Err(error.into()),
        }
    }
    locks.close().await;
    Ok(())
}

/// What a leader does. It is dropped where it waits when the lock is lost. A leader that is paused does not know of a loss, so its
/// writes carry the token.
async fn lead(token: Token) {
    println!("leading, under token {token}");
    sleep(Duration::from_millis(100)).await;
}
