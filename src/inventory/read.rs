//! Reading the stock and the ledger. Nothing here needs the lock.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use fenced_lock::Token;
use futures_util::FutureExt;
use redis::{FromRedisValue, ParsingError, Value};
use tokio::time::timeout;

use super::connection::Answers;
use super::error::Effect;
use super::script::{Call, Script};
use super::stock::{began, parse_number, parse_token};
use super::watermark::Watermark;
use super::{Accepted, Inventory, InventoryError, Item, Keys, OrderId, Stock};

/// How many items the readiness check probes.
const MAX_CHECKED: usize = 64;

/// How long it waits for one shard of a Redis Cluster.
const MAX_PROBE: Duration = Duration::from_secs(1);

/// A script that reads: the check of the watermark, then the body.
///
/// It is not declared as read-only, since Redis would then run it on a replica, whose data may be old. It
/// runs also when memory is full.
macro_rules! reader {
    ($body:literal) => {
        LazyLock::new(|| {
            Script::new(concat!(
                "#!lua flags=allow-oom\n",
                include_str!("watermark.lua"),
                include_str!("read.lua"),
                $body
            ))
        })
    };
}

/// One page of the ledger, ids and records, at one moment: no start of a sale can come between.
static LEDGER: LazyLock<Script> = reader!(
    "if lost or not stock then return lost or false end
    local ids = redis.call('LRANGE', LEDGER, ARGV[5], ARGV[6])
    return {ids, #ids > 0 and redis.call('HMGET', ORDERS, unpack(ids)) or {}}"
);

/// The stock and the records of some orders, at one moment.
static STOCK_AND_ORDERS: LazyLock<Script> = reader!(
    "return lost or {
        stock, sale and beginning(sale) and sale or false, fence,
        redis.call('HMGET', ORDERS, unpack(ARGV, 5))}"
);

/// What an operator inspects: all that there is, also after a roll-back.
static INSPECT: LazyLock<Script> = reader!(
    "local id = redis.call('LINDEX', LEDGER, -1)
    return {state(), rollback_detected, id, id and redis.call('HGET', ORDERS, id)}"
);

/// All that the store has of an item, also after a roll-back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// The state; nothing if there is no stock.
    pub stock: Option<Stock>,
    /// The latest order in the ledger.
    pub latest: Option<Accepted>,
    /// What an instance missed in the store, if the sale is stopped for it.
    pub rollback_detected: Option<String>,
}

/// The state of an item at one moment, and the orders behind a position, evenly thinned out to a given number with the newest among
/// them. `LINDEX` is fast near the end of a list. A script rather than a transaction: it is one command, and a key of
/// another type is an error instead of a nil.
static POLL: LazyLock<Script> = reader!(
    "if lost then return lost end
    local length = redis.call('LLEN', LEDGER)
    local after, most, last = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
    local known = after <= length
    if known and after > 0 and last ~= '' then
      known = redis.call('LINDEX', LEDGER, after - 1) == last
    end
    if not known then after = 0 end
    if after < 0 then after = math.max(length - most, 0) end
    local step, ids, found = 1, {}, {}
    if most > 0 and length > after then
      step = math.ceil((length - after) / most)
      if step == 1 then
        ids = redis.call('LRANGE', LEDGER, after, -1)
      else
        for i = length - 1, after, -step do
          table.insert(ids, 1, redis.call('LINDEX', LEDGER, i))
        end
      end
      found = redis.call('HMGET', ORDERS, unpack(ids))
    end
    return {state(), known and 1 or 0, step, ids, found}"
);

/// How far a ledger was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The position of the last order that was read.
    pub position: u64,
    /// The order there; `None` at position 0.
    pub order: Option<OrderId>,
}

/// The state of a sale at one moment, and what is new in its ledger.
#[derive(Clone, Debug)]
pub struct SaleUpdate {
    /// The state.
    pub stock: Stock,
    /// Whether the ledger is still that of the cursor. If not, a new sale was started or the store was
    /// rolled back, and `orders` begin with the first one.
    pub is_same_ledger: bool,
    /// How many orders of the ledger each of `orders` stands for: 1 if none is left out.
    pub step: u64,
    /// The new orders, in the order of acceptance: every `step`th up to the newest.
    pub orders: Vec<Accepted>,
}

