//! Following a sale at a bounded cost, for somebody who watches.

use std::sync::LazyLock;

use super::connection::Effect;
use super::read::{State, Text, accepted, parse_stock};
use super::script::Script;
use super::{Accepted, Inventory, InventoryError, Item, Keys, OrderId, Stock};

/// The state, and what the ledger has behind a position, evenly thinned out to a given number and with
/// the newest among them. `LINDEX` finds a place near the end of a list at once.
static GLANCE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "#!lua flags=no-writes
        local function get(i) return redis.call('GET', KEYS[i]) end
        local length = redis.call('LLEN', KEYS[5])
        local after, most, last = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
        local known = after <= length
        if known and after > 0 and last ~= '' then
          known = redis.call('LINDEX', KEYS[5], after - 1) == last
        end
        if not known then after = 0 end
        if after < 0 then after = math.max(length - most, 0) end
        local step, ids, records = 1, {}, {}
        if most > 0 and length > after then
          step = math.ceil((length - after) / most)
          if step == 1 then
            ids = redis.call('LRANGE', KEYS[5], after, -1)
          else
            for i = length - 1, after, -step do
              table.insert(ids, 1, redis.call('LINDEX', KEYS[5], i))
            end
          end
          records = redis.call('HMGET', KEYS[4], unpack(ids))
        end
        return {{get(1), get(2), get(3), get(6), length}, known and 1 or 0, step, ids, records}",
    )
});

/// How far somebody has followed the ledger: a position, and the order there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Followed {
    /// The position.
    pub position: u64,
    /// The order there; `None` at position 0.
    pub order: Option<OrderId>,
}

/// What a sale looks like at one moment, and what is new in it.
#[derive(Clone, Debug)]
pub struct Glance {
    /// The state.
    pub stock: Stock,
    /// Whether the ledger is still the one that was followed. If not, a sale was started afresh, or the
    /// store was put back to an earlier state, and what is new counts from the first order.
    pub is_same_ledger: bool,
    /// For how many orders of the ledger each of `orders` stands, itself included: 1 if they are all.
    pub step: u64,
    /// What is new, in order of acceptance; every `step`th up to the newest.
    pub orders: Vec<Accepted>,
}

impl Inventory {
    /// The state of `item` and at most `most` of the orders behind `followed`; without that, the last
    /// ones. One command, whatever happened meanwhile; `most` is at most
    /// [`MAX_PAGE`](Self::MAX_PAGE).
    ///
    /// # Errors
    /// See [`InventoryError`].
    pub async fn glance(
        &self,
        item: &Item,
        followed: Option<&Followed>,
        most: u32,
    ) -> Result<Glance, InventoryError> {
        let keys = Keys::of(item);
        let most = most.min(Self::MAX_PAGE);
        let after = followed.map_or(-1, |f| i64::try_from(f.position).unwrap_or(i64::MAX));
        let last = followed.and_then(|f| f.order.as_ref()).map_or("", OrderId::as_str);
        let arguments = |command: &mut redis::Cmd| {
            command.arg(after).arg(most).arg(last);
        };
        let answer = GLANCE.call(&self.connection, Effect::Read, &keys.all(), arguments).await?;
        let (state, is_same_ledger, step, ids, records): (
            State,
            bool,
            u64,
            Vec<Text>,
            Vec<Option<Text>>,
        ) = redis::from_redis_value(answer).map_err(|error| InventoryError::read(error.into()))?;
        let stock = parse_stock(&keys, state)?;
        let orders =
            ids.iter().zip(&records).map(|(id, record)| accepted(&keys, id, record.as_deref()));
        Ok(Glance { stock, is_same_ledger, step, orders: orders.collect::<Result<_, _>>()? })
    }
}
