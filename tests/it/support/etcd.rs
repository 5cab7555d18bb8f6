//! An etcd that many tests share, and lock names in it that they do not.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use etcd_client::{AlarmAction, AlarmOptions, AlarmType, Client};
use flash_sale::lock::{self, EtcdBackend, Session, SessionKeeper, SessionOptions};
use testkit::server::find_program;
use testkit::{EtcdOptions, PrivateEtcd};
use tokio::sync::OnceCell;

/// Never dropped, as statics are not; it ends with the process, by its guardian.
static SHARED: OnceCell<PrivateEtcd> = OnceCell::const_new();

/// The address of an etcd that nobody stops.
pub(crate) async fn shared_endpoint() -> String {
    let start = async || PrivateEtcd::start(EtcdOptions::default()).await.unwrap();
    SHARED.get_or_init(start).await.endpoint()
}

/// The program `etcdctl` that belongs to the etcd of the tests.
pub(crate) fn etcdctl() -> PathBuf {
    let etcd = find_program("FLASH_SALE_ETCD", &["etcd"]);
    etcd.expect("etcd is installed by `make setup`").with_file_name("etcdctl")
}

/// Has etcd be out of space, or no more. It raises the alarm itself when its quota is used up; an operator
/// may raise it as well.
pub(crate) async fn no_space(endpoint: &str, action: AlarmAction) {
    let mut client = Client::connect([endpoint], None).await.unwrap();
    let mut options = AlarmOptions::new();
    options.with_member(client.status().await.unwrap().header().unwrap().member_id());
    client.alarm(action, AlarmType::Nospace, Some(options)).await.unwrap();
}

/// A lock name that no other test uses.
pub(crate) fn fresh_lock_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    format!("test-lock-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Sessions at `endpoint` under this label, for as long as the keeper lives.
pub(crate) fn sessions(endpoint: &str, label: &str) -> SessionKeeper {
    SessionKeeper::start(backend(endpoint), session_options(label))
}

/// One session at `endpoint` under this label.
pub(crate) async fn session(endpoint: &str, label: &str) -> Session {
    Session::open(backend(endpoint), session_options(label)).await.unwrap()
}

fn backend(endpoint: &str) -> Arc<EtcdBackend> {
    Arc::new(EtcdBackend::new(lock::EtcdOptions::new([endpoint])).unwrap())
}

fn session_options(label: &str) -> SessionOptions {
    SessionOptions::new(Duration::from_secs(5)).label(label)
}
