//! The lock on ZooKeeper.

use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use fenced_lock::Token;
use zookeeper_client::{Acls, Client as ZooKeeper, CreateMode};

use super::Part;
use crate::clients::Client;

/// How long a silent session lives; in the articles, 5 to 30 s.
const SESSION: Duration = Duration::from_millis(600);

/// The prefix of the nodes in a lock's node.
const PREFIX: &str = "lock-";

/// One ephemeral sequential node for each client; the first one has the lock, and each other client watches its predecessor:
/// "ZK实现分布式锁过程" (the course of a lock on `ZooKeeper`), whose clients have the lock when they are notified, and "Zookeeper 实现分布式锁"
/// with its `CountDownLatch`. No client looks at the state of its session.
pub(super) struct SequentialNode {
    zookeeper: ZooKeeper,
    dir: String,
    node: Option<String>,
}

impl SequentialNode {
    pub(super) async fn open(part: &Part<'_>) -> Result<Self> {
        let connector = ZooKeeper::connector().with_session_timeout(SESSION);
        let zookeeper = connector.connect(&part.at[0]).await?;
        let dir = format!("/articles/{}", part.lock);
        zookeeper.mkdir(&dir, &CreateMode::Persistent.with_acls(Acls::anyone_all())).await?;
        Ok(Self { zookeeper, dir, node: None })
    }
}

#[async_trait]
impl Client for SequentialNode {
    async fn lock(&mut self) -> Result<Option<Token>> {
        let ephemeral = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let path = format!("{}/{PREFIX}", self.dir);
        let (_, sequence) = self.zookeeper.create(&path, b"", &ephemeral).await?;
        let node = format!("{PREFIX}{sequence}");
        self.node = Some(node.clone());
        let mut nodes = self.zookeeper.list_children(&self.dir).await?;
        nodes.sort();
        let before = nodes.into_iter().rfind(|other| *other < node);
        if let Some(before) = before {
            let before = format!("{}/{before}", self.dir);
            let (stat, watcher) = self.zookeeper.check_and_watch_stat(&before).await?;
            if stat.is_some() {
                watcher.changed().await;
            }
        }
        Ok(None)
    }

    async fn unlock(&mut self) -> Result<()> {
        if let Some(node) = self.node.take() {
            self.zookeeper.delete(&format!("{}/{node}", self.dir), None).await?;
        }
        Ok(())
    }

    async fn queue_length(&mut self) -> Result<usize> {
        Ok(self.zookeeper.list_children(&self.dir).await?.len())
    }
}
