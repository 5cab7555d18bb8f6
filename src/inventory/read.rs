//! Reading the stock and the ledger. Nothing here needs the lock.

use std::sync::LazyLock;

use redis::Value;

use super::connection::Effect;
use super::record::{parse_fence, parse_number, parse_record};
use super::script::Script;
use super::{Accepted, Inventory, InventoryError, Item, Keys, OrderId, Stock};

/// All of an item's state at one moment. As a script rather than a transaction: one command, and a
/// key of another type is an error instead of a nil.
pub(super) static STOCK: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "#!lua flags=no-writes
        local function get(i) return redis.call('GET', KEYS[i]) end
        return {get(1), get(2), get(3), get(6), redis.call('LLEN', KEYS[5])}",
    )
});

/// One page of the ledger, ids and records in turn, at one moment: a fresh start cannot come between.
pub(super) static LEDGER: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "#!lua flags=no-writes
        if redis.call('EXISTS', KEYS[1]) == 0 then return false end
        local ids = redis.call('LRANGE', KEYS[5], ARGV[1], ARGV[2])
        if #ids == 0 then return {} end
        return {ids, redis.call('HMGET', KEYS[4], unpack(ids))}",
    )
});

/// The stock and one order's record, at one moment.
pub(super) static LOOK: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "#!lua flags=no-writes
        return {redis.call('GET', KEYS[1]), redis.call('HGET', KEYS[2], ARGV[1])}",
    )
});

impl Inventory {
    /// The most orders that one page of the ledger has.
    pub const MAX_PAGE: u32 = 1000;

    /// The state of `item`, read at one moment. A stock set by hand has no `initial` until its first
    /// batch: until then it is what the two counters add up to.
    ///
    /// # Errors
    /// See [`InventoryError`]; always [`nothing_written`](InventoryError::nothing_written).
    pub async fn stock(&self, item: &Item) -> Result<Stock, InventoryError> {
        let keys = Keys::of(item);
        let answer = STOCK.call(&self.connection, Effect::Read, &keys.all(), |_| ()).await?;
        let state =
            redis::from_redis_value(answer).map_err(|error| InventoryError::read(error.into()))?;
        parse_stock(&keys, state)
    }

    /// The units of `item` not yet sold: the cheapest read there is. If it shows less than an order
    /// asks for, that order is sold out at this moment, whoever holds the lock.
    ///
    /// # Errors
    /// [`InventoryError::UnknownItem`] if there is no such key: that is not zero. See
    /// [`InventoryError`] for the rest.
    pub async fn available(&self, item: &Item) -> Result<i64, InventoryError> {
        let keys = Keys::of(item);
        let mut get = redis::cmd("GET");
        let stock = self.connection.query(get.arg(&keys.stock), Effect::Read).await?;
        number(&keys.stock, stock)?.ok_or(InventoryError::UnknownItem)
    }

