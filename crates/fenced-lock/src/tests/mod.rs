//! Sessions, claims and keepers on a service that goes wrong as a test wants it, in paused time.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::incompatible_msrv, reason = "tests run on the Rust of the workspace")]

mod claims;
mod faulty;
mod keeper;
mod session;

use std::sync::Arc;
use std::time::Duration;

use faulty::FaultyBackend;
use fenced_lock::{Guard, Mutex, Session, SessionOptions};

/// The TTL in paused time.
const TTL: Duration = Duration::from_secs(10);

const SECOND: Duration = Duration::from_secs(1);

async fn session(backend: &Arc<FaultyBackend>) -> Session {
    Session::open(Arc::clone(backend) as _, SessionOptions::new(TTL)).await.unwrap()
}

/// A session at a service of its own, its mutex `a`, and a guard of that.
async fn held() -> (Arc<FaultyBackend>, Session, Mutex, Guard) {
    let backend = FaultyBackend::new();
    let session = session(&backend).await;
    let mutex = session.mutex("a").unwrap();
    let guard = mutex.lock().await.unwrap();
    (backend, session, mutex, guard)
}
