//! The stock of a story, and the story's end.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Result;
use fenced_lock::Token;
use flash_sale::inventory::Item;
use redis::Script;
use redis::aio::MultiplexedConnection;
use serde::Serialize;
use testkit::{LOCK_NAME, PrivateRedis};

use super::redis::connect;

/// How a story ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ending {
    /// How many units there were.
    pub stock: u64,
    /// How many were sold.
    pub sold: u64,
    /// How many stale writes the fence of the stock refused.
    pub refused: u64,
    /// Whether a second buyer was granted the lock before the first one released it.
    pub two_held: bool,
    /// Why nobody can buy any more, if that is so.
    pub stuck: Option<&'static str>,
}

impl Ending {
    /// Whether the sale went wrong.
    pub fn is_wrong(&self) -> bool {
        self.sold > self.stock || self.stuck.is_some()
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} sold", self.sold, self.stock)?;
        if let Some(why) = self.stuck {
            return write!(f, ", and nobody can buy: {why}");
        }
        match (self.two_held, self.refused) {
            (false, 0) => Ok(()),
            (false, _) => f.write_str(", the stale write is refused"),
            (true, 0) => f.write_str(", two holders at once"),
            (true, _) => f.write_str(": two holders at once, and the fence refuses one"),
        }
    }
}

/// One item, sold by GET and SET. A buyer with a token sends it along, and the stock refuses a smaller token, and a token of
/// another cluster.
pub(super) struct Shop {
    redis: MultiplexedConnection,
    item: Item,
    /// The name of the item's lock.
    pub(super) lock: String,
    pub(super) ending: Ending,
}

/// KEYS: stock, fence. ARGV: the stock to write, and the cluster and the revision of the token, if the buyer has one.
const SET: &str = "#!lua
if ARGV[2] then
  local cluster, revision = string.match(redis.call('GET', KEYS[2]) or '', '^(%x+) (%d+)$')
  if cluster and cluster ~= ARGV[2] then return 'another cluster' end
  if cluster and tonumber(revision) > tonumber(ARGV[3]) then return 'stale' end
  redis.call('SET', KEYS[2], ARGV[2] .. ' ' .. ARGV[3])
end
redis.call('SET', KEYS[1], ARGV[1])
return 'written'";

/// Why a token of another cluster buys nothing.
const OPERATOR: &str = "the fence refuses the new cluster until an operator decides";

impl Shop {
    /// A new item with this many units.
    pub(super) async fn open(server: &PrivateRedis, stock: u64) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("item-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let item: Item = name.parse().expect("letters, a hyphen and digits are an item's name");
        let mut redis = connect(&server.url()).await?;
        redis::cmd("SET").arg(item.key("stock")).arg(stock).query_async::<()>(&mut redis).await?;
        let ending = Ending { stock, ..Ending::default() };
        Ok(Self { redis, item, lock: format!("{LOCK_NAME}:{name}"), ending })
    }

    pub(super) async fn read(&mut self) -> Result<u64> {
        Ok(redis::cmd("GET").arg(self.item.key("stock")).query_async(&mut self.redis).await?)
    }

    /// Sells one of the units that the buyer saw.
    pub(super) async fn write(&mut self, seen: u64, token: Option<Token>) -> Result<()> {
        let Some(left) = seen.checked_sub(1) else { return Ok(()) };
        let script = Script::new(SET);
        let mut set = script.key(self.item.key("stock"));
        set.key(self.item.key("fence")).arg(left);
        if let Some(token) = token {
            set.arg(token.cluster().to_string()).arg(token.revision());
        }
        let answer: String = set.invoke_async(&mut self.redis).await?;
        match &*answer {
            "written" => self.ending.sold += 1,
            "stale" => self.ending.refused += 1,
            // every later buyer with that cluster's tokens is refused as well
            _ => self.ending.stuck = Some(OPERATOR),
        }
        Ok(())
    }

    pub(super) async fn buy(&mut self, token: Option<Token>) -> Result<()> {
        let seen = self.read().await?;
        self.write(seen, token).await
    }
}
