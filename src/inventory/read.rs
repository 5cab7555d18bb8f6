//! Reads the stock and the ledger. No read needs the lock.

use std::collections::BTreeMap;
use std::time::Duration;

use fenced_lock::Token;
use futures_util::FutureExt;
use redis::{Cmd, FromRedisValue, ParsingError, Value};
use serde::Deserialize;
use tokio::time::timeout;

use super::connection::Answers;
use super::error::Effect;
use super::script::Call;
use super::stock::{began, parse_token};
use super::terms::StoredTerms;
use super::watermark::Acknowledged;
use super::{
    Accepted, Entry, Event, Inventory, InventoryError, Item, Outcome, Quantity, SaleId, Stock,
    Terms, Timestamp, Units,
};

/// How many items the readiness check probes.
const MAX_CHECKED: usize = 64;

/// How many items have [levels](Inventory::levels): each item is a series of a metric.
const MAX_LEVELS: usize = 100;

/// The longest wait for one shard of a Redis Cluster.
const MAX_PROBE: Duration = Duration::from_secs(1);

/// All data of an item in the store, also after a roll-back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// The state; `None` if there is no stock.
    pub stock: Option<Stock>,
    /// The latest entry of the ledger.
    pub latest: Option<Entry>,
    /// The data that an instance missed in the store, if the sale is stopped because of that.
    pub rollback_detected: Option<String>,
}

/// A position in a ledger, from which to read on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerPosition {
    /// The sale of the ledger; `None`: the running one.
    pub sale: Option<SaleId>,
    /// The [name](LedgerPage::name) of the ledger to which the position belongs, if it is known.
    pub of: Option<String>,
    /// How many entries were read already.
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
    /// The name of the ledger, which makes positions in it unambiguous: the sale's id, with an addition after a loss of
    /// entries was accepted.
    pub name: String,
    /// The entries, in order.
    pub entries: Vec<Entry>,
}

/// The units that can be bought.
#[derive(Clone, Debug)]
pub struct Available {
    /// The units left.
    pub stock: i64,
    /// Whether the time of some holds is over: the next batch brings their units back.
    pub is_due: bool,
    /// The most units that one order may take.
    pub per_order: Option<u32>,
    /// The units that are held, unless there are none or the time of some holds is over.
    pub held: Option<Held>,
    /// The refusal of all new orders, if the sale has not started, is paused or has ended.
    pub closed: Option<Outcome>,
}

/// The units that are held.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// How many. `None` until the next batch counts the orders that an instance of the previous version accepted.
    pub units: Option<i64>,
    /// The time until the first hold ends, by Redis' clock.
    pub ends_in: Duration,
    /// How long holds last, in seconds.
    pub hold_seconds: u32,
}

impl Available {
    /// The outcome of an order of this many units, if fewer are left.
    pub(crate) fn too_few_for(&self, quantity: Quantity) -> Outcome {
        let remaining = u64::try_from(self.stock).unwrap_or(0);
        let missing = i64::from(quantity.get()) - self.stock;
        match self.held.filter(|held| held.units.is_none_or(|units| units >= missing)) {
            Some(Held { ends_in, hold_seconds, .. }) => {
                Outcome::AllHeld { remaining, ends_in, hold_seconds }
            }
            None => Outcome::SoldOut { remaining },
        }
    }
}

/// The result of looking up some orders at one moment.
#[derive(Debug)]
pub struct Lookup {
    /// The units that can be bought.
    pub available: Available,
    /// The id of the sale.
    pub sale: String,
    /// For each key the accepted order with its latest event, if there is one. A damaged record affects its order alone.
    pub orders: Vec<Result<Option<Accepted>, InventoryError>>,
}

/// The sales of an item.
#[derive(Clone, Debug, PartialEq)]
pub struct Sales {
    /// The running sale.
    pub running: Option<Stock>,
    /// The sales that were replaced, oldest first: id, times, final numbers, terms.
    pub kept: Vec<serde_json::Value>,
}

impl Inventory {
    /// The most entries in one page of the ledger.
    pub const MAX_PAGE: u32 = 1000;

