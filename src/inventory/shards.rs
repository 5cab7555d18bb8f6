//! Which connection leads to an item: the only one or, in a Redis Cluster, that to the item's shard.
//!
//! The keys of a named item share a hash tag. So they are in one slot, which one primary serves, and one call
//! is one command to one node, as without a cluster. Any node says which primary serves which slots. That
//! answer may be outdated: a node that does not serve a slot does nothing, and names the node that does (`MOVED`,
//! `ASK`). See <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>.
//!
//! The `ClusterConnection` of the Redis client does not fit: after a lost connection it sends a command again
//! by itself, up to 16 times, and its last error does not say whether an earlier attempt was sent.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use redis::{Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use super::access::{Target, TargetKind};
use super::connection::{Answers, Connection, Pauses, SharedResult, shared_task};
use super::error::is_transient;
use super::{InventoryError, InventoryOptions, Item, RedisAccess};
use crate::safeguard::REDIRECTS;

/// How many slots a cluster has.
const SLOTS: u16 = 16384;

/// How often one call is sent again at least, however long the nodes take to answer.
const MAX_HOPS: u32 = 5;

/// How long a call is sent again while some of its keys are at one node and some at another, or the nodes name each
/// other, and the pause.
const TRY_AGAIN_FOR: Duration = Duration::from_millis(500);
const TRY_AGAIN_PAUSE: Duration = Duration::from_millis(10);

/// How many nodes are asked for the map of the slots before the question counts as failed. The next one begins
/// with another node.
const MAX_ASKED: usize = 8;

/// How much later than the node before it each of them is asked.
const HEAD_START: Duration = Duration::from_millis(50);

/// The connections to the store. Clones share them.
#[derive(Clone)]
pub(super) enum Shards {
    /// One server has all items.
    One(Connection),
    /// Each named item is at one primary of a Redis Cluster.
    Cluster(Cluster),
}

/// Connections to the nodes of a cluster, each opened when it is needed.
#[derive(Clone)]
pub(super) struct Cluster {
    map: Arc<Map>,
    connections: Arc<Mutex<HashMap<Node, Connection>>>,
    options: InventoryOptions,
}

/// Host and port of a node, with a colon between them.
type Node = Arc<str>;

impl Shards {
    /// Connects nothing yet.
    pub(super) fn new(
        access: RedisAccess,
        options: InventoryOptions,
    ) -> Result<Self, InventoryError> {
        // reports an invalid address at once
        let target = access.target()?;
        access.client(target.nodes[0].clone())?;
        let address = target.to_string();
        Ok(match target.kind {
            TargetKind::Cluster => {
                let map = Map { access, address, options, state: Mutex::default() };
                let (map, connections) = (Arc::new(map), Arc::default());
                Self::Cluster(Cluster { map, connections, options })
            }
            _ => Self::One(Connection::new(access, address, false, options)),
        })
    }

    /// Other connections to the same servers, which wait longer for answers.
    pub(super) fn with_longer_timeout(&self, longer: Duration) -> Self {
        match self {
            Self::One(connection) => Self::One(connection.with_longer_timeout(longer)),
            Self::Cluster(cluster) => Self::Cluster(Cluster {
                connections: Arc::default(),
                options: cluster.options.with_longer_timeout(longer),
                ..cluster.clone()
            }),
        }
    }

    /// Whether the plain keys of the default item are on several servers.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Where the store is, without the password.
    pub(super) fn address(&self) -> String {
        match self {
            Self::One(connection) => connection.address(),
            Self::Cluster(cluster) => cluster.map.address.clone(),
        }
    }

    /// Asks for the map of a cluster anew, without waiting for it.
    pub(super) fn refresh(&self) {
        if let Self::Cluster(cluster) = self {
            cluster.map.refresh();
        }
    }

    /// The connections to all servers that have items: one at least. Asks for the map anew in the background, so a
    /// later call knows of a failover.
    pub(super) async fn all(&self) -> Result<Vec<Connection>, InventoryError> {
        match self {
            Self::One(connection) => Ok(vec![connection.clone()]),
            Self::Cluster(cluster) => {
                cluster.map.refresh();
                let slots = cluster.map.slots().await?;
                Ok(slots.primaries().into_iter().map(|node| cluster.connection(node)).collect())
            }
        }
    }

    /// Sends a command about the keys of `item`, and `then` another one in the same round trip. The outer error
    /// means that nothing was done.
    pub(super) async fn send(
        &self,
        item: &Item,
        command: &Cmd,
        then: Option<&Cmd>,
    ) -> Result<RedisResult<Answers>, InventoryError> {
        match self {
            Self::One(connection) => connection.send(command, then, false).await,
            Self::Cluster(cluster) => {
                let tag = item.name().ok_or(InventoryError::ItemRequired)?;
                // boxed, so that the future of an order to a single server stays small
                Box::pin(cluster.send(slot_of(tag), command, then)).await
            }
        }
    }
}

