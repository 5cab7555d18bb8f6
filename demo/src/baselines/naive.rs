//! What goes wrong without a lock: look, decide and write, as three separate commands.
//!
//! Two callers that look before either writes both see the same stock, both find it enough, and both write the same smaller
//! number: two units sold, one taken off. Under a lock that every seller takes, [`reduce`] would be correct; under a lock that
//! only some share, or under none, it oversells. This module exists to show that. It has no fence, no order ids and no ledger, so
//! a retry buys again. Do not build on it.

use std::collections::VecDeque;

use flash_sale::inventory::{
    Accepted, Action, Event, Inventory, InventoryError, Item, Order, Outcome, Timestamp,
};
use parking_lot::Mutex;

use crate::fault::{self, Point};
use crate::writer::tenures::now_ms;

/// The most looks that are kept.
pub(crate) const MOST: usize = 1000;

/// When this process looked at the default item, in Unix milliseconds, and how many units it saw: for the replay on the page.
pub(crate) static LOOKS: Mutex<VecDeque<(f64, u64)>> = Mutex::new(VecDeque::new());

/// `GET stock`; if that is enough, `SET stock`, then `INCRBY lucky`. The answer is in no ledger: position 0, no time, no token,
/// and `remaining` as this caller computed it. After [`InventoryError::Unanswered`] any part may be done.
pub(super) async fn reduce(
    inventory: &Inventory,
    order: &Order,
    instance: &str,
) -> Result<Outcome, InventoryError> {
    if order.action != Action::Reserve {
        return Ok(Outcome::Unknown);
    }
    let seen = u64::try_from(inventory.available(&order.item).await?).unwrap_or(0);
    // from here on the number may be outdated
    if order.item == Item::DEFAULT {
        let mut looks = LOOKS.lock();
        let excess = (looks.len() + 1).saturating_sub(MOST);
        looks.drain(..excess);
        looks.push_back((now_ms(), seen));
    }
    let Some(remaining) = seen.checked_sub(u64::from(order.quantity.get())) else {
        return Ok(Outcome::SoldOut { remaining: seen });
    };
    fault::at(Point::BeforeWrite).await;
    let [stock, lucky] = ["stock", "lucky"].map(|name| order.item.key(name));
    let mut set = redis::cmd("SET");
    inventory.command::<()>(set.arg(stock).arg(remaining)).await?;
    let mut add = redis::cmd("INCRBY");
    // an error here leaves the new stock written
    let added = inventory.command::<i64>(add.arg(lucky).arg(order.quantity.get())).await;
    added.map_err(|error| match error {
        InventoryError::Refused { source } | InventoryError::Unreachable { source } => {
            InventoryError::Unanswered { source }
        }
        error => error,
    })?;
    Ok(Outcome::Reserved(Accepted {
        position: 0,
        event: Event::Reserved,
        order: order.id.clone(),
        quantity: order.quantity,
        user: order.user.clone(),
        remaining,
        instance: instance.to_owned(),
        holder: None,
        request: None,
        token: None,
        time: Timestamp::default(),
        hold_until: None,
        changed: None,
    }))
}
