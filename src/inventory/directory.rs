//! The server that has an item: the only one, or the primary that the sentinels name, or the primary of the item's slot
//! in a Redis Cluster.
//!
//! Sentinels or nodes are asked once a second, and as soon as the last answer seems outdated: a server does not answer,
//! became a replica, or does not serve the slot. A former primary may take orders for about ten seconds, or for as long
//! as the sentinels do not reach it, and then loses them. If nobody answers, the last answer stays in use, but no
//! connection is opened to a server that sentinels named.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionInfo, ErrorKind, RedisError, RedisResult, Value};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use super::access::{Target, TargetKind};
use super::connection::{Pauses, SharedResult, shared_task};
use super::{InventoryError, InventoryOptions, RedisAccess, sentinel};
use crate::process::{random_byte, spawn};
use crate::safeguard::REDIRECTS;

pub(super) const SLOTS: u16 = 16384;

/// The pause between two questions.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How long an answer of the sentinels is good for new connections.
const ANSWER_HOLDS_FOR: Duration = Duration::from_millis(100);

/// How many nodes of a cluster are asked before the question counts as failed.
const MAX_ASKED: usize = 8;

/// How much later each node is asked than the node before it.
const HEAD_START: Duration = Duration::from_millis(50);

/// The host and port of a server, with a colon between them; for a single server, its address.
pub(super) type Node = Arc<str>;

/// The primaries and their slots, by the last answer. A store that is no cluster has one primary for all slots.
pub(super) struct Directory {
    pub(super) access: RedisAccess,
    pub(super) kind: TargetKind,
    /// The address as first read, without the password.
    pub(super) address: String,
    options: InventoryOptions,
    state: Mutex<State>,
    /// A simulator's streams, in place of the network.
    #[cfg(fenced_lock_chaos)]
    pub(super) streams: Option<Streams>,
}

/// Opens one stream to the store at each call. A simulator may be at the other end.
#[cfg(fenced_lock_chaos)]
pub type Streams = Arc<
    dyn Fn() -> io::Result<std::pin::Pin<Box<dyn redis::aio::AsyncStream + Send + Sync>>>
        + Send
        + Sync,
>;

#[derive(Default)]
struct State {
    slots: Option<Arc<Slots>>,
    answered_at: Option<Instant>,
    /// The latest question and its task. Callers share it until the task ends or panics.
    question: Option<(AbortHandle, Question)>,
    pauses: Pauses,
}

type Question = SharedResult<Arc<Slots>>;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Slots {
    /// By the last slot of each range: its first slot and its primary. Never empty once in use.
    ranges: BTreeMap<u16, (u16, Node)>,
    /// All nodes, including the replicas.
    nodes: BTreeSet<Node>,
}

impl Directory {
    /// Asks nobody yet.
    pub(super) fn new(
        access: RedisAccess,
        options: InventoryOptions,
    ) -> Result<Self, InventoryError> {
        // reports an invalid address at once
        let target = access.target()?;
        access.client(target.nodes[0].clone())?;
        let (address, kind) = (target.to_string(), target.kind);
        Ok(Self {
            access,
            kind,
            address,
            options,
            state: Mutex::default(),
            #[cfg(fenced_lock_chaos)]
            streams: None,
        })
    }

    /// The target of the address, from the present content of its file.
    pub(super) fn target(&self) -> RedisResult<Target> {
        let target = self.access.target().map_err(io::Error::other)?;
        if target.kind == self.kind {
            return Ok(target);
        }
        let what = "the address leads to another kind of store than before: restart the instance";
        Err((ErrorKind::InvalidClientConfig, what).into())
    }

    /// The address for a connection to this server. Asks the sentinels first: a former primary that starts again takes
    /// orders until the sentinels make it a replica.
    pub(super) async fn server(self: &Arc<Self>, node: &Node) -> RedisResult<ConnectionInfo> {
        let target = self.target()?;
        if matches!(target.kind, TargetKind::Sentinels(_)) && REDIRECTS.is_on() {
            let holds = |at: Instant| at.elapsed() < ANSWER_HOLDS_FOR;
            if !self.state.lock().answered_at.is_some_and(holds) {
                self.ask().await?;
            }
            if !self.has(node) {
                return Err((ErrorKind::Io, "the sentinels name another primary").into());
            }
        }
        target.node(node)
    }

