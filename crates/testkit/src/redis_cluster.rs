//! A private Redis Cluster: three primaries with a third of the slots each.

use std::time::Duration;

use redis::{RedisError, RedisResult, Value};

use super::dir::OwnedDir;
use super::redis::{PrivateRedis, RedisOptions};
use super::server::{START_TIMEOUT, ServerError, until};

/// How many primaries it has: a majority of them is needed for a failover.
pub const PRIMARIES: usize = 3;

const NAME: &str = "Redis Cluster";

const SLOTS: usize = 16384;

/// Options of a private Redis Cluster.
#[derive(Clone, Copy, Debug)]
pub struct RedisClusterOptions {
    /// How many replicas each primary has.
    pub replicas: usize,
    /// How long a node is silent before it counts as gone, and its replica takes over.
    pub node_timeout: Duration,
}

impl Default for RedisClusterOptions {
    /// No replicas, and more patience than a busy machine needs.
    fn default() -> Self {
        Self { replicas: 0, node_timeout: Duration::from_secs(15) }
    }
}

/// A Redis Cluster on free ports of 127.0.0.1, each node with data in a directory of its own.
#[derive(Debug)]
pub struct PrivateRedisCluster {
    /// The primaries that it was started with, then their first replicas in the same order, and so on.
    pub nodes: Vec<PrivateRedis>,
    /// After the nodes, so that it is dropped last: their directories are in it.
    dir: OwnedDir,
}

/// The line about a node in the answer to `CLUSTER NODES`.
struct Line {
    port: u16,
    is_live_primary: bool,
    slots: Vec<(u16, u16)>,
}

impl Line {
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<_> = line.split(' ').collect();
        let address = words.get(1)?.split('@').next()?;
        let flags: Vec<_> = words.get(2)?.split(',').collect();
        let slots = words.iter().skip(8).filter_map(|word| {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            // a slot that moves has brackets
            Some((first.parse().ok()?, last.parse().ok()?))
        });
        Some(Self {
            port: address.rsplit(':').next()?.parse().ok()?,
            is_live_primary: flags.contains(&"master") && !flags.contains(&"fail"),
            slots: slots.collect(),
        })
    }
}

impl PrivateRedisCluster {
    /// Starts it, and waits until each node knows who serves what.
    ///
    /// # Errors
    /// As [`PrivateRedis::start`], or when the nodes do not agree within [`START_TIMEOUT`].
    pub async fn start(options: RedisClusterOptions) -> Result<Self, ServerError> {
        Self::start_with(OwnedDir::create().map_err(ServerError::system(NAME))?, options).await
    }