impl Inventory {
    /// The most orders that one page of the ledger has.
    pub const MAX_PAGE: u32 = 1000;

    /// The state of `item` at one moment. A stock set by hand has no `initial` before its first batch: then
    /// `initial` is the sum of the two counters.
    ///
    /// # Errors
    /// See [`InventoryError`]; always [`nothing_written`](InventoryError::nothing_written).
    pub async fn stock(&self, item: &Item) -> Result<Stock, InventoryError> {
        self.poll_since(item, None, 0).await.map(|update| update.stock)
    }

    /// All that the store has of `item`, for an operator who decides about a roll-back. Watermarks are not
    /// compared.
    ///
    /// # Errors
    /// See [`InventoryError`].
    pub async fn inspect(&self, item: &Item) -> Result<Inspection, InventoryError> {
        let keys = Keys::of(item);
        let call = Call::read(&INSPECT, item, &Watermark::default());
        let answer = call.send(&self.shards, None).await?;
        let (found, rollback_detected, id, record): (
            State,
            Option<Text>,
            Option<Text>,
            Option<Text>,
        ) = content(answer)?;
        let latest = id.map(|id| accepted(&keys, &id.0, record)).transpose()?;
        let rollback_detected = rollback_detected.map(|text| text.0);
        Ok(Inspection { stock: state(&keys, found)?, latest, rollback_detected })
    }

    /// The units of `item` not yet sold: the cheapest read. It does not compare the watermark, so it may be the
    /// stock of a store that was rolled back.
    ///
    /// # Errors
    /// [`InventoryError::UnknownItem`] if there is no such key, which is not zero. See [`InventoryError`] for the
    /// rest.
    pub async fn available(&self, item: &Item) -> Result<i64, InventoryError> {
        let keys = Keys::of(item);
        let mut get = redis::cmd("GET");
        let answer = self.shards.send(item, get.arg(&keys.stock), None).await?;
        let stock = content(answer.map_err(|error| Effect::Read.failed(error))?)?;
        number(&keys.stock, stock)?.ok_or(InventoryError::UnknownItem)
    }

    /// Up to `limit` orders of the ledger behind position `after` (0: from the first), in the order
    /// of acceptance. At least one and at most [`MAX_PAGE`](Self::MAX_PAGE), whatever the limit; fewer than asked for
    /// only at the end.
    ///
    /// # Errors
    /// See [`InventoryError`].
    pub async fn ledger(
        &self,
        item: &Item,
        after: u64,
        limit: u32,
    ) -> Result<Vec<Accepted>, InventoryError> {
        let keys = Keys::of(item);
        let limit = limit.clamp(1, Self::MAX_PAGE);
        // no ledger is longer, and Redis would refuse some larger numbers
        let first = after.min(u64::from(u32::MAX));
        let last = first + u64::from(limit) - 1;
        let call = Call::read(&LEDGER, item, &self.watermarks.of(item)).arg(first).arg(last);
        let page: Option<(Vec<Text>, Vec<Option<Text>>)> = self.read(call).await?;
        let (ids, records) = page.ok_or(InventoryError::UnknownItem)?;
        ids.iter().zip(records).map(|(id, record)| accepted(&keys, &id.0, record)).collect()
    }

    /// The accepted order of this id, if there is one.
    ///
    /// # Errors
    /// See [`InventoryError`].
    pub async fn order(
        &self,
        item: &Item,
        id: &OrderId,
    ) -> Result<Option<Accepted>, InventoryError> {
        let (_, mut orders) = self.stock_and_orders(item, std::slice::from_ref(id)).await?;
        orders.pop().transpose().map(Option::flatten)
    }

