//! Looking at etcd, and meddling with it, past the service.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    AlarmAction, AlarmOptions, AlarmType, CompactionOptions, GetOptions, SortOrder, SortTarget,
};
use fenced_lock::{EtcdBackend, EtcdOptions, LockError, Session, SessionOptions};
use testkit::PrivateEtcd;
use tokio::time::{sleep, timeout};

use crate::error::LabError;

/// How long one question may take: a member that is away must not hold up the suite.
const TIMEOUT: Duration = Duration::from_secs(2);

/// How often an alarm is ended that comes back, and how long apart.
const ALARM_ATTEMPTS: usize = 50;
const ALARM_PAUSE: Duration = Duration::from_millis(20);

/// The first in a lock's queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    /// The name of the instance.
    pub(super) instance: String,
    pub(super) lease: i64,
    pub(super) token: i64,
}

/// Who holds the lock `name`, as this member sees it.
pub(super) async fn holder(etcd: &PrivateEtcd, name: &str) -> Result<Option<Holder>, LabError> {
    let options = GetOptions::new()
        .with_prefix()
        .with_sort(SortTarget::Create, SortOrder::Ascend)
        .with_limit(1);
    let queue = etcd.root().await?.get(format!("{name}/"), Some(options)).await?;
    Ok(queue.kvs().first().map(|first| {
        let label = String::from_utf8_lossy(first.value());
        // the time of the claim stands before the name of the instance
        let instance = label.split_once(' ').map_or("", |(_, instance)| instance).to_owned();
        Holder { instance, lease: first.lease(), token: first.create_revision() }
    }))
}

/// The lease on which a claim of this instance on the lock hangs.
pub(super) async fn lease_of(
    etcd: &PrivateEtcd,
    name: &str,
    instance: &str,
) -> Result<Option<i64>, LabError> {
    let options = GetOptions::new().with_prefix().with_limit(100);
    let queue = etcd.root().await?.get(format!("{name}/"), Some(options)).await?;
    let of_instance = |label: &[u8]| label.strip_suffix(instance.as_bytes()).is_some();
    Ok(queue
        .kvs()
        .iter()
        .find(|claim| of_instance(claim.value()))
        .map(etcd_client::KeyValue::lease))
}

/// Whether this lease has expired or was revoked.
pub(super) async fn is_lease_gone(etcd: &PrivateEtcd, lease: i64) -> Result<bool, LabError> {
    Ok(etcd.root().await?.lease_time_to_live(lease, None).await?.ttl() < 0)
}

/// The ids of this member and of the one that it takes for the leader; none if it does not answer.
pub(super) async fn member_and_leader(etcd: &PrivateEtcd) -> Option<(u64, u64)> {
    let ask = async {
        let status = etcd.root().await?.status().await?;
        let member = status.header().map_or(0, etcd_client::ResponseHeader::member_id);
        Ok::<_, LabError>((member, status.leader()))
    };
    timeout(TIMEOUT, ask).await.ok()?.ok()
}

/// Forgets everything but the latest state; returns the revision up to which it did.
pub(super) async fn compact(etcd: &PrivateEtcd) -> Result<i64, LabError> {
    let mut client = etcd.root().await?;
    let put = client.put("chaos/compaction", "", None).await?;
    let revision = put.header().map_or(0, etcd_client::ResponseHeader::revision);
    client.compact(revision, Some(CompactionOptions::new())).await?;
    Ok(revision)
}

/// Writes until etcd says that it has no space.
pub(super) async fn fill(etcd: &PrivateEtcd) -> Result<(), LabError> {
    const PIECE: usize = 1 << 20;
    const PIECES: usize = 256;
    let mut client = etcd.root().await?;
    for _ in 0..PIECES {
        match client.put("chaos/filling", vec![0; PIECE], None).await {
            Ok(_) => {}
            Err(error) if is_space(&error) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    Err(LabError::NotInTime { what: "etcd has no space", seconds: 0 })
}

fn is_space(error: &etcd_client::Error) -> bool {
    error.to_string().contains("database space exceeded")
}

/// A session of the suite itself.
pub(super) async fn session(endpoints: &[String]) -> Result<Session, LabError> {
    let etcd = EtcdBackend::new(EtcdOptions::new(endpoints)).map_err(LockError::from)?;
    let options =
        SessionOptions { label: "chaos".into(), ..SessionOptions::new(Duration::from_secs(10)) };
    Ok(Session::open(Arc::new(etcd), options).await?)
}

/// Makes room, and ends the alarm.
pub(super) async fn make_room(etcd: &PrivateEtcd) -> Result<(), LabError> {
    let mut client = etcd.root().await?;
    let status = client.status().await?;
    let revision = status.header().map_or(0, etcd_client::ResponseHeader::revision);
    let options = CompactionOptions::new().with_physical();
    match client.compact(revision, Some(options)).await {
        Err(error) if !error.to_string().contains("has been compacted") => return Err(error.into()),
        _ => {}
    }
    client.defragment().await?;
    // a request that was refused just before may raise the alarm once more
    for _ in 0..ALARM_ATTEMPTS {
        let mut options = AlarmOptions::new();
        options.with_member(status.header().map_or(0, etcd_client::ResponseHeader::member_id));
        client.alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(options)).await?;
        match client.put("chaos/room", "", None).await {
            Ok(_) => return Ok(()),
            Err(error) if is_space(&error) => sleep(ALARM_PAUSE).await,
            Err(error) => return Err(error.into()),
        }
    }
    Err(LabError::NotInTime { what: "etcd has space again", seconds: 1 })
}
