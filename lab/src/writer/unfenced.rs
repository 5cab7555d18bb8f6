//! The write of a program that trusts the lock alone: look, decide, write, and no token is compared. All is
//! written at one moment, so that no reader sees the half of it: what is missing here is the fence alone.
//!
//! It is right as long as no holder is paused for longer than its lease. One that was goes on with what
//! it saw before, and undoes what the next one sold. [`Safeguard::Fence`](crate::safeguard::Safeguard) switches it on.

use fenced_lock::Token;
use flash_sale::inventory::{
    Accepted, Inventory, InventoryError, Item, Keys, Order, OrderId, Outcome,
};

use crate::baselines::naive::without_place;
use crate::fault::{self, Point};

/// Writes what was decided before, whatever was sold meanwhile; returns the length of the ledger.
///
/// KEYS: stock, lucky, orders, ledger. ARGV: the stock, the units sold, then for each order its id and its
/// record from the quantity on.
const WRITE: &str = "#!lua
local STOCK, LUCKY, ORDERS, LEDGER = unpack(KEYS)
redis.call('SET', STOCK, ARGV[1])
redis.call('INCRBY', LUCKY, ARGV[2])
local position = redis.call('LLEN', LEDGER)
for i = 3, #ARGV, 2 do
  position = position + 1
  redis.call('HSET', ORDERS, ARGV[i], string.format('%.0f', position) .. '\\t' .. ARGV[i + 1])
  redis.call('RPUSH', LEDGER, ARGV[i])
end
return position";

/// As [`Inventory::reduce`], with nothing but the lock to keep its steps together.
pub(super) async fn reduce(
    inventory: &Inventory,
    item: &Item,
    token: Token,
    instance: &str,
    orders: &[&Order],
    has_ids: bool,
) -> Result<Vec<Outcome>, InventoryError> {
    let keys = Keys::of(item);
    let seen = inventory.available(item).await?;
    let known = if has_ids {
        known(inventory, &keys, orders).await?
    } else {
        orders.iter().map(|_| None).collect()
    };
    fault::at(Point::BeforeWrite).await;

    let mut stock = u64::try_from(seen).unwrap_or(0);
    let mut sold = 0;
    let mut outcomes: Vec<Outcome> = Vec::with_capacity(orders.len());
    // an order that comes twice in one batch: its place, and that of the first
    let mut repeated = Vec::new();
    for (order, known) in orders.iter().zip(known) {
        let units = u64::from(order.quantity.get());
        if has_ids
            && let Some(first) = outcomes.iter().position(|outcome| is_new(outcome, &order.id))
        {
            repeated.push((outcomes.len(), first));
        }
        outcomes.push(match known {
            Some(first) if first.is_repeated_by(order) => Outcome::Reserved(first),
            Some(_) => Outcome::Conflict,
            None if repeated.last().is_some_and(|(place, _)| *place == outcomes.len()) => {
                Outcome::Conflict
            }
            None if units > stock => Outcome::SoldOut { remaining: stock },
            None => {
                stock -= units;
                sold += units;
                Outcome::Reserved(without_place(order, stock, instance, Some(token)))
            }
        });
    }
    if sold > 0 {
        fault::once_sent(write(inventory, &keys, stock, sold, &mut outcomes)).await?;
    }
    fault::at(Point::AfterAnswer).await;
    for (place, first) in repeated {
        let (order, first) = (orders[place], outcomes[first].clone());
        if matches!(&first, Outcome::Reserved(accepted) if accepted.is_repeated_by(order)) {
            outcomes[place] = first;
        }
    }
    Ok(outcomes)
}

/// Whether it is the order of this id, accepted in this batch.
fn is_new(outcome: &Outcome, id: &OrderId) -> bool {
    matches!(outcome, Outcome::Reserved(accepted) if accepted.position == 0 && accepted.order == *id)
}

/// What each order was answered before, if it was.
async fn known(
    inventory: &Inventory,
    keys: &Keys,
    orders: &[&Order],
) -> Result<Vec<Option<Accepted>>, InventoryError> {
    let ids: Vec<&OrderId> = orders.iter().map(|order| &order.id).collect();
    let mut get = redis::cmd("HMGET");
    get.arg(&keys.orders);
    for id in &ids {
        get.arg(id.as_str());
    }
    let records = inventory.command(&get).await.map_err(|error| match error {
        // a read writes nothing
        InventoryError::Unanswered { source } => InventoryError::Unreachable { source },
        error => error,
    });
    let records: Vec<Option<String>> = records?;
    let parse = |(id, record): (&&OrderId, Option<String>)| {
        let Some(record) = record else { return Ok(None) };
        let damaged = || InventoryError::Damaged {
            what: format!("{} has no order under {}", keys.orders, id.as_str()),
        };
        Accepted::from_record(id.as_str(), &record).map(Some).ok_or_else(damaged)
    };
    ids.iter().zip(records).map(parse).collect()
}

/// Writes what was decided, and gives the new orders their places.
async fn write(
    inventory: &Inventory,
    keys: &Keys,
    stock: u64,
    sold: u64,
    outcomes: &mut [Outcome],
) -> Result<(), InventoryError> {
    let mut new: Vec<&mut Accepted> = outcomes
        .iter_mut()
        .filter_map(|outcome| match outcome {
            Outcome::Reserved(accepted) if accepted.position == 0 => Some(accepted),
            _ => None,
        })
        .collect();
    let mut write = redis::cmd("EVAL");
    write.arg(WRITE).arg(4).arg(&[&keys.stock, &keys.lucky, &keys.orders, &keys.ledger]);
    write.arg(stock).arg(sold);
    for accepted in &new {
        let record = accepted.record();
        // the script puts the position in front
        let record = record.split_once('\t').map_or("", |(_, record)| record);
        write.arg(accepted.order.as_str()).arg(record);
    }
    let length: u64 = inventory.command(&write).await?;
    let first = length.saturating_sub(u64::try_from(new.len()).unwrap_or(0));
    for (position, accepted) in (first + 1..).zip(&mut new) {
        accepted.position = position;
    }
    Ok(())
}
