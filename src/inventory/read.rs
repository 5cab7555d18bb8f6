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
use super::order::order_key;
use super::script::{Call, Script};
use super::stock::{began, parse_number, parse_token};
use super::terms::StoredTerms;
use super::watermark::{Acknowledged, Watermark};
use super::{
    Accepted, Inventory, InventoryError, Item, Keys, OrderId, Refusal, SaleId, Stock, Terms,
    Timestamp, User,
};

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

/// One page of a ledger, entries and records, at one moment: no start of a sale can come between.
static LEDGER: LazyLock<Script> = reader!(
    "if lost then return lost end
    local first, last, wanted, expected = tonumber(ARGV[5]), ARGV[6], ARGV[7], ARGV[8]
    local running = stock and id_of(terms, sale)
    local id, suffix = running or '', ''
    if wanted ~= '' and wanted ~= id then
      if not redis.call('HGET', SALES, wanted) then return {'unknown-sale', id, {}, {}, 0} end
      id, suffix = wanted, '@' .. wanted
    elseif not stock then
      return false
    end
    local ledger, orders = LEDGER .. suffix, ORDERS .. suffix
    if expected ~= '' and expected ~= id or first > redis.call('LLEN', ledger) then
      return {'sale-replaced', running or '', {}, {}, 0}
    end
    local entries = redis.call('LRANGE', ledger, first, last)
    local records = #entries > 0 and redis.call('HMGET', orders, unpack(entries)) or {}
    return {'ok', id, entries, records, terms.hold_seconds and 1 or 0}"
);

/// The stock and what became of some orders, at one moment.
static LOOKUP: LazyLock<Script> = reader!(
    "if lost then return lost end
    local keys, hold = {unpack(ARGV, 5)}, terms.hold_seconds
    return {
        {stock, sale and beginning(sale) and sale or false, fence, id_of(terms, sale) or ''},
        {hold and 1 or 0, hold and #due(1) > 0 and 1 or 0, terms.per_order or 0,
         records_of(keys, terms_text), hold and redis.call('HMGET', CHANGES, unpack(keys)) or {}}}"
);

/// The sale that runs and those that it replaced.
static SALES: LazyLock<Script> = reader!("return lost or {state(), redis.call('HVALS', SALES)}");

/// What an operator inspects: all that there is, also after a roll-back.
static INSPECT: LazyLock<Script> = reader!(
    "local entry = redis.call('LINDEX', LEDGER, -1)
    return {state(), rollback_detected, entry, entry and redis.call('HGET', ORDERS, entry)}"
);

/// All that the store has of an item, also after a roll-back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// The state; nothing if there is no stock.
    pub stock: Option<Stock>,
    /// The latest entry of the ledger.
    pub latest: Option<Accepted>,
    /// What an instance missed in the store, if the sale is stopped for it.
    pub rollback_detected: Option<String>,
}

/// The state of an item at one moment, and the orders behind a position, evenly thinned out to a given number with the
/// newest among them. `LINDEX` is fast near the end of a list. A script rather than a transaction: it is one command, and a
/// key of another type is an error instead of a nil.
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
    /// The position of the last entry that was read.
    pub position: u64,
    /// The entry there; `None` at position 0.
    pub entry: Option<String>,
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
    /// The new entries, as they came: every `step`th up to the newest.
    pub entries: Vec<Accepted>,
    /// The newest of them, for the next cursor.
    pub newest: Option<String>,
}

/// Where to read on in a ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerPosition {
    /// The sale of the ledger; `None`: the one that runs.
    pub sale: Option<SaleId>,
    /// The sale that the position is of, if that is known.
    pub of: Option<SaleId>,
    /// How many entries were read; 0: none.
    pub after: u64,
}

impl From<u64> for LedgerPosition {
    fn from(after: u64) -> Self {
        Self { after, ..Self::default() }
    }
}

