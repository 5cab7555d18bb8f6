//! What somebody writes who trusts the lock alone: look, decide, write, in single commands, and no token
//! is compared.
//!
//! It is right as long as no holder is paused for longer than its lease. One that was goes on with what
//! it saw before, and undoes what the next one sold. [`Defence::Fence`] switches it on, to show that.

use std::borrow::Borrow;

use redis::Cmd;

use super::connection::Effect;
use super::record::{parse_record, token_text};
use super::{Accepted, Inventory, InventoryError, Item, Keys, Order, OrderId, Outcome};
use crate::defence::Defence;
use crate::fault::{self, Point};
use crate::lock::Token;

/// As [`Inventory::reduce`], with nothing but the lock to keep its steps together.
pub(super) async fn reduce(
    inventory: &Inventory,
    item: &Item,
    token: Token,
    instance: &str,
    orders: &[impl Borrow<Order>],
) -> Result<Vec<Outcome>, InventoryError> {
    let keys = Keys::of(item);
    let seen = inventory.available(item).await?;
    let known = known(inventory, &keys, orders).await?;
    fault::at(Point::BeforeWrite).await;

    let mut stock = u64::try_from(seen).unwrap_or(0);
    let mut sold = 0;
    let mut outcomes: Vec<Outcome> = Vec::with_capacity(orders.len());
    // an order that comes twice in one batch: its place, and that of the first
    let mut repeated = Vec::new();
    for (order, known) in orders.iter().map(Borrow::borrow).zip(known) {
        let units = u64::from(order.quantity.get());
        if Defence::OrderIds.is_on()
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
                Outcome::Reserved(Accepted::without_place(order, stock, instance, Some(token)))
            }
        });
    }
    if sold > 0 {
        let mut set = redis::cmd("SET");
        let set = write(inventory, set.arg(&keys.stock).arg(stock));
        let _: () = fault::once_sent(set).await?;
        fault::at(Point::BetweenWrites).await;
        // the stock is written: from here on nobody can say that nothing was
        let rest = finish(inventory, &keys, &mut outcomes, sold).await;
        rest.map_err(|error| match error {
            InventoryError::Unreachable { source } | InventoryError::Refused { source } => {
                InventoryError::Unanswered { source }
            }
            error => error,
        })?;
    }
    fault::at(Point::AfterAnswer).await;
    for (place, first) in repeated {
        let (order, first) = (orders[place].borrow(), outcomes[first].clone());
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
    orders: &[impl Borrow<Order>],
) -> Result<Vec<Option<Accepted>>, InventoryError> {
    if !Defence::OrderIds.is_on() {
        return Ok(orders.iter().map(|_| None).collect());
    }
    let ids: Vec<&OrderId> = orders.iter().map(|order| &order.borrow().id).collect();
    let mut get = redis::cmd("HMGET");
    get.arg(&keys.orders);
    for id in &ids {
        get.arg(id.as_str());
    }
    let records: Vec<Option<String>> = inventory.connection.query(&get, Effect::Read).await?;
    let parse = |(id, record): (&&OrderId, Option<String>)| {
        let Some(record) = record else { return Ok(None) };
        let damaged = || InventoryError::Damaged {
            what: format!("{} has no order under {}", keys.orders, id.as_str()),
        };
        parse_record(id.as_str(), &record).map(Some).ok_or_else(damaged)
    };
    ids.iter().zip(records).map(parse).collect()
}

/// Writes everything but the stock.
async fn finish(
    inventory: &Inventory,
    keys: &Keys,
    outcomes: &mut [Outcome],
    sold: u64,
) -> Result<(), InventoryError> {
    let mut add = redis::cmd("INCRBY");
    let _: i64 = write(inventory, add.arg(&keys.lucky).arg(sold)).await?;
    let mut new: Vec<&mut Accepted> = outcomes
        .iter_mut()
        .filter_map(|outcome| match outcome {
            Outcome::Reserved(accepted) if accepted.position == 0 => Some(accepted),
            _ => None,
        })
        .collect();
    let mut push = redis::cmd("RPUSH");
    push.arg(&keys.ledger);
    for accepted in &new {
        push.arg(accepted.order.as_str());
    }
    let length: u64 = write(inventory, &push).await?;
    let mut record = redis::cmd("HSET");
    record.arg(&keys.orders);
    let first = length.saturating_sub(u64::try_from(new.len()).unwrap_or(0));
    for (position, accepted) in (first + 1..).zip(&mut new) {
        accepted.position = position;
        let Accepted { quantity, remaining, instance, user, .. } = &**accepted;
        let token = token_text(accepted.token)?;
        let (quantity, user) = (quantity.get(), user.as_str());
        record
            .arg(accepted.order.as_str())
            .arg(format!("{position}\t{quantity}\t{remaining}\t{token}\t{instance}\t{user}"));
    }
    let _: i64 = write(inventory, &record).await?;
    Ok(())
}

async fn write<T: redis::FromRedisValue>(
    inventory: &Inventory,
    command: &Cmd,
) -> Result<T, InventoryError> {
    inventory.connection.query(command, Effect::Write).await
}