    pub(super) async fn connect(
        &self,
        server: ConnectionInfo,
        config: &AsyncConnectionConfig,
    ) -> RedisResult<MultiplexedConnection> {
        #[cfg(fenced_lock_chaos)]
        if let Some(open) = &self.streams {
            let client = self.access.client(server).map_err(io::Error::other)?;
            let settings = client.get_connection_info().redis_settings();
            let connect = MultiplexedConnection::new_with_config(settings, open()?, config.clone());
            // the client library limits the time only for streams that it opens itself
            let within = self.options.connect_timeout + self.options.response_timeout;
            let (connection, driver) =
                timeout(within, connect).await.map_err(io::Error::from)??;
            spawn(driver);
            return Ok(connection);
        }
        self.access.connect(server, config).await
    }

    /// The last answer. Asks if there is none.
    pub(super) async fn slots(self: &Arc<Self>) -> Result<Arc<Slots>, InventoryError> {
        let known = self.state.lock().slots.clone();
        match known {
            Some(slots) => Ok(slots),
            None => self.ask().await.map_err(InventoryError::not_sent),
        }
    }

    pub(super) async fn primary_of(self: &Arc<Self>, slot: u16) -> Result<Node, InventoryError> {
        self.slots().await?.primary_of(slot).cloned().ok_or_else(|| {
            self.refresh();
            let what = "no primary of the Redis Cluster serves the item's slot";
            InventoryError::not_sent((ErrorKind::ClusterConnectionNotFound, what).into())
        })
    }

    pub(super) fn has(&self, node: &Node) -> bool {
        self.state.lock().slots.as_ref().is_some_and(|slots| slots.nodes.contains(node))
    }

    /// Asks again, without waiting for the answer.
    pub(super) fn refresh(self: &Arc<Self>) {
        if REDIRECTS.is_on() {
            drop(self.ask());
        }
    }

    /// Asks once a second, while the directory is in use.
    fn watch(self: &Arc<Self>) {
        let directory = Arc::downgrade(self);
        spawn(async move {
            loop {
                sleep(CHECK_INTERVAL).await;
                let Some(directory) = directory.upgrade() else { return };
                directory.refresh();
            }
        });
    }

    /// The question under way, or a new one. It goes on if its callers are gone.
    fn ask(self: &Arc<Self>) -> Question {
        let mut state = self.state.lock();
        if let Some((task, question)) = &state.question
            && !task.is_finished()
        {
            return question.clone();
        }
        let begins_at = state.pauses.begin(Instant::now());
        let directory = Arc::clone(self);
        let question = shared_task(begins_at, async move {
            let answer = directory.find().await;
            match &answer {
                Ok(slots) => directory.note(slots),
                Err(error) => tracing::debug!(%error, "nobody knows the primaries"),
            }
            answer
        });
        state.question.insert(question).1.clone()
    }

    fn note(self: &Arc<Self>, slots: &Arc<Slots>) {
        let before = {
            let mut state = self.state.lock();
            state.answered_at = Some(Instant::now());
            state.slots.replace(Arc::clone(slots))
        };
        match before {
            None if self.kind != TargetKind::Server => self.watch(),
            Some(before) if before.primaries() != slots.primaries() => {
                tracing::warn!(now = ?slots.primaries(), "the primaries of the store have changed");
            }
            _ => {}
        }
    }