impl fmt::Debug for Shards {
    /// The address alone: the URL may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shards({})", self.address())
    }
}

impl Cluster {
    fn connection(&self, node: &Node) -> Connection {
        let mut connections = self.connections.lock();
        if !connections.contains_key(node)
            && let Some(slots) = &self.map.state.lock().slots
        {
            // forget the nodes that left the cluster
            connections.retain(|node, _| slots.nodes.contains(node));
        }
        let connect =
            || Connection::new(self.map.access.clone(), node.to_string(), true, self.options);
        connections.entry(node.clone()).or_insert_with(connect).clone()
    }

    /// Sends a command about keys of one slot to the node that serves it.
    async fn send(
        &self,
        slot: u16,
        command: &Cmd,
        then: Option<&Cmd>,
    ) -> Result<RedisResult<Answers>, InventoryError> {
        use ServerErrorKind::{Ask, Moved, TryAgain};
        let gives_up_at = Instant::now() + TRY_AGAIN_FOR;
        let mut hops = 0;
        let mut redirect: Option<(Node, bool)> = None;
        loop {
            let (node, asks) = match redirect.take() {
                Some(redirect) => redirect,
                None => (self.map.primary_of(slot).await?, false),
            };
            let answer = self.connection(&node).send(command, then, asks).await;
            let error = match &answer {
                Ok(Ok(_)) => return answer,
                Ok(Err(error)) => error,
                // the node does not answer, or is a replica now
                Err(_) => {
                    self.map.refresh();
                    return answer;
                }
            };
            let kind = error.kind();
            if matches!(kind, ErrorKind::Server(Moved | Ask)) && !REDIRECTS.is_on() {
                return answer;
            }
            if error.code().is_none() || is_transient(error) {
                self.map.refresh();
            }
            match kind {
                // nothing was done: the slot has moved, or it moves and only some of the keys are at this node
                ErrorKind::Server(Moved | Ask | TryAgain)
                    if Instant::now() < gives_up_at
                        || hops < MAX_HOPS && kind != ErrorKind::Server(TryAgain) =>
                {
                    hops += 1;
                    redirect =
                        named_in(error, &node).map(|node| (node, kind == ErrorKind::Server(Ask)));
                    // at the end of a move, two nodes name each other for a moment
                    if hops > 1 || redirect.is_none() {
                        sleep(TRY_AGAIN_PAUSE).await;
                    }
                }
                _ => return answer,
            }
        }
    }
}

