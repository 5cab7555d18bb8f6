//! The least that a handover costs: one commit, and its notification. And compaction, so that all contenders meet the
//! same etcd.

use anyhow::Result;
use etcd_client::{Client, CompactionOptions};
use serde::Serialize;
use tokio::time::Instant;

use crate::experiment::Spread;

const KEY: &str = "bench/commit";

/// Times in microseconds, one client, nothing else going on.
#[derive(Clone, Debug, Serialize)]
pub(super) struct EtcdCost {
    /// From sending a put to its answer.
    pub(super) commit: Spread,
    /// From sending a put until another client's watch reports it.
    pub(super) commit_and_notification: Spread,
}

/// Compacts etcd, as its operators do regularly. Otherwise it walks over all deleted claims of a lock when it
/// lists the queue, and later loads would be slower.
pub(super) async fn compact(endpoint: &str) -> Result<()> {
    let mut client = Client::connect([endpoint], None).await?;
    let put = client.put(KEY, "", None).await?;
    let revision = put.header().map_or(0, etcd_client::ResponseHeader::revision);
    client.compact(revision, Some(CompactionOptions::new().with_physical())).await?;
    Ok(())
}

/// Measures so many commits.
pub(super) async fn measure(endpoint: &str, commits: usize) -> Result<EtcdCost> {
    let mut writer = Client::connect([endpoint], None).await?;
    let mut watcher = Client::connect([endpoint], None).await?;
    let mut watch = watcher.watch(KEY, None).await?;
    let (mut commit, mut notified) = (Vec::new(), Vec::new());
    for _ in 0..commits {
        let sent = Instant::now();
        let put = async {
            writer.put(KEY, "", None).await?;
            Ok::<_, etcd_client::Error>(sent.elapsed())
        };
        let event = async {
            // the answer that the watcher was created has no events
            while watch.message().await?.is_some_and(|message| message.events().is_empty()) {}
            Ok(sent.elapsed())
        };
        let (put, event) = tokio::try_join!(put, event)?;
        commit.push(put.as_secs_f64() * 1e6);
        notified.push(event.as_secs_f64() * 1e6);
    }
    let of = |micros| Spread::of(micros).unwrap_or_default();
    Ok(EtcdCost { commit: of(commit), commit_and_notification: of(notified) })
}
