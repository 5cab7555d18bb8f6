//! What goes wrong without a lock: look, decide, write, as three separate commands with nothing
//! around them.
//!
//! Two callers that look before either writes both see the same stock, both find it enough, and both
//! write the same smaller number: two units sold, one taken off. With a lock around [`reduce`] that
//! every seller takes, it would be correct; with a lock that only some share, or none, it oversells.
//! This module exists to show that. It knows no fence, no order ids and no ledger, so a retry buys
//! again. Do not build on it.

use super::connection::Effect;
use super::{Accepted, Inventory, InventoryError, Keys, Order, Outcome};

/// Looks, decides, writes: [`look`], then [`take`].
///
/// # Errors
/// See [`InventoryError`]. After [`InventoryError::Unanswered`] anything may be half done, and asking
/// again may sell twice.
pub async fn reduce(
    inventory: &Inventory,
    order: &Order,
    instance: &str,
) -> Result<Outcome, InventoryError> {
    let seen = look(inventory, order).await?;
    take(inventory, order, instance, seen).await
}

/// The first step: `GET stock`. From here on what was seen may be wrong.
///
/// # Errors
/// See [`InventoryError`].
pub async fn look(inventory: &Inventory, order: &Order) -> Result<i64, InventoryError> {
    inventory.available(&order.item).await
}

/// The other steps: if what was `seen` is enough, `SET stock`, then `INCRBY lucky`.
///
/// What it answers is in no ledger: position 0, no token, and `remaining` is what this caller
/// believes.
///
/// # Errors
/// See [`InventoryError`].
pub async fn take(
    inventory: &Inventory,
    order: &Order,
    instance: &str,
    seen: i64,
) -> Result<Outcome, InventoryError> {
    let seen = u64::try_from(seen).unwrap_or(0);
    let Some(remaining) = seen.checked_sub(u64::from(order.quantity.get())) else {
        return Ok(Outcome::SoldOut { remaining: seen });
    };
    let keys = Keys::of(&order.item);
    let connection = &inventory.connection;
    let mut set = redis::cmd("SET");
    connection.query::<()>(set.arg(&keys.stock).arg(remaining), Effect::Write).await?;
    let mut add = redis::cmd("INCRBY");
    add.arg(&keys.lucky).arg(order.quantity.get());
    // An error here leaves the stock written: nobody can say that nothing was.
    match connection.try_query::<i64>(&add).await {
        Ok(Ok(_)) => {}
        Ok(Err(source)) | Err(InventoryError::Unreachable { source }) => {
            return Err(InventoryError::Unanswered { source });
        }
        Err(error) => return Err(error),
    }
    Ok(Outcome::Reserved(Accepted::without_place(order, remaining, instance, None)))
}
