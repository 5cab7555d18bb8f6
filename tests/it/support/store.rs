//! Orders, and the stock in a Redis of the tests.

use std::time::Duration;

use flash_sale::inventory::{Inventory, InventoryOptions, Item, Order, OrderId, Quantity, User};

/// For a store that answers, however busy the machine is.
pub(crate) const PATIENT: InventoryOptions = both(Duration::from_secs(20));
/// For one that may not.
pub(crate) const HASTY: InventoryOptions = both(Duration::from_millis(300));

/// This time to connect, and the same to answer.
const fn both(time: Duration) -> InventoryOptions {
    InventoryOptions { connect_timeout: time, response_timeout: time }
}

pub(crate) async fn connect(url: &str) -> Inventory {
    Inventory::connect(url, InventoryOptions::default()).await.unwrap()
}

/// An order of the default item, without a user.
pub(crate) fn order(id: &str, units: u32) -> Order {
    Order {
        id: OrderId::new(id).unwrap(),
        item: Item::DEFAULT,
        quantity: Quantity::new(units).unwrap(),
        user: User::default(),
    }
}