/// Some entries of a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerPage {
    /// The id of the sale; empty for a stock set by hand before its first order.
    pub sale: String,
    /// The entries, as they came.
    pub entries: Vec<Accepted>,
}

/// What there is to buy.
#[derive(Clone, Copy, Debug)]
pub struct Available {
    /// The units not yet sold.
    pub stock: i64,
    /// Whether holds are due: a batch brings their units back.
    pub is_due: bool,
    /// The most units of one order.
    pub per_order: Option<u32>,
}

/// What was found of some orders, at one moment.
#[derive(Debug)]
pub struct Lookup {
    /// What there is to buy.
    pub available: Available,
    /// The id of the sale.
    pub sale: String,
    /// For each key its accepted order, if any, with what became of it. A damaged record concerns its order alone.
    pub orders: Vec<Result<Option<Accepted>, InventoryError>>,
}

/// The sales of an item.
#[derive(Clone, Debug, PartialEq)]
pub struct Sales {
    /// The one that runs.
    pub running: Option<Stock>,
    /// What is known of those that were replaced, oldest first: id, times, the numbers at the end, terms.
    pub kept: Vec<serde_json::Value>,
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
        let (found, rollback_detected, entry, record): (
            State,
            Option<Text>,
            Option<Text>,
            Option<Text>,
        ) = content(answer)?;
        let latest = entry.map(|entry| accepted(&keys, &entry.0, record.as_ref())).transpose()?;
        let rollback_detected = rollback_detected.map(|text| text.0);
        Ok(Inspection { stock: state(&keys, found)?, latest, rollback_detected })
    }

    /// Whether the store has anything of `item`: a cheap read, for names that a client may have made up.
    ///
    /// # Errors
    /// See [`InventoryError`].
    pub async fn exists(&self, item: &Item) -> Result<bool, InventoryError> {
        let mut exists = redis::cmd("EXISTS");
        exists.arg(&Keys::all(item));
        let answer = self.shards.send(item, &exists, None).await?;
        let count: u64 = content(answer.map_err(|error| Effect::Read.failed(error))?)?;
        Ok(count > 0)
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

    /// Up to `limit` entries of a ledger behind a position, as they came. At least one and at most
    /// [`MAX_PAGE`](Self::MAX_PAGE), whatever the limit; fewer than asked for only at the end.
    ///
    /// # Errors
    /// See [`InventoryError`]; [`InventoryError::SaleRefused`] for a position of another sale or behind the end.
    pub async fn ledger(
        &self,
        item: &Item,
        from: impl Into<LedgerPosition>,
        limit: u32,
    ) -> Result<LedgerPage, InventoryError> {
        type Page = (String, String, Vec<Text>, Vec<Option<Text>>, i64);
        let keys = Keys::of(item);
        let LedgerPosition { sale, of, after } = from.into();
        let limit = limit.clamp(1, Self::MAX_PAGE);
        // no ledger is longer, and Redis would refuse some larger numbers
        let first = after.min(u64::from(u32::MAX));
        let last = first + u64::from(limit) - 1;
        let text = |id: Option<SaleId>| id.map(|id| id.as_str().to_owned()).unwrap_or_default();
        let call = Call::read(&LEDGER, item, &self.watermarks.of(item));
        let call = call.arg(first).arg(last).arg(text(sale)).arg(text(of));
        let page: Option<Page> = self.read(call).await?;
        let (status, sale, entries, records, holds) = page.ok_or(InventoryError::UnknownItem)?;
        if let Some(refused) = Refusal::error(&status, sale.clone()) {
            return Err(refused);
        }
        // whoever waits for the end of a hold needs an instance that ends it
        self.watermarks.note_holds(item, holds == 1);
        Ok(LedgerPage { sale, entries: all(&keys, &entries, records)? })
    }

    /// The accepted order of this id and user, if there is one, with what became of it, and the id of the sale.
    ///
    /// # Errors
    /// See [`InventoryError`].
    pub async fn order(
        &self,
        item: &Item,
        id: &OrderId,
        user: &User,
    ) -> Result<(String, Option<Accepted>), InventoryError> {
        let mut found = self.look_up(item, &[order_key(id, user)]).await?;
        let order = found.orders.pop().transpose()?.flatten();
        Ok((found.sale, order))
    }

    /// The units of `item` not yet sold, and for each of these [keys](super::Order::key), at least one and at most
    /// [`MAX_BATCH`](Self::MAX_BATCH), its accepted order, if any, at one moment.
    ///
    /// # Errors
    /// See [`available`](Self::available).
    pub async fn look_up(&self, item: &Item, keys: &[String]) -> Result<Lookup, InventoryError> {
        type Found = (
            (Option<Text>, Option<Text>, Option<Text>, Text),
            (bool, bool, u32, Vec<Option<Text>>, Vec<Option<Text>>),
        );
        let sent = self.watermarks.of(item);
        let found = self.read(Call::read(&LOOKUP, item, &sent).arg(keys)).await?;
        let ((stock, sale, fence, id), (has_holds, is_due, per_order, records, changes)): Found =
            found;
        let all_keys = Keys::of(item);
        let stock = number(&all_keys.stock, stock).inspect_err(|_| self.watermarks.track(item))?;
        let stock = stock.ok_or(InventoryError::UnknownItem)?;
        self.watermarks.note_holds(item, has_holds);
        let mut latest: Option<Acknowledged> = None;
        let mut changes = changes.into_iter();
        let mut orders = Vec::with_capacity(keys.len());
        for (key, record) in keys.iter().zip(records) {
            let change = changes.next().flatten();
            let Some(record) = record else {
                orders.push(Ok(None));
                continue;
            };
            let change = change.and_then(|entry| Accepted::from_change(&entry.0).zip(Some(entry)));
            let found = accepted(&all_keys, key, Some(&record)).map(|mut order| {
                let (position, entry) = match &change {
                    Some((change, entry)) => {
                        (order.event, order.changed) = (change.event, change.time);
                        (change.position, entry)
                    }
                    None => (order.position, &record),
                };
                if latest.as_ref().is_none_or(|latest| latest.position < position) {
                    let (key, entry) = (key.clone(), entry.0.clone());
                    latest = Some(Acknowledged { position, key, entry });
                }
                Some(order)
            });
            orders.push(found);
        }
        // showing an order that may not have reached the replicas does not acknowledge it
        if latest.is_some()
            && self.replicas().is_none()
            && let Some(Text(sale)) = sale
        {
            let fence = fence.and_then(|fence| parse_token(&fence.0));
            self.watermarks.raise(item, &sent, fence, &sale, latest);
        }
        let per_order = Some(per_order).filter(|most| *most > 0);
        Ok(Lookup { available: Available { stock, is_due, per_order }, sale: id.0, orders })
    }

    /// The sale of `item` that runs, and those that were replaced.
    ///
    /// # Errors
    /// See [`InventoryError`].
    pub async fn sales(&self, item: &Item) -> Result<Sales, InventoryError> {
        let keys = Keys::of(item);
        let call = Call::read(&SALES, item, &self.watermarks.of(item));
        let (found, kept): (State, Vec<Text>) = self.read(call).await?;
        let parse = |text: Text| {
            let mut sale: serde_json::Value = serde_json::from_str(&text.0).ok()?;
            for time in ["began", "ended"] {
                sale[time] = Timestamp(sale[time].as_u64()?).to_string().into();
            }
            Some(sale)
        };
        let kept: Option<Vec<_>> = kept.into_iter().map(parse).collect();
        let mut kept = kept.ok_or_else(|| damaged(format!("{} is not JSON", keys.sales)))?;
        kept.sort_by_key(|sale| sale["ended"].to_string());
        Ok(Sales { running: state(&keys, found)?, kept })
    }

    /// The known items with holds, as far as they were seen here.
    pub fn items_with_holds(&self) -> Vec<Item> {
        self.watermarks.with_holds()
    }

    /// The state of `item`, and at most `most` entries behind `cursor`, or the last ones without a cursor. One
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
        let last = cursor.and_then(|f| f.entry.as_deref()).unwrap_or_default();
        let call = Call::read(&POLL, item, &self.watermarks.of(item));
        let call = call.arg(after).arg(most).arg(last);
        let (found, is_same_ledger, step, mut texts, records): Found = self.read(call).await?;
        let stock = state(&keys, found)?;
        self.levels.note(item, stock.as_ref().map(|stock| (stock.stock, stock.lucky)));
        let stock = stock.ok_or(InventoryError::UnknownItem)?;
        self.watermarks.note_holds(item, stock.terms.hold_seconds.is_some());
        let entries = all(&keys, &texts, records)?;
        let newest = texts.pop().map(|text| text.0);
        Ok(SaleUpdate { stock, is_same_ledger, step, entries, newest })
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

/// Stock, lucky, initial, fence, length of the ledger and name of the sale, unparsed; the numbers of orders and of open
/// holds, and the terms.
type State = (
    (Option<Text>, Option<Text>, Option<Text>, Option<Text>, u64, Option<Text>),
    (u64, u64, Option<Text>),
);

/// What a command that only reads answered.
fn content<T: FromRedisValue>((answer, _): Answers) -> Result<T, InventoryError> {
    redis::from_redis_value(answer).map_err(|error| Effect::Read.failed(error.into()))
}

fn state(keys: &Keys, found: State) -> Result<Option<Stock>, InventoryError> {
    let ((stock, lucky, initial, fence, entries, name), (orders, held, terms)) = found;
    let Some(stock) = number(&keys.stock, stock)? else { return Ok(None) };
    let lucky = number(&keys.lucky, lucky)?.unwrap_or(0);
    let too_large = || damaged(format!("{} and {} are too large", keys.stock, keys.lucky));
    let initial = match number(&keys.initial, initial)? {
        Some(initial) => initial,
        None => stock.checked_add(lucky).ok_or_else(too_large)?,
    };
    let no_fence = || damaged(format!("{} is not a cluster and a revision", keys.fence));
    let fence = fence.map(|text| parse_token(&text.0).ok_or_else(no_fence)).transpose()?;
    let sale = name.and_then(|name| began(&name.0));
    let no_terms = |_| damaged(format!("{} is not JSON", keys.terms));
    let stored = terms.map(|terms| serde_json::from_str::<StoredTerms>(&terms.0).map_err(no_terms));
    let (id, terms) = match stored.transpose()? {
        Some(StoredTerms { id, terms, .. }) => (Some(id), terms),
        None => (sale.map(|began| began.to_string()), Terms::default()),
    };
    Ok(Some(Stock { stock, lucky, initial, fence, orders, entries, held, id, terms, sale }))
}

fn number(key: &str, value: Option<Text>) -> Result<Option<i64>, InventoryError> {
    let no_number = || damaged(format!("{key} is not a whole number from 0"));
    value.map(|text| parse_number(&text.0).ok_or_else(no_number)).transpose()
}

/// An entry of the ledger; an order has a record.
fn accepted(keys: &Keys, entry: &str, record: Option<&Text>) -> Result<Accepted, InventoryError> {
    let accepted = match record {
        Some(record) => Accepted::from_record(entry, &record.0),
        None => Accepted::from_change(entry),
    };
    accepted.ok_or_else(|| damaged(format!("{} has no order under {entry:?}", keys.orders)))
}

fn all(
    keys: &Keys,
    entries: &[Text],
    records: Vec<Option<Text>>,
) -> Result<Vec<Accepted>, InventoryError> {
    let pairs = entries.iter().zip(records);
    pairs.map(|(entry, record)| accepted(keys, &entry.0, record.as_ref())).collect()
}

fn damaged(what: String) -> InventoryError {
    InventoryError::Damaged { what }
}
