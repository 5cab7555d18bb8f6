//! Requests to etcd that bypass the service: to look, and to cause faults.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use etcd_client::{
    AlarmAction, AlarmOptions, AlarmType, CompactionOptions, GetOptions, PutOptions,
    ResponseHeader, SortOrder, SortTarget, Txn, TxnOp,
};
use fenced_lock::{EtcdBackend, EtcdOptions, Guard, Session, SessionOptions};
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use testkit::wait::until;
use testkit::{LOCK_NAME, PrivateEtcd};

/// The TTL of the suite's own sessions.
const SESSION_TTL: Duration = Duration::from_secs(10);

/// How long an alarm may keep coming back.
const SPACE_WITHIN: Duration = Duration::from_secs(2);

/// The first claims on the lock `name`, in order, as this member sees them: the instance's name, and the lease.
pub(super) async fn queue(etcd: &PrivateEtcd, name: &str) -> Result<Vec<(String, i64)>> {
    // keys of claims begin with a lease's hexadecimal number; keys of longer names need not
    let options = GetOptions::new()
        .with_range(format!("{name}/g"))
        .with_sort(SortTarget::Create, SortOrder::Ascend)
        .with_limit(100);
    let queue = etcd.root().await?.get(format!("{name}/"), Some(options)).await?;
    let claim = |claim: &etcd_client::KeyValue| {
        let label = String::from_utf8_lossy(claim.value());
        // the value is the time of the claim, a space and the instance's name
        let instance = label.split_once(' ').map_or("", |(_, instance)| instance);
        // behind a tab: the address of an instance with peers
        let instance = instance.split('\t').next().unwrap_or_default().to_owned();
        (instance, claim.lease())
    };
    Ok(queue.kvs().iter().map(claim).collect())
}

/// Whether this lease has expired or was revoked.
pub(super) async fn is_lease_gone(etcd: &PrivateEtcd, lease: i64) -> Result<bool> {
    Ok(etcd.root().await?.lease_time_to_live(lease, None).await?.ttl() < 0)
}

/// Writes until etcd is out of space.
pub(super) async fn fill(etcd: &PrivateEtcd) -> Result<()> {
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
    bail!("etcd still has space")
}

fn is_space(error: &etcd_client::Error) -> bool {
    error.to_string().contains("database space exceeded")
}

pub(super) async fn free_space(etcd: &PrivateEtcd) -> Result<()> {
    let mut client = etcd.root().await?;
    let status = client.status().await?;
    let revision = status.header().map_or(0, ResponseHeader::revision);
    let options = CompactionOptions::new().with_physical();
    match client.compact(revision, Some(options)).await {
        Err(error) if !error.to_string().contains("has been compacted") => return Err(error.into()),
        _ => {}
    }
    client.defragment().await?;
    // a request that was just refused may raise the alarm again
    until("etcd has space again", SPACE_WITHIN, async || {
        let mut options = AlarmOptions::new();
        options.with_member(status.header().map_or(0, ResponseHeader::member_id));
        client.alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(options)).await?;
        match client.put("chaos/room", "", None).await {
            Ok(_) => Ok(true),
            Err(error) if is_space(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    })
    .await
}

pub(super) async fn session(endpoints: &[String]) -> Result<Session> {
    let etcd = EtcdBackend::new(EtcdOptions::new(endpoints))?;
    let options = SessionOptions::new(SESSION_TTL).label("chaos");
    Ok(Session::open(Arc::new(etcd), options).await?)
}

/// The data of other users in the same etcd: 10,000 locks that are held, and 50,000 claims on another lock, whose name begins
/// with the name of the sale's lock.
pub(super) struct OtherLocks {
    session: Session,
    guards: Vec<Guard>,
}

impl OtherLocks {
    pub(super) async fn take(etcd: &PrivateEtcd) -> Result<Self> {
        const LOCKS: usize = 10_000;
        const LOCKS_AT_A_TIME: usize = 200;
        put_claims(etcd).await?;
        let session = session(&[etcd.endpoint()]).await?;
        let lock = async |n| session.mutex(&format!("held-{n}"))?.lock().await;
        let guards = stream::iter((0..LOCKS).map(lock)).buffer_unordered(LOCKS_AT_A_TIME);
        let guards = guards.try_collect().await?;
        Ok(Self { session, guards })
    }

    /// Releases the locks. Returns how many were lost.
    pub(super) async fn release(self) -> Result<usize> {
        let lost = self.guards.iter().filter(|guard| guard.is_lost()).count();
        self.session.close().await?;
        Ok(lost)
    }
}

/// Puts this many claims into a queue: a list of all of them exceeds the size of a message.
async fn put_claims(etcd: &PrivateEtcd) -> Result<()> {
    const CLAIMS: usize = 50_000;
    // longer than a run
    const LEASE_SECONDS: i64 = 600;
    // etcd takes at most 128 operations in a transaction
    const PIECE: usize = 125;
    const PIECES_AT_A_TIME: usize = 16;
    let client = etcd.root().await?;
    let lease = client.clone().lease_grant(LEASE_SECONDS, None).await?.id();
    let put = |n| {
        let options = PutOptions::new().with_lease(lease);
        TxnOp::put(format!("{LOCK_NAME}/z/{n:0100}"), "", Some(options))
    };
    let pieces = (0..CLAIMS).step_by(PIECE).map(async |begin| {
        let puts: Vec<_> = (begin..CLAIMS.min(begin + PIECE)).map(put).collect();
        client.clone().txn(Txn::new().and_then(puts)).await.map(drop)
    });
    stream::iter(pieces).buffer_unordered(PIECES_AT_A_TIME).try_collect::<()>().await?;
    Ok(())
}