/// The node that `MOVED` or `ASK` names; without a host, one on the host that was asked; with `?`, none that is
/// known.
fn named_in(error: &RedisError, asked: &Node) -> Option<Node> {
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

/// The slot of keys with this hash tag: its CRC16 (XMODEM) modulo 16384.
pub(super) fn slot_of(tag: &str) -> u16 {
    let shift = |crc: u16| if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
    let byte = |crc: u16, byte: u8| (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| shift(crc));
    tag.bytes().fold(0, byte) % SLOTS
}

/// Which primary serves which slots, as a node said last.
struct Map {
    access: RedisAccess,
    address: String,
    options: InventoryOptions,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    slots: Option<Arc<Slots>>,
    /// The latest question, and its task. Callers share it until the task ends, also by a panic.
    question: Option<(AbortHandle, Question)>,
    pauses: Pauses,
    /// How many questions there were.
    asked: usize,
}

type Question = SharedResult<Arc<Slots>>;

#[derive(Debug, PartialEq, Eq)]
struct Slots {
    /// By the last slot of each range, its first one and its primary. A map in use has some.
    ranges: BTreeMap<u16, (u16, Node)>,
    /// All nodes, also the replicas.
    nodes: BTreeSet<Node>,
}

impl Map {
    /// The present map; asks for it if there is none yet.
    async fn slots(self: &Arc<Self>) -> Result<Arc<Slots>, InventoryError> {
        let known = self.state.lock().slots.clone();
        match known {
            Some(slots) => Ok(slots),
            None => self.ask().await.map_err(InventoryError::not_sent),
        }
    }

    async fn primary_of(self: &Arc<Self>, slot: u16) -> Result<Node, InventoryError> {
        self.slots().await?.primary_of(slot).cloned().ok_or_else(|| {
            self.refresh();
            let what = "no primary of the Redis Cluster serves the item's slot";
            InventoryError::not_sent((ErrorKind::ClusterConnectionNotFound, what).into())
        })
    }

    /// Asks for the map anew, without waiting for it.
    fn refresh(self: &Arc<Self>) {
        drop(self.ask());
    }

    /// The question under way, or a new one. It goes on if nobody waits for it.
    fn ask(self: &Arc<Self>) -> Question {
        let mut state = self.state.lock();
        if let Some((task, question)) = &state.question
            && !task.is_finished()
        {
            return question.clone();
        }
        let begins_at = state.pauses.begin(Instant::now());
        state.asked += 1;
        let (map, turn) = (Arc::clone(self), state.asked - 1);
        let question = shared_task(begins_at, async move {
            let answer = map.ask_nodes(turn).await;
            let mut state = map.state.lock();
            match &answer {
                Ok(slots) => {
                    let now = slots.primaries();
                    let before = state.slots.replace(Arc::clone(slots));
                    if before.is_some_and(|before| before.primaries() != now) {
                        tracing::warn!(?now, "the primaries of the Redis Cluster have changed");
                    }
                }
                Err(error) => tracing::debug!(%error, "no node has the map of the Redis Cluster"),
            }
            answer
        });
        state.question.insert(question).1.clone()
    }

    /// Asks the nodes of the address and those that are known, and takes the first map. Each question begins with
    /// another node, since one that is cut off from the others has an old map; the others follow without waiting
    /// for its answer, since it may hang.
    async fn ask_nodes(&self, turn: usize) -> RedisResult<Arc<Slots>> {
        let target = self.access.target().map_err(io::Error::other)?;
        let mut nodes: Vec<Node> = target.addresses().into_iter().map(Node::from).collect();
        if let Some(slots) = &self.state.lock().slots {
            let others = slots.nodes.iter().filter(|node| !nodes.contains(node)).cloned();
            nodes.extend(others.collect::<Vec<_>>());
        }
        let begin = turn % nodes.len().max(1);
        nodes.rotate_left(begin);
        let questions = nodes.iter().take(MAX_ASKED).zip(0..).map(async |(node, n)| {
            sleep(HEAD_START * n).await;
            self.ask_node(&target, node).await
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
        let no_node = (ErrorKind::InvalidClientConfig, "the address has no node");
        Err(failure.unwrap_or(no_node.into()))
    }

    async fn ask_node(&self, target: &Target, node: &Node) -> RedisResult<Arc<Slots>> {
        let InventoryOptions { connect_timeout, response_timeout } = self.options;
        let mut question = redis::cmd("CLUSTER");
        let answer = self.access.ask(target.cluster_node(node)?, question.arg("SLOTS"));
        let answer = timeout(connect_timeout + response_timeout, answer).await;
        let answer: Value = answer.map_err(io::Error::from)?.map_err(|error: RedisError| {
            let is_single = error.detail().is_some_and(|what| what.contains("support disabled"));
            let what = "this Redis is no node of a Redis Cluster: write redis:// for a single one";
            if is_single { (ErrorKind::InvalidClientConfig, what).into() } else { error }
        })?;
        let what = "the answer to CLUSTER SLOTS is not understood";
        let slots = Slots::parse(answer, node).ok_or((ErrorKind::UnexpectedReturnType, what))?;
        if slots.ranges.is_empty() {
            // a new node, or one that was removed: others may know more
            let what = "this node of the Redis Cluster knows no slots";
            return Err((ErrorKind::ClusterConnectionNotFound, what).into());
        }
        Ok(Arc::new(slots))
    }
}

impl Slots {
    /// The answer of `asked` to `CLUSTER SLOTS`: for each range its first and last slot, its primary and its
    /// replicas, and of each node the host, the port and more. A node without a host is on the host that was
    /// asked; one with `?` is not known to it.
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

    fn primaries(&self) -> BTreeSet<&Node> {
        self.ranges.values().map(|(_, node)| node).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the slots are those of the specification, whose example is the check value of CRC16/XMODEM.
    #[test]
    fn the_slot_of_a_hash_tag() {
        assert_eq!(slot_of("123456789"), 0x31c3);
        assert_eq!(slot_of("foo"), 12182);
    }

    /// Goal: a redirection leads to the node that it names; without a host, to one on the host that was asked; and
    /// nowhere if the host is not known.
    #[test]
    fn the_node_of_a_redirection() {
        let asked = Node::from("asked:1");
        for (error, node) in [
            ("MOVED 1 a:7", Some("a:7")),
            ("ASK 1 ::1:7", Some("::1:7")),
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

    /// Goal: the map has each range with its primary; a node without a host is where the question went; one that
    /// is not known is left out.
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