    /// The units of `item` not yet sold, and for each of these ids, at most [`MAX_BATCH`](Self::MAX_BATCH), its
    /// accepted order, if any, at one moment. A damaged record concerns its order alone.
    ///
    /// # Errors
    /// See [`available`](Self::available).
    pub async fn stock_and_orders(
        &self,
        item: &Item,
        ids: &[OrderId],
    ) -> Result<(i64, Vec<Result<Option<Accepted>, InventoryError>>), InventoryError> {
        type Found = (Option<Text>, Option<Text>, Option<Text>, Vec<Option<Text>>);
        let keys = Keys::of(item);
        let sent = self.watermarks.of(item);
        let mut call = Call::read(&STOCK_AND_ORDERS, item, &sent);
        for id in ids {
            call = call.arg(id.as_str());
        }
        let (stock, sale, fence, records): Found = self.read(call).await?;
        let stock = number(&keys.stock, stock).inspect_err(|_| self.watermarks.track(item))?;
        let stock = stock.ok_or(InventoryError::UnknownItem)?;
        let order = |(id, record): (&OrderId, Option<Text>)| {
            record.map(|record| accepted(&keys, id.as_str(), Some(record))).transpose()
        };
        let orders: Vec<_> = ids.iter().zip(records).map(order).collect();
        let found = orders.iter().filter_map(|order| order.as_ref().ok()?.as_ref());
        let latest = found.max_by_key(|accepted| accepted.position);
        // showing an order that may not have reached the replicas does not acknowledge it
        if latest.is_some()
            && self.replicas().is_none()
            && let Some(Text(sale)) = sale
        {
            let fence = fence.and_then(|fence| parse_token(&fence.0));
            self.watermarks.raise(item, &sent, fence, &sale, latest);
        }
        Ok((stock, orders))
    }

    /// The state of `item`, and at most `most` orders behind `cursor`, or the last ones without a cursor. One
    /// command of bounded cost, for those who watch. `most` is at most [`MAX_PAGE`](Self::MAX_PAGE).
    ///
    /// # Errors
    /// See [`InventoryError`].
    pub async fn poll_since(
        &self,
        item: &Item,
        cursor: Option<&Cursor>,
        most: u32,
    ) -> Result<SaleUpdate, InventoryError> {
        type Found = (State, bool, u64, Vec<Text>, Vec<Option<Text>>);
        let keys = Keys::of(item);
        let most = most.min(Self::MAX_PAGE);
        let after = cursor.map_or(-1, |f| i64::try_from(f.position).unwrap_or(i64::MAX));
        let last = cursor.and_then(|f| f.order.as_ref()).map_or("", OrderId::as_str);
        let call = Call::read(&POLL, item, &self.watermarks.of(item));
        let call = call.arg(after).arg(most).arg(last);
        let (found, is_same_ledger, step, ids, records): Found = self.read(call).await?;
        let stock = state(&keys, found)?;
        self.levels.note(item, stock.map(|stock| (stock.stock, stock.lucky)));
        let stock = stock.ok_or(InventoryError::UnknownItem)?;
        let orders = ids.iter().zip(records).map(|(id, record)| accepted(&keys, &id.0, record));
        Ok(SaleUpdate { stock, is_same_ledger, step, orders: orders.collect::<Result<_, _>>()? })
    }

    /// Probes up to 64 known items, or else the default one: whether the store answers, has room and lets this
    /// user write; whether it is above the watermark and undamaged, and its fence is of the cluster of `token`.
    /// Succeeds if some item can be sold or has no sale. A Redis Cluster of which no item is known is
    /// [pinged](Self::ping).
    ///
    /// # Errors
    /// The first error if every item has one, or one that a retry can mend: it concerns the whole store, unless
    /// that is a Redis Cluster.
    pub async fn check(&self, token: Option<Token>) -> Result<(), (Item, InventoryError)> {
        let items = self.known_items(MAX_CHECKED);
        let is_cluster = self.shards.is_cluster();
        if is_cluster && items == [Item::DEFAULT] {
            return self.ping().await.map_err(|error| (Item::DEFAULT, error));
        }
        // nodes come and go also while nothing is sold
        self.shards.refresh();
        let probe = async |item| {
            let probe = self.probe(item, token);
            // a shard that hangs must not hide the others
            let limit = if is_cluster { MAX_PROBE } else { Duration::MAX };
            timeout(limit, probe).await.map_err(|_| InventoryError::too_late())?
        };
        let probes = futures_util::future::join_all(items.iter().map(probe)).await;
        let (mut first_error, mut is_some_fine) = (None, false);
        for (item, probed) in items.into_iter().zip(probes) {
            match probed {
                Ok(()) | Err(InventoryError::UnknownItem) => is_some_fine = true,
                // a store that is away, a replica, one without room
                Err(error) if error.is_retryable() && !is_cluster => return Err((item, error)),
                Err(error) => {
                    first_error.get_or_insert((item, error));
                }
            }
        }
        first_error.filter(|_| !is_some_fine).map_or(Ok(()), Err)
    }

