//! An operator's look at a lock: who holds it, who waits, and for how long.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{EtcdBackend, EtcdOptions, Session, SessionOptions};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let endpoint = std::env::var("ETCD").unwrap_or_else(|_| "http://127.0.0.1:2379".to_owned());
    let name = std::env::args().nth(1).unwrap_or_else(|| "stock-lock".to_owned());
    let etcd = EtcdBackend::new(EtcdOptions::new([endpoint]))?;
    let options = SessionOptions::new(Duration::from_secs(10)).label("operator");
    let session = Session::open(Arc::new(etcd), options).await?;

    let queue = session.mutex(&name)?.queue().await?;
    if queue.is_empty() {
        println!("{name} is free");
    }
    for (place, claim) in queue.iter().enumerate() {
        let role = if place == 0 { "holds" } else { "waits" };
        let label = claim.label.as_deref().unwrap_or("(no label)");
        // 0 is a key without a lease: it stays until an operator deletes it
        let lease = claim.lease;
        let token = claim.token.map(|token| format!("  token {token}")).unwrap_or_default();
        println!("{role}  {label}{token}  lease {lease:x}  key {}", claim.key);
    }
    Ok(session.close().await?)
}