    /// The state of `item` at one moment. A stock set by hand has no `initial` before its first batch: then `initial`
    /// is the sum of `stock` and `lucky`.
    ///
    /// # Errors
    /// See [`InventoryError`]; always [`nothing_written`](InventoryError::nothing_written).
    pub async fn stock(&self, item: &Item) -> Result<Stock, InventoryError> {
        let call = Call::read("stock", item, &self.watermarks.of(item));
        let stock = state(item, self.read(call).await?)?.ok_or(InventoryError::UnknownItem)?;
        let held = i64::try_from(stock.held).unwrap_or(i64::MAX);
        self.watermarks.note_level(item, [stock.stock, stock.lucky, held]);
        Ok(stock)
    }

    /// All data of `item` in the store, for an operator who decides about a roll-back. Watermarks are not compared.
    ///
    /// # Errors
    /// See [`InventoryError`].
    pub async fn inspect(&self, item: &Item) -> Result<Inspection, InventoryError> {
        let call = Call::read("inspect", item, &self.watermarks.of(item));
        let (found, entries, rollback_detected): (State, Entries, _) = self.read(call).await?;
        let latest = all(item, &entries)?.pop();
        Ok(Inspection { stock: state(item, found)?, latest, rollback_detected })
    }

    /// Whether the store has a key of `item`: a cheap read, for names that a client may have made up.
    ///
    /// # Errors
    /// See [`InventoryError`].
    pub async fn exists(&self, item: &Item) -> Result<bool, InventoryError> {
        let exists: u64 = self.read_by(item, redis::cmd("EXISTS").arg(&item.keys())).await?;
        Ok(exists > 0)
    }

    /// The units of `item` left: the cheapest read. It compares no watermark, so the store may have been rolled back.
    ///
    /// # Errors
    /// [`InventoryError::UnknownItem`] if there is no such key, which does not mean zero. See [`InventoryError`] for the rest.
    pub async fn available(&self, item: &Item) -> Result<i64, InventoryError> {
        let stock: Option<u64> =
            self.read_by(item, redis::cmd("GET").arg(item.key("stock"))).await?;
        stock.map(u64::cast_signed).ok_or(InventoryError::UnknownItem)
    }

    async fn read_by<T: FromRedisValue>(
        &self,
        item: &Item,
        command: &Cmd,
    ) -> Result<T, InventoryError> {
        let answer = self.shards.send(item, command, None).await?;
        content(answer.map_err(|error| Effect::Read.failed(error))?)
    }

    /// Up to `limit` entries of a ledger after a position, in order. The limit is raised to 1, or lowered to
    /// [`MAX_PAGE`](Self::MAX_PAGE). A page has fewer entries only at the end of the ledger.
    ///
    /// # Errors
    /// See [`InventoryError`]; [`InventoryError::SaleRefused`] for a position of another sale or behind the end.
    pub async fn ledger(
        &self,
        item: &Item,
        from: impl Into<LedgerPosition>,
        limit: u32,
    ) -> Result<LedgerPage, InventoryError> {
        let LedgerPosition { sale, of, after } = from.into();
        let limit = limit.clamp(1, Self::MAX_PAGE);
        // no ledger is longer, and Redis refuses some larger numbers
        let first = after.min(u64::from(u32::MAX));
        let last = first + u64::from(limit) - 1;
        let sale = sale.as_ref().map_or("", SaleId::as_str);
        let call = Call::read("ledger", item, &self.watermarks.of(item));
        let call = call.arg(first).arg(last).arg(sale).arg(of.unwrap_or_default());
        let (sale, name, found) = self.read(call).await?;
        Ok(LedgerPage { sale, name, entries: all(item, &found)? })
    }

    /// The available units of `item`, and the accepted order of each of these [keys](super::Order::key), if there is
    /// one, at one moment. There must be at least one key and at most [`MAX_BATCH`](Self::MAX_BATCH).
    ///
    /// # Errors
    /// See [`available`](Self::available).
    pub async fn look_up(&self, item: &Item, keys: &[String]) -> Result<Lookup, InventoryError> {
        type Held = (Option<i64>, u64, u32);
        type Left = (i64, bool, Option<u32>, Option<Held>, Option<String>);
        type Found = (Left, Option<String>, Option<String>, String, Records, Records);
        let sent = self.watermarks.of(item);
        let found: Found = self.read(Call::read("lookup", item, &sent).arg(keys)).await?;
        let (available, name, fence, sale, records, changes) = found;
        let found = keys.iter().zip(records.into_iter().zip(changes));
        let found = found.map(|(key, (record, change))| looked_up(item, key, record, change));
        let (orders, entries): (Vec<_>, Vec<_>) = found.unzip();
        let latest = entries.into_iter().flatten().max_by_key(|entry| entry.position);
        // a write may still wait for replicas: to show its order does not acknowledge it
        if latest.is_some()
            && self.replicas().is_none()
            && let Some(name) = name
        {
            let fence = fence.as_deref().and_then(parse_token);
            self.watermarks.raise(item, &sent, fence, &name, latest);
        }
        let (stock, is_due, per_order, held, closed) = available;
        let held = held.map(|(units, micros, hold_seconds)| self::Held {
            units,
            ends_in: Duration::from_micros(micros),
            hold_seconds,
        });
        let closed = closed.as_deref().and_then(Outcome::of_closed);
        let available = Available { stock, is_due, per_order, held, closed };
        Ok(Lookup { available, sale, orders })
    }

