//! The write without the [fence](crate::safeguard::Safeguard::Fence): read, decide, write, and no token is
//! compared. The write is one step, so that no reader sees half of it.
//!
//! It is correct as long as no holder is paused beyond its lease. A holder that was goes on with what it read
//! before, and undoes what the next one sold.

use fenced_lock::Token;
use flash_sale::inventory::{
    Accepted, Batch, Inventory, InventoryError, Keys, Order, OrderId, Outcome,
};

use crate::baselines::naive::without_place;
use crate::fault::{self, Point};

/// Writes what was decided, whatever was sold meanwhile, and returns the length of the ledger.
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

/// As [`Inventory::reduce`], with only the lock to keep its steps together.
pub(super) async fn reduce(
    inventory: &Inventory,
    Batch { item, instance, orders, .. }: Batch<'_>,
    token: Token,
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
    // orders that come twice in one batch: the index of each, and of the first
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

/// Whether the order of this id was accepted in this batch.
fn is_new(outcome: &Outcome, id: &OrderId) -> bool {
    matches!(outcome, Outcome::Reserved(accepted) if accepted.position == 0 && accepted.order == *id)
}

/// The earlier answer to each order, if there is one.
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

/// Writes what was decided, and sets the positions of the new orders.
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