    /// Up to `most` known items: those of earlier calls, or else the default one.
    pub fn known_items(&self, most: usize) -> Vec<Item> {
        let items = self.watermarks.items(most);
        if items.is_empty() { vec![Item::DEFAULT] } else { items }
    }

    /// Stock and lucky of up to 100 items, as the latest readiness check, start or read of their state found them.
    pub fn levels(&self) -> BTreeMap<Item, (i64, i64)> {
        self.levels.all()
    }

    /// How many known items the store was rolled back for.
    pub fn rolled_back_items(&self) -> usize {
        self.watermarks.rolled_back()
    }

    async fn read<T: FromRedisValue>(&self, call: Call<'_>) -> Result<T, InventoryError> {
        let answer = call.send(&self.shards, None).await;
        self.watermarks.note(call.item, &answer);
        content(answer?)
    }

    /// Whether the store answers: in a Redis Cluster, some primary.
    ///
    /// # Errors
    /// [`InventoryError::Unreachable`], or [`InventoryError::Refused`] while it loads its data.
    pub async fn ping(&self) -> Result<(), InventoryError> {
        let ping = redis::cmd("PING");
        let servers = self.shards.all().await?;
        let pings = servers.iter().map(|server| server.query(&ping, Effect::Read).boxed());
        futures_util::future::select_ok(pings).await.map(|((), _)| ())
    }
}

/// A text in the store. One that is not UTF-8 reads as the empty one, which nothing in the store is.
struct Text(String);

impl FromRedisValue for Text {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let bytes: Vec<u8> = redis::from_redis_value(value)?;
        Ok(Self(String::from_utf8(bytes).unwrap_or_default()))
    }
}

/// Stock, lucky, initial, fence, length of the ledger and name of the sale, unparsed.
type State = (Option<Text>, Option<Text>, Option<Text>, Option<Text>, u64, Option<Text>);

/// What a command that only reads answered.
fn content<T: FromRedisValue>((answer, _): Answers) -> Result<T, InventoryError> {
    redis::from_redis_value(answer).map_err(|error| Effect::Read.failed(error.into()))
}

fn state(keys: &Keys, found: State) -> Result<Option<Stock>, InventoryError> {
    let (stock, lucky, initial, fence, orders, sale) = found;
    let Some(stock) = number(&keys.stock, stock)? else { return Ok(None) };
    let lucky = number(&keys.lucky, lucky)?.unwrap_or(0);
    let too_large = || damaged(format!("{} and {} are too large", keys.stock, keys.lucky));
    let initial = match number(&keys.initial, initial)? {
        Some(initial) => initial,
        None => stock.checked_add(lucky).ok_or_else(too_large)?,
    };
    let no_fence = || damaged(format!("{} is not a cluster and a revision", keys.fence));
    let fence = fence.map(|text| parse_token(&text.0).ok_or_else(no_fence)).transpose()?;
    let sale = sale.and_then(|name| began(&name.0));
    Ok(Some(Stock { stock, lucky, initial, fence, orders, sale }))
}

fn number(key: &str, value: Option<Text>) -> Result<Option<i64>, InventoryError> {
    let no_number = || damaged(format!("{key} is not a whole number from 0"));
    value.map(|text| parse_number(&text.0).ok_or_else(no_number)).transpose()
}

fn accepted(keys: &Keys, id: &str, record: Option<Text>) -> Result<Accepted, InventoryError> {
    let accepted = record.and_then(|record| Accepted::from_record(id, &record.0));
    accepted.ok_or_else(|| damaged(format!("{} has no order under {id}", keys.orders)))
}

fn damaged(what: String) -> InventoryError {
    InventoryError::Damaged { what }
}