    /// The running sale of `item`, and the sales that were replaced.
    ///
    /// # Errors
    /// See [`InventoryError`].
    pub async fn sales(&self, item: &Item) -> Result<Sales, InventoryError> {
        let call = Call::read("sales", item, &self.watermarks.of(item));
        let (found, kept): (State, Vec<String>) = self.read(call).await?;
        let parse = |text: String| {
            let mut sale: serde_json::Value = serde_json::from_str(&text).ok()?;
            sale.as_object_mut()?.remove("ledger");
            if let Ok(stored) = StoredTerms::deserialize(&sale["terms"]) {
                sale["terms"] = serde_json::to_value(stored.terms()).ok()?;
                sale["paused"] = stored.paused.into();
                sale["version"] = stored.version.into();
            }
            for time in ["began", "ended"] {
                sale[time] = Timestamp::new(sale[time].as_u64()?)?.to_string().into();
            }
            Some(sale)
        };
        let kept: Option<Vec<_>> = kept.into_iter().map(parse).collect();
        let damaged =
            || InventoryError::damaged(format!("{} is not understood", item.key("sales")));
        let mut kept = kept.ok_or_else(damaged)?;
        kept.sort_by_key(|sale| sale["ended"].to_string());
        Ok(Sales { running: state(item, found)?, kept })
    }

    /// The known items whose sales have holds, as this instance last saw them.
    pub fn items_with_holds(&self) -> Vec<Item> {
        self.watermarks.with_holds()
    }

    /// Probes up to 64 known items, or the default item if none is known: whether the store answers, has room and lets
    /// this user write, the data is undamaged and not below the watermark, and the fence is of the cluster of `token`.
    /// Succeeds if some item can be sold or has no sale. A Redis Cluster without known items is [pinged](Self::ping).
    ///
    /// # Errors
    /// The first error if every item has one. Except in a Redis Cluster, also any error that a retry can mend: such an
    /// error concerns the whole store.
    pub async fn check(&self, token: Option<Token>) -> Result<(), (Item, InventoryError)> {
        let items = self.known_items(MAX_CHECKED);
        let is_cluster = self.shards.is_cluster();
        if is_cluster && items == [Item::DEFAULT] {
            return self.ping().await.map_err(|error| (Item::DEFAULT, error));
        }
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
                // the store is away, is a replica, or has no room
                Err(error) if error.is_retryable() && !is_cluster => return Err((item, error)),
                Err(error) => {
                    first_error.get_or_insert((item, error));
                }
            }
        }
        first_error.filter(|_| !is_some_fine).map_or(Ok(()), Err)
    }

    /// Up to `most` known items: those of earlier calls, or else the default item.
    pub fn known_items(&self, most: usize) -> Vec<Item> {
        let items = self.watermarks.items(most);
        if items.is_empty() { vec![Item::DEFAULT] } else { items }
    }

    /// Stock, lucky and open holds of up to 100 items, by the latest readiness check or read of their state.
    pub fn levels(&self) -> BTreeMap<Item, [i64; 3]> {
        self.watermarks.levels().into_iter().take(MAX_LEVELS).collect()
    }

    /// For how many known items the store was rolled back.
    pub fn rolled_back_items(&self) -> usize {
        self.watermarks.rolled_back()
    }

    async fn read<T: FromRedisValue>(&self, call: Call<'_>) -> Result<T, InventoryError> {
        let answer = call.send(&self.shards, None).await;
        let (has_holds, found) = content(self.watermarks.note(call.item, answer)?)?;
        // a reader may wait for the end of a hold, so this instance must end it
        self.watermarks.note_holds(call.item, has_holds);
        Ok(found)
    }

    /// Whether the store answers. In a Redis Cluster, whether any primary answers.
    ///
    /// # Errors
    /// [`InventoryError::Unreachable`], or [`InventoryError::Refused`] while the store loads its data.
    pub async fn ping(&self) -> Result<(), InventoryError> {
        let ping = redis::cmd("PING");
        let servers = self.shards.all().await?;
        let pings = servers.iter().map(|server| server.query(&ping, Effect::Read).boxed());
        futures_util::future::select_ok(pings).await.map(|((), _)| ())
    }
}

