//! Orders, and the stock in a Redis of the tests.

use flash_sale::inventory::{Inventory, InventoryOptions, Item, Order, OrderId, Quantity, User};

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