    /// Up to `limit` orders of the ledger behind position `after` (0: from the first), in the order
    /// of acceptance. At most [`MAX_PAGE`](Self::MAX_PAGE), whatever the limit; fewer than asked for
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
        let limit = limit.min(Self::MAX_PAGE);
        // No ledger is as long as this; beyond it, Redis would refuse the number.
        let first = i64::try_from(after).unwrap_or(i64::MAX).min(i64::MAX - i64::from(limit));
        // The last index is inclusive, and -1 would mean the end of the list: for a limit of 0 only
        // the item's existence matters, so any empty range will do.
        let last = if limit == 0 { None } else { Some(first + i64::from(limit) - 1) };
        let answer = LEDGER
            .call(&self.connection, Effect::Read, &keys.all(), |command| {
                let (first, last) = last.map_or((1, 0), |last| (first, last));
                command.arg(first).arg(last);
            })
            .await?;
        if answer == Value::Nil {
            return Err(InventoryError::UnknownItem);
        }
        if matches!(&answer, Value::Array(page) if page.is_empty()) {
            return Ok(Vec::new());
        }
        let (ids, records): (Vec<Text>, Vec<Option<Text>>) =
            redis::from_redis_value(answer).map_err(|error| InventoryError::read(error.into()))?;
        ids.iter()
            .zip(&records)
            .map(|(id, record)| accepted(&keys, id, record.as_deref()))
            .collect()
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
        self.look(item, id).await.map(|(_, order)| order)
    }

    /// The units of `item` not yet sold, and the accepted order of this id, if there is one, at one
    /// moment.
    ///
    /// # Errors
    /// See [`available`](Self::available) and [`order`](Self::order).
    pub async fn look(
        &self,
        item: &Item,
        id: &OrderId,
    ) -> Result<(i64, Option<Accepted>), InventoryError> {
        let keys = Keys::of(item);
        let keys_read = [keys.stock.as_str(), keys.orders.as_str()];
        let id_argument = |command: &mut redis::Cmd| {
            command.arg(id.as_str());
        };
        let answer = LOOK.call(&self.connection, Effect::Read, &keys_read, id_argument).await?;
        let (stock, record): (Option<Text>, Option<Text>) =
            redis::from_redis_value(answer).map_err(|error| InventoryError::read(error.into()))?;
        let stock = number(&keys.stock, stock)?.ok_or(InventoryError::UnknownItem)?;
        let first = record.map(|record| accepted(&keys, id.as_str().as_bytes(), Some(&record)));
        Ok((stock, first.transpose()?))
    }

    /// Whether the store answers.
    ///
    /// # Errors
    /// [`InventoryError::Unreachable`], or [`InventoryError::Refused`] while it loads its data.
    pub async fn ping(&self) -> Result<(), InventoryError> {
        self.connection.query(&redis::cmd("PING"), Effect::Read).await
    }
}

/// Whatever bytes somebody may have put there: only what parses is shown.
pub(super) type Text = Vec<u8>;

/// Stock, lucky, initial, fence and the length of the ledger, as they are read.
pub(super) type State = (Option<Text>, Option<Text>, Option<Text>, Option<Text>, u64);

pub(super) fn parse_stock(keys: &Keys, state: State) -> Result<Stock, InventoryError> {
    let (stock, lucky, initial, fence, orders) = state;
    let stock = number(&keys.stock, stock)?.ok_or(InventoryError::UnknownItem)?;
    let lucky = number(&keys.lucky, lucky)?.unwrap_or(0);
    let initial = match number(&keys.initial, initial)? {
        Some(initial) => initial,
        None => stock.checked_add(lucky).ok_or_else(|| InventoryError::Damaged {
            what: format!("{} and {} are too large", keys.stock, keys.lucky),
        })?,
    };
    let damaged = || InventoryError::Damaged {
        what: format!("{} is not a cluster and a revision", keys.fence),
    };
    let fence = fence
        .map(|text| std::str::from_utf8(&text).ok().and_then(parse_fence).ok_or_else(damaged))
        .transpose()?;
    Ok(Stock { stock, lucky, initial, fence, orders })
}

fn number(key: &str, value: Option<Text>) -> Result<Option<i64>, InventoryError> {
    let damaged = || InventoryError::Damaged { what: format!("{key} is not a whole number") };
    value
        .map(|text| std::str::from_utf8(&text).ok().and_then(parse_number).ok_or_else(damaged))
        .transpose()
}

pub(super) fn accepted(
    keys: &Keys,
    id: &[u8],
    record: Option<&[u8]>,
) -> Result<Accepted, InventoryError> {
    let parse = || {
        let (id, record) = (std::str::from_utf8(id).ok()?, std::str::from_utf8(record?).ok()?);
        parse_record(id, record)
    };
    parse().ok_or_else(|| InventoryError::Damaged {
        what: format!("{} has no order under {}", keys.orders, String::from_utf8_lossy(id)),
    })
}
