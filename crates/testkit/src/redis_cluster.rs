//! A private Redis Cluster: three primaries with a third of the slots each.

use std::io;
use std::time::Duration;

use redis::{RedisResult, Value};

use super::dir::OwnedDir;
use super::redis::{PrivateRedis, RedisOptions};
use super::server::{START_TIMEOUT, ServerError};
use super::wait::until;

/// The number of primaries. A failover needs a majority of them.
pub const PRIMARIES: usize = 3;

const SLOTS: usize = 16384;

/// Options of a private Redis Cluster.
#[derive(Clone, Copy, Debug)]
pub struct RedisClusterOptions {
    /// How many replicas each primary has.
    pub replicas: usize,
    /// After this silence a node counts as gone, and its replica takes over.
    pub node_timeout: Duration,
}

impl Default for RedisClusterOptions {
    /// No replicas, and more patience than a busy machine needs.
    fn default() -> Self {
        Self { replicas: 0, node_timeout: Duration::from_secs(15) }
    }
}

/// A Redis Cluster on free ports of 127.0.0.1, with data in a directory for each node.
#[derive(Debug)]
pub struct PrivateRedisCluster {
    /// The first primaries, then their first replicas in the same order, and so on.
    pub nodes: Vec<PrivateRedis>,
}

impl PrivateRedisCluster {
    /// Starts it, and waits until each node knows which node serves which slot.
    ///
    /// # Errors
    /// As [`PrivateRedis::start`], or when the nodes do not agree within [`START_TIMEOUT`].
    pub async fn start(options: RedisClusterOptions) -> Result<Self, ServerError> {
        Self::start_in(None, options).await
    }

    /// The same as [`start`](Self::start), with its directories in `parent`, if there is one; the parent then stays until they
    /// are gone.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_in(
        parent: impl Into<Option<&OwnedDir>>,
        RedisClusterOptions { replicas, node_timeout }: RedisClusterOptions,
    ) -> Result<Self, ServerError> {
        let parent = parent.into();
        let options = RedisOptions { node_timeout: Some(node_timeout), ..RedisOptions::default() };
        let mut nodes = Vec::new();
        for _ in 0..PRIMARIES * (1 + replicas) {
            nodes.push(PrivateRedis::start_in(parent, options.clone()).await?);
        }
        let cluster = Self { nodes };
        cluster.form(replicas).await.map_err(ServerError::system("Redis Cluster"))?;
        Ok(cluster)
    }

    /// Makes a cluster of the nodes.
    async fn form(&self, replicas: usize) -> RedisResult<()> {
        let first = &self.nodes[0];
        let bus: Vec<String> = first.run("CONFIG GET cluster-port").await?;
        for (n, node) in self.nodes.iter().enumerate() {
            // different epochs from the start leave nothing to resolve later
            node.run::<()>(&format!("CLUSTER SET-CONFIG-EPOCH {}", n + 1)).await?;
            if n < PRIMARIES {
                let (begin, end) = (n * SLOTS / PRIMARIES, (n + 1) * SLOTS / PRIMARIES - 1);
                node.run::<()>(&format!("CLUSTER ADDSLOTSRANGE {begin} {end}")).await?;
            }
            if n > 0 {
                let meet = format!("CLUSTER MEET 127.0.0.1 {} {}", first.port(), bus[1]);
                node.run::<()>(&meet).await?;
            }
        }
        let all_known = format!("cluster_known_nodes:{}\r\n", self.nodes.len());
        self.until("each node knows all", async |node| {
            node.text("CLUSTER INFO").await.contains(&all_known)
        })
        .await?;
        for (n, replica) in self.nodes.iter().enumerate().skip(PRIMARIES) {
            let primary = self.id(n % PRIMARIES).await?;
            replica.run::<()>(&format!("CLUSTER REPLICATE {primary}")).await?;
        }
        let assigned = format!("cluster_slots_assigned:{SLOTS}\r\n");
        let connected = format!("connected_slaves:{replicas}\r\n");
        self.until("each primary has its slots and replicas", async |node| {
            let state = node.text("CLUSTER INFO").await;
            let info = node.text("INFO replication").await;
            let is_complete = info.contains("role:slave") && info.contains("link_status:up")
                || info.contains(&connected) && info.matches("state=online").count() == replicas;
            is_complete && state.contains("cluster_state:ok") && state.contains(&assigned)
        })
        .await
    }

    /// Waits until the condition is true for every node.
    async fn until(
        &self,
        what: &str,
        is_so: impl AsyncFn(&PrivateRedis) -> bool,
    ) -> RedisResult<()> {
        for node in &self.nodes {
            until(what, START_TIMEOUT, async || RedisResult::Ok(is_so(node).await)).await?;
        }
        Ok(())
    }

    /// The address, with the first primaries.
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
        for node in &self.nodes {
            if let Ok(slot) = node.run(&format!("CLUSTER KEYSLOT {key}")).await {
                let port = server_of(slot, &node.text("CLUSTER NODES").await);
                return Ok((slot, self.nodes.iter().position(|node| Some(node.port()) == port)));
            }
        }
        Err(io::Error::other("no node answers").into())
    }

    /// Begins to move a slot from one node to another. From now on a node refuses a command about several keys of the slot if it
    /// has some of them and lacks others.
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
        // the replica is refused when it connects again
        let no_login = "CONFIG SET masteruser nobody masterauth none";
        self.nodes[replica].run::<Value>(no_login).await?;
        let primary = &self.nodes[primary];
        primary.run::<Value>("CLIENT KILL TYPE replica").await?;
        until("the replica is gone", START_TIMEOUT, async || {
            Ok(primary.text("INFO replication").await.contains("connected_slaves:0"))
        })
        .await
    }

    async fn id(&self, node: usize) -> RedisResult<String> {
        self.nodes[node].run("CLUSTER MYID").await
    }
}

impl PrivateRedis {
    /// The answer to a question; empty if there is none.
    async fn text(&self, line: &str) -> String {
        self.run(line).await.unwrap_or_default()
    }
}

/// The port of the live primary that serves the slot, in an answer to `CLUSTER NODES`.
fn server_of(slot: u16, nodes: &str) -> Option<u16> {
    let serves = |line: &&str| {
        let mut words = line.split(' ').skip(2);
        let flags = words.next().unwrap_or_default();
        let is_live = flags.contains("master") && flags.split(',').all(|flag| flag != "fail");
        is_live
            && words.skip(5).any(|slots| {
                let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
                // a slot that is moving has brackets, and so is no number
                let bounds = first.parse::<u16>().ok().zip(last.parse().ok());
                bounds.is_some_and(|(first, last)| (first..=last).contains(&slot))
            })
    };
    let line = nodes.lines().find(serves)?;
    // as in `127.0.0.1:7000@17000`
    line.split(['@', ' ']).nth(1)?.rsplit(':').next()?.parse().ok()
}