    async fn find(&self) -> RedisResult<Arc<Slots>> {
        let target = self.target()?;
        let primary = match &target.kind {
            TargetKind::Cluster => return self.ask_nodes(&target).await,
            TargetKind::Server => Node::from(&*self.address),
            TargetKind::Sentinels(name) => {
                let within = self.options.connect_timeout;
                let mut named =
                    sentinel::primaries(&self.access, &target.nodes, name, within).await?;
                // on a tie the present primary stays; if it is not among those named, the first sentinel of the address decides
                let present = named.iter().position(|node| self.has(node));
                named.swap_remove(present.unwrap_or(0))
            }
        };
        let ranges = BTreeMap::from([(SLOTS - 1, (0, primary.clone()))]);
        Ok(Arc::new(Slots { ranges, nodes: BTreeSet::from([primary]) }))
    }

    /// Asks nodes of the address and known nodes, and takes the first map. Each question begins with a random node, since a node
    /// that is cut off from the others has an old map. The next node is asked without waiting for the one before, which may hang.
    async fn ask_nodes(&self, target: &Target) -> RedisResult<Arc<Slots>> {
        let mut nodes: Vec<Node> = target.addresses().into_iter().map(Node::from).collect();
        if let Some(slots) = &self.state.lock().slots {
            let others = slots.nodes.iter().filter(|node| !nodes.contains(node)).cloned();
            nodes.extend(others.collect::<Vec<_>>());
        }
        let begin = usize::from(random_byte()) % nodes.len();
        nodes.rotate_left(begin);
        let questions = nodes.iter().take(MAX_ASKED).zip(0..).map(async |(node, n)| {
            sleep(HEAD_START * n).await;
            self.ask_node(target, node).await
        });
        let mut answers: FuturesUnordered<_> = questions.collect();
        let mut failure = None;
        while let Some(answer) = answers.next().await {
            let Err(error) = answer else { return answer };
            // a node that does not answer may be the right one
            let is_final = InventoryError::not_sent(error.clone()).is_wrong_server();
            if failure.is_none() || !is_final {
                failure = Some(error);
            }
        }
        Err(failure.expect("an address has at least one node"))
    }

    async fn ask_node(&self, target: &Target, node: &Node) -> RedisResult<Arc<Slots>> {
        let InventoryOptions { connect_timeout, response_timeout } = self.options;
        let mut question = redis::cmd("CLUSTER");
        let answer = self.access.ask(target.node(node)?, question.arg("SLOTS"));
        let answer = timeout(connect_timeout + response_timeout, answer).await;
        let answer: Value = answer.map_err(io::Error::from)?.map_err(|error: RedisError| {
            let is_single = error.detail().is_some_and(|what| what.contains("support disabled"));
            let what = "this Redis is no node of a Redis Cluster: write redis:// for a single one";
            if is_single { (ErrorKind::InvalidClientConfig, what).into() } else { error }
        })?;
        let what = "the answer to CLUSTER SLOTS is not understood";
        let slots = Slots::parse(answer, node).ok_or((ErrorKind::UnexpectedReturnType, what))?;
        if slots.ranges.is_empty() {
            // a new or a removed node: other nodes may know more
            let what = "this node of the Redis Cluster knows no slots";
            return Err((ErrorKind::ClusterConnectionNotFound, what).into());
        }
        Ok(Arc::new(slots))
    }
}

impl Slots {
    /// Parses the answer of the node `asked` to `CLUSTER SLOTS`: for each range its first and last slot, its primary
    /// and its replicas; for each node its host, its port and more. A node without a host is on the host of `asked`.
    /// The host `?` is unknown.
    fn parse(answer: Value, asked: &Node) -> Option<Self> {
        let answer: Vec<Vec<Value>> = redis::from_redis_value(answer).ok()?;
        let mut slots = Self { ranges: BTreeMap::new(), nodes: BTreeSet::new() };
        for range in answer {
            let [Value::Int(first), Value::Int(last), nodes @ ..] = &range[..] else { return None };
            for (n, node) in nodes.iter().enumerate() {
                let node: Vec<Value> = redis::from_redis_value_ref(node).ok()?;
                let [host, port, ..] = &node[..] else { return None };
                let host: Option<String> = redis::from_redis_value_ref(host).ok()?;
                let port = redis::from_redis_value_ref(port).ok()?;
                let Some(node) = node_at(host.as_deref().unwrap_or_default(), port, asked) else {
                    continue;
                };
                slots.nodes.insert(node.clone());
                if n == 0 {
                    let first = u16::try_from(*first).ok()?;
                    slots.ranges.insert(u16::try_from(*last).ok()?, (first, node));
                }
            }
        }
        Some(slots)
    }

