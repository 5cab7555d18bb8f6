//! One leader among many processes. A leader that loses the lock stops leading and stands again.
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
    // a keeper opens the next session when one is lost
    let sessions =
        SessionKeeper::start(Arc::new(etcd), SessionOptions::new(Duration::from_secs(5)));

    for _ in 0..terms {
        let guard = sessions.session().await?.mutex("leader")?.lock().await?;
        match guard.run(lead(guard.token())).await {
            Ok(()) => guard.unlock().await?,
            Err(LockError::Lost) => println!("lost: another process leads"),
            Err(error) => return Err(error.into()),
        }
    }
    sessions.close().await;
    Ok(())
}

/// What a leader does; its writes carry the token.
async fn lead(token: Token) {
    println!("leading, under token {token}");
    sleep(Duration::from_millis(100)).await;
}
