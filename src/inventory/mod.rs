//! The stock in Redis: items, orders, and the script that is the only writer.

mod item;
mod order;
mod stock;

pub use item::{InvalidItem, Item};
pub use order::{Accepted, InvalidOrder, Order, OrderId, Outcome, Quantity, User};
pub use stock::{Fence, Stock};