/// A text in the store. If it is not UTF-8, it reads as empty; a valid text is never empty.
pub(super) struct Text(pub(super) String);

impl FromRedisValue for Text {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let bytes: Vec<u8> = redis::from_redis_value(value)?;
        Ok(Self(String::from_utf8(bytes).unwrap_or_default()))
    }
}

/// Stock, lucky, initial, fence, name of the sale and terms; length of the ledger, numbers of orders and of open holds,
/// held units; the time.
pub(super) type State = (
    Option<i64>,
    i64,
    i64,
    Option<String>,
    Option<String>,
    Option<String>,
    u64,
    u64,
    u64,
    Option<i64>,
    u64,
);

/// Entries of a ledger, and the records of those entries that are orders.
type Entries = (Vec<Text>, Records);

type Records = Vec<Option<Text>>;

/// The answer to a command that only reads.
fn content<T: FromRedisValue>((answer, _): Answers) -> Result<T, InventoryError> {
    redis::from_redis_value(answer).map_err(|error| InventoryError::damaged(error.to_string()))
}

pub(super) fn state(item: &Item, found: State) -> Result<Option<Stock>, InventoryError> {
    let (stock, lucky, initial, fence, name, terms, entries, orders, held, held_units, now) = found;
    let Some(stock) = stock else { return Ok(None) };
    let fence = fence.as_deref().and_then(parse_token);
    let sale = name.as_deref().and_then(began);
    let stored = terms.map(|text| serde_json::from_str::<StoredTerms>(&text)).transpose();
    let (id, terms, paused, version) = match stored {
        Ok(Some(stored)) => {
            (Some(stored.id.clone()), stored.terms(), stored.paused, stored.version)
        }
        Ok(None) => (sale.map(|began| began.to_string()), Terms::default(), false, 0),
        Err(error) => {
            let what = format!("{} is not understood: {error}", item.key("terms"));
            return Err(InventoryError::damaged(what));
        }
    };
    let units = Units { held: held_units, confirmed: held_units.map(|held| lucky - held) };
    let state = terms.phase(now, paused, stock > 0, held > 0);
    let stock = Stock {
        stock,
        lucky,
        initial,
        fence,
        orders,
        entries,
        held,
        units,
        state,
        id,
        terms,
        paused,
        version,
        sale,
    };
    Ok(Some(stock))
}

/// An entry of the ledger: its text, or the key of an order and its record.
fn parsed(item: &Item, entry: &str, record: Option<&Text>) -> Result<Entry, InventoryError> {
    Entry::parse(entry, record.map_or(entry, |record| &record.0))
        .ok_or_else(|| no_order(item, entry))
}

fn no_order(item: &Item, key: &str) -> InventoryError {
    InventoryError::damaged(format!("{} has no order under {key:?}", item.key("orders")))
}

fn all(item: &Item, (entries, records): &Entries) -> Result<Vec<Entry>, InventoryError> {
    let pairs = entries.iter().zip(records);
    pairs.map(|(entry, record)| parsed(item, &entry.0, record.as_ref())).collect()
}

/// The order of this key with its latest event, and the entry about that event.
fn looked_up(
    item: &Item,
    key: &str,
    record: Option<Text>,
    change: Option<Text>,
) -> (Result<Option<Accepted>, InventoryError>, Option<Acknowledged>) {
    let Some(record) = record else { return (Ok(None), None) };
    let Some(mut order) = Accepted::parse(key, &record.0) else {
        return (Err(no_order(item, key)), None);
    };
    let (mut position, mut entry) = (order.position, record.0);
    if let Some(text) = change
        && let Some(change) = Accepted::parse(key, &text.0)
    {
        let ended_at = order.hold_until.filter(|_| change.event == Event::Expired);
        (order.event, order.changed) = (change.event, ended_at.or(Some(change.time)));
        (position, entry) = (change.position, text.0);
    }
    let key = order.field(key);
    (Ok(Some(order)), Some(Acknowledged { position, key, entry }))
}
