//! Sends commands to the server that has the item.
//!
//! The keys of a named item share a hash tag. In a Redis Cluster they are in one slot, which one primary serves: one
//! call is one command to one node, as without a cluster. The [directory](Directory) may be outdated: a node that does
//! not serve a slot does nothing, and names the node that does (`MOVED`). While a slot moves, no node has all keys of a
//! command, and its items wait (`TRYAGAIN`). See
//! <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>.
//!
//! The `ClusterConnection` of the Redis client does not fit: after a lost connection it sends a command again by
//! itself, up to 16 times, and its last error does not say whether an earlier attempt was sent.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Cmd, ErrorKind, RedisResult, ServerErrorKind};
use tokio::time::{Instant, sleep};

use super::access::TargetKind;
use super::connection::{Answers, Connection};
use super::directory::{Directory, Node, SLOTS, named_in};
use super::error::is_transient;
use super::{InventoryError, InventoryOptions, Item, RedisAccess};
use crate::safeguard::REDIRECTS;

/// How many redirections a call follows at least, however long the nodes take to answer.
const MAX_HOPS: u32 = 5;

/// How long a call is sent again while its keys are on two nodes or two nodes name each other, and the pause between attempts.
const TRY_AGAIN_FOR: Duration = Duration::from_millis(500);
const TRY_AGAIN_PAUSE: Duration = Duration::from_millis(10);

/// The connections to the servers of the store, each opened when it is needed. Clones share them.
#[derive(Clone)]
pub(super) struct Shards {
    directory: Arc<Directory>,
    connections: Arc<Mutex<HashMap<Node, Connection>>>,
    options: InventoryOptions,
}

impl Shards {
    /// Connects nothing yet.
    pub(super) fn new(
        access: RedisAccess,
        options: InventoryOptions,
    ) -> Result<Self, InventoryError> {
        let directory = Arc::new(Directory::new(access, options)?);
        Ok(Self { directory, connections: Arc::default(), options })
    }

    /// Opens streams in place of network connections. These shards must not be shared yet.
    #[cfg(fenced_lock_chaos)]
    pub(super) fn open_by(&mut self, streams: super::Streams) {
        Arc::get_mut(&mut self.directory).expect("nobody shares it yet").streams = Some(streams);
    }

    /// Other connections to the same servers, which wait longer for answers, by `longer`.
    pub(super) fn with_longer_timeout(&self, longer: Duration) -> Self {
        let response_timeout = self.options.response_timeout + longer;
        let options = InventoryOptions { response_timeout, ..self.options };
        Self { connections: Arc::default(), options, ..self.clone() }
    }

    pub(super) fn options(&self) -> InventoryOptions {
        self.options
    }

    /// Whether the plain keys of the default item are on several servers.
    pub(super) fn is_cluster(&self) -> bool {
        self.directory.kind == TargetKind::Cluster
    }

    /// The address of the store, without the password.
    pub(super) fn address(&self) -> String {
        self.directory.address.clone()
    }

    /// The connections to all servers that have items, at least one.
    pub(super) async fn all(&self) -> Result<Vec<Connection>, InventoryError> {
        let slots = self.directory.slots().await?;
        Ok(slots.primaries().into_iter().map(|node| self.connection(node)).collect())
    }

    fn connection(&self, node: &Node) -> Connection {
        let mut connections = self.connections.lock();
        if !connections.contains_key(node) {
            // forget servers that no longer belong to the store
            connections.retain(|node, _| self.directory.has(node));
        }
        let connect = || Connection::new(&self.directory, node, self.options);
        connections.entry(node.clone()).or_insert_with(connect).clone()
    }

    /// Sends a command about the keys of `item`, and the command `then` in the same round trip, to the server that has
    /// the keys. The outer error means that nothing was done.
    pub(super) async fn send(
        &self,
        item: &Item,
        command: &Cmd,
        then: Option<&Cmd>,
    ) -> Result<RedisResult<Answers>, InventoryError> {
        use ServerErrorKind::{Ask, Moved, TryAgain};
        let slot = match item.name() {
            None if self.is_cluster() => return Err(InventoryError::ItemRequired),
            name => slot_of(name.unwrap_or_default()),
        };
        let gives_up_at = Instant::now() + TRY_AGAIN_FOR;
        let mut hops = 0;
        let mut named: Option<Node> = None;
        loop {
            let node = match named.take() {
                Some(node) => node,
                None => self.directory.primary_of(slot).await?,
            };
            let answer = self.connection(&node).send(command, then).await;
            let Ok(Err(error)) = &answer else {
                if answer.is_err() {
                    // nothing was sent, and another server has the item by now
                    if hops == 0 && !self.directory.has(&node) {
                        hops += 1;
                        continue;
                    }
                    // the server does not answer, or has become a replica
                    self.directory.refresh();
                }
                return answer;
            };
            if error.code().is_none() || is_transient(error) {
                self.directory.refresh();
            }
            let ErrorKind::Server(kind @ (Moved | Ask | TryAgain)) = error.kind() else {
                return answer;
            };
            // nothing was done: the slot has moved, or it moves and this node has only some of the keys
            let is_moved = kind == Moved && REDIRECTS.is_on();
            let may_repeat = Instant::now() < gives_up_at || is_moved && hops < MAX_HOPS;
            if kind == Moved && !is_moved || !may_repeat {
                return answer;
            }
            hops += 1;
            named = named_in(error, &node).filter(|_| is_moved);
            // at the end of a move, two nodes name each other for a moment
            if hops > 1 || named.is_none() {
                sleep(TRY_AGAIN_PAUSE).await;
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

/// The slot of keys with this hash tag: its CRC16 (XMODEM) modulo 16384.
pub(super) fn slot_of(tag: &str) -> u16 {
    let shift = |crc: u16| if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
    let byte = |crc: u16, byte: u8| (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| shift(crc));
    tag.bytes().fold(0, byte) % SLOTS
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
}