    fn primary_of(&self, slot: u16) -> Option<&Node> {
        let (_, (first, node)) = self.ranges.range(slot..).next()?;
        (*first <= slot).then_some(node)
    }

    pub(super) fn primaries(&self) -> BTreeSet<&Node> {
        self.ranges.values().map(|(_, node)| node).collect()
    }
}

/// The node that `MOVED` names. Without a host it is on the host of `asked`; the host `?` is unknown.
pub(super) fn named_in(error: &RedisError, asked: &Node) -> Option<Node> {
    let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
    node_at(host, port.parse().ok()?, asked)
}

/// The node that `asked` means by this host and port.
fn node_at(host: &str, port: u16, asked: &Node) -> Option<Node> {
    let host = match host {
        "" => asked.rsplit_once(':')?.0,
        "?" => return None,
        host => host,
    };
    Some(format!("{host}:{port}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an address that now leads to another kind of store is refused: that store has other items.
    #[test]
    fn a_server_does_not_become_a_cluster() {
        let directory = Directory::new("redis://a".into(), InventoryOptions::default());
        let directory = Directory { kind: TargetKind::Cluster, ..directory.expect("an address") };
        assert!(directory.target().is_err());
    }

    /// Goal: a redirection leads to the node that it names; without a host, to a node on the host that was asked; and nowhere if
    /// the host is unknown.
    #[test]
    fn the_node_of_a_redirection() {
        let asked = Node::from("asked:1");
        for (error, node) in [
            ("MOVED 1 a:7", Some("a:7")),
            ("MOVED 1 ::1:7", Some("::1:7")),
            ("MOVED 1 :7", Some("asked:7")),
            ("MOVED 1 ?:7", None),
            ("MOVED 1 a", None),
            ("ERR 1 a:7", None),
        ] {
            let answer = redis::parse_redis_value(format!("-{error}\r\n").as_bytes());
            let error = answer.and_then(Value::extract_error).expect_err(error);
            let named = named_in(&error, &asked);
            assert_eq!(named.as_deref(), node, "{error}");
        }
    }

    /// Goal: the map has each range with its primary. A node without a host is on the host that was asked. A node with
    /// an unknown host is left out.
    #[test]
    fn the_answer_to_cluster_slots() {
        let node = |host: &str, port| {
            let host = if host == "nil" { Value::Nil } else { Value::BulkString(host.into()) };
            Value::Array(vec![host, Value::Int(port), Value::BulkString("id".into())])
        };
        let range = |first, last, nodes: &[Value]| {
            Value::Array([&[Value::Int(first), Value::Int(last)], nodes].concat())
        };
        let of = Node::from("asked:1");
        let answer = Value::Array(vec![
            range(0, 9, &[node("a", 7), node("b", 8)]),
            range(10, 10, &[node("", 9)]),
            range(12, 20, &[node("nil", 9)]),
            range(21, 30, &[node("?", 9)]),
        ]);
        let slots = Slots::parse(answer, &of).expect("an answer");
        let primaries =
            [0, 9, 10, 11, 12, 21, 31].map(|slot| slots.primary_of(slot).map(|node| &**node));
        let (a, asked) = (Some("a:7"), Some("asked:9"));
        assert_eq!(primaries, [a, a, asked, None, asked, None, None]);
        let nodes: Vec<_> = slots.nodes.iter().map(|node| &**node).collect();
        assert_eq!(nodes, ["a:7", "asked:9", "b:8"]);
        assert_eq!(Slots::parse(Value::Okay, &of), None);
        assert_eq!(Slots::parse(Value::Array(vec![Value::Array(vec![])]), &of), None);
    }
}
