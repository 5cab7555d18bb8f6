//! Sessions of the lock in an etcd of the tests.

use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{EtcdBackend, EtcdOptions, Session, SessionKeeper, SessionOptions};

/// Sessions of this backend under this label, for as long as the keeper lives.
pub(crate) fn sessions(backend: Arc<EtcdBackend>, label: &str) -> SessionKeeper {
    SessionKeeper::start(backend, session_options(label))
}

/// One session at `endpoint` under this label.
pub(crate) async fn session(endpoint: &str, label: &str) -> Session {
    Session::open(backend(endpoint), session_options(label)).await.unwrap()
}

/// A backend at `endpoint`.
pub(crate) fn backend(endpoint: &str) -> Arc<EtcdBackend> {
    Arc::new(EtcdBackend::new(EtcdOptions::new([endpoint])).unwrap())
}

fn session_options(label: &str) -> SessionOptions {
    SessionOptions::new(Duration::from_secs(5)).label(label)
}
