//! Following a sale at a bounded cost, for those who watch.

use super::read::{GLANCE, State, Text, accepted, parse_stock};
use super::{Accepted, Inventory, InventoryError, Item, Keys, OrderId, Stock};

/// How far the ledger was followed: a position, and the order there.
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
        let answer = self.read(item, &GLANCE, arguments).await?;
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
