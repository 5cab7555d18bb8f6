//! What goes wrong without a lock: look, decide, write, as three separate commands with nothing
//! around them.
//!
//! Two callers that look before either writes both see the same stock, both find it enough, and both
//! write the same smaller number: two units sold, one taken off. With a lock around [`reduce`] that
//! every seller takes, it would be correct; with a lock that only some share, or none, it oversells.
//! This module exists to show that. It knows no fence, no order ids and no ledger, so a retry buys
//! again. Do not build on it.

use flash_sale::inventory::{Accepted, Inventory, InventoryError, Keys, Order, Outcome};

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
/// The answer is in no ledger: position 0, no token, and `remaining` as this caller computed it.
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
    let mut set = redis::cmd("SET");
    inventory.command::<()>(set.arg(&keys.stock).arg(remaining)).await?;
    let mut add = redis::cmd("INCRBY");
    // an error here leaves the stock written
    let added = inventory.command::<i64>(add.arg(&keys.lucky).arg(order.quantity.get())).await;
    added.map_err(|error| match error {
        InventoryError::Refused { source } | InventoryError::Unreachable { source } => {
            InventoryError::Unanswered { source }
        }
        error => error,
    })?;
    Ok(Outcome::Reserved(Accepted {
        position: 0,
        order: order.id.clone(),
        quantity: order.quantity,
        user: order.user.clone(),
        remaining,
        instance: instance.to_owned(),
        token: None,
    }))
}