    /// As [`start`](Self::start), with its directory in `parent`, which then stays until it is gone.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_in(
        parent: &OwnedDir,
        options: RedisClusterOptions,
    ) -> Result<Self, ServerError> {
        let dir = OwnedDir::create_in(parent).map_err(ServerError::system(NAME))?;
        Self::start_with(dir, options).await
    }

    async fn start_with(dir: OwnedDir, options: RedisClusterOptions) -> Result<Self, ServerError> {
        let node_timeout = Some(options.node_timeout);
        let count = PRIMARIES * (1 + options.replicas);
        let mut cluster = Self { nodes: Vec::new(), dir };
        for _ in 0..count {
            let options = RedisOptions { node_timeout, ..RedisOptions::default() };
            cluster.nodes.push(PrivateRedis::start_in(&cluster.dir, options).await?);
        }
        cluster.form(options.replicas).await.map_err(system)?;
        Ok(cluster)
    }

    /// Makes a cluster of the nodes.
    async fn form(&self, replicas: usize) -> RedisResult<()> {
        self.join().await?;
        let knows_all = async |node: &PrivateRedis| node.lines().await.len() == self.nodes.len();
        self.until("a node does not know all", knows_all).await?;
        for (n, replica) in self.nodes.iter().enumerate().skip(PRIMARIES) {
            let primary = self.id(n % PRIMARIES).await?;
            replica.run::<()>(&format!("CLUSTER REPLICATE {primary}")).await?;
        }
        let connected = format!("connected_slaves:{replicas}\r\n");
        self.until("a primary lacks slots or replicas", async |node| {
            let lines = node.lines().await;
            let slots: usize = lines.iter().map(|line| line.slots.len()).sum();
            let info = node.text("INFO replication").await;
            let is_complete = info.contains("role:slave") && info.contains("link_status:up")
                || info.contains(&connected) && info.matches("state=online").count() == replicas;
            slots == PRIMARIES
                && is_complete
                && node.text("CLUSTER INFO").await.contains("cluster_state:ok")
        })
        .await
    }

    async fn join(&self) -> RedisResult<()> {
        let first = &self.nodes[0];
        for (n, node) in self.nodes.iter().enumerate() {
            // different epochs from the start: nothing to resolve later
            node.run::<()>(&format!("CLUSTER SET-CONFIG-EPOCH {}", n + 1)).await?;
            if n < PRIMARIES {
                let (begin, end) = (n * SLOTS / PRIMARIES, (n + 1) * SLOTS / PRIMARIES - 1);
                node.run::<()>(&format!("CLUSTER ADDSLOTSRANGE {begin} {end}")).await?;
            }
        }
        let bus: Vec<String> = first.run("CONFIG GET cluster-port").await?;
        for node in &self.nodes[1..] {
            let line = format!("CLUSTER MEET 127.0.0.1 {} {}", first.port(), bus[1]);
            node.run::<()>(&line).await?;
        }
        Ok(())
    }

    /// Waits until the condition is true for every node.
    async fn until(
        &self,
        late: &str,
        is_so: impl AsyncFn(&PrivateRedis) -> bool,
    ) -> RedisResult<()> {
        for node in &self.nodes {
            until(late, START_TIMEOUT, async || Ok::<_, RedisError>(is_so(node).await)).await?;
        }
        Ok(())
    }

    /// The address, with the primaries that it was started with.
    pub fn url(&self) -> String {
        let nodes: Vec<String> = self.nodes[..PRIMARIES]
            .iter()
            .map(|node| format!("127.0.0.1:{}", node.port()))
            .collect();
        format!("redis-cluster://{}", nodes.join(","))
    }

    /// The slot of `key`, and the node that serves it as the other nodes see it; none during a failover.
    ///
    /// # Errors
    /// When no node answers.
    pub async fn place_of(&self, key: &str) -> RedisResult<(u16, Option<usize>)> {
        let mut answer = Err(RedisError::from(std::io::Error::other("no node answers")));
        for node in &self.nodes {
            answer = node.run(&format!("CLUSTER KEYSLOT {key}")).await;
            let Ok(slot) = answer else { continue };
            let lines = node.lines().await;
            let serves = |line: &&Line| {
                line.is_live_primary && line.slots.iter().any(|(a, b)| (*a..=*b).contains(&slot))
            };
            let port = lines.iter().find(serves).map(|line| line.port);
            return Ok((slot, self.nodes.iter().position(|node| Some(node.port()) == port)));
        }
        answer.map(|slot| (slot, None))
    }

    /// Begins to move a slot from one node to another. From now on a node refuses commands about several keys of
    /// the slot of which it has some and lacks others.
    ///
    /// # Errors
    /// When a node does not answer, or refuses.
    pub async fn begin_move(&self, slot: u16, from: usize, to: usize) -> RedisResult<()> {
        let (source, target) = (self.id(from).await?, self.id(to).await?);
        self.nodes[to].run::<()>(&format!("CLUSTER SETSLOT {slot} IMPORTING {source}")).await?;
        self.nodes[from].run(&format!("CLUSTER SETSLOT {slot} MIGRATING {target}")).await
    }

    /// Moves these keys of a slot that is being moved.
    ///
    /// # Errors
    /// As [`begin_move`](Self::begin_move).
    pub async fn move_keys(&self, keys: &[String], from: usize, to: usize) -> RedisResult<()> {
        let port = self.nodes[to].port();
        for key in keys {
            self.nodes[from].run::<()>(&format!("MIGRATE 127.0.0.1 {port} {key} 0 20000")).await?;
        }
        Ok(())
    }

    /// Ends the move of a slot: moves its other keys, and gives it to the node.
    ///
    /// # Errors
    /// As [`begin_move`](Self::begin_move).
    pub async fn end_move(&self, slot: u16, from: usize, to: usize) -> RedisResult<()> {
        let keys: Vec<String> =
            self.nodes[from].run(&format!("CLUSTER GETKEYSINSLOT {slot} 1000")).await?;
        self.move_keys(&keys, from, to).await?;
        let owner = self.id(to).await?;
        for node in [to, from] {
            self.nodes[node].run::<()>(&format!("CLUSTER SETSLOT {slot} NODE {owner}")).await?;
        }
        Ok(())
    }

    /// Cuts a replica off from its primary, until it is restarted; the nodes still see each other.
    ///
    /// # Errors
    /// When a node does not answer, or the replica is not gone within [`START_TIMEOUT`].
    pub async fn hold_replication(&self, primary: usize, replica: usize) -> RedisResult<()> {
        // it is refused when it connects again
        let no_login = "CONFIG SET masteruser nobody masterauth none";
        self.nodes[replica].run::<Value>(no_login).await?;
        let primary = &self.nodes[primary];
        primary.run::<Value>("CLIENT KILL TYPE replica").await?;
        until("the replica is not gone", START_TIMEOUT, async || {
            Ok(primary.text("INFO replication").await.contains("connected_slaves:0"))
        })
        .await
    }

    async fn id(&self, node: usize) -> RedisResult<String> {
        self.nodes[node].run("CLUSTER MYID").await
    }
}

impl PrivateRedis {
    /// The answer to a question, or nothing.
    async fn text(&self, line: &str) -> String {
        self.run(line).await.unwrap_or_default()
    }

    /// The nodes of its cluster, as it sees them.
    async fn lines(&self) -> Vec<Line> {
        self.text("CLUSTER NODES").await.lines().filter_map(Line::parse).collect()
    }
}

fn system(error: RedisError) -> ServerError {
    ServerError::system(NAME)(std::io::Error::other(error))
}
