//! The stock in Redis: items, orders, and the script that is the only writer.
//!
//! [`Inventory::reduce`] sells a batch of orders in one atomic step, [`Inventory::start`] begins a sale, and
//! [`Inventory::change_sale`] changes it. Each of these calls carries the fencing token of the
//! lock that guards it, and the store refuses a token below the fence. `state.lua` describes the keys.
//!
//! A store that lost acknowledged data sells nothing until an operator acts ([`InventoryError::RolledBack`]).

mod access;
mod connection;
mod directory;
mod durability;
mod error;
mod item;
mod order;
mod read;
mod script;
mod sentinel;
mod shards;
mod stock;
mod store;
mod terms;
mod watermark;

pub use access::RedisAccess;
pub use connection::InventoryOptions;
#[cfg(fenced_lock_chaos)]
pub use directory::Streams;
pub use error::InventoryError;
pub use item::Item;
pub(crate) use order::order_key;
pub use order::{
    Accepted, Action, Answer, Attempt, Entry, Event, Order, OrderId, OtherEntry, Outcome, Quantity,
    User,
};
pub use read::{Available, Held, Inspection, LedgerPage, LedgerPosition, Lookup, Sales};
pub use script::Replicas;
pub use stock::{Phase, Stock, Units, parse_token, token_record};
pub use store::{Batch, BatchWriter, Changed, Inventory, Started};
pub use terms::{
    ChangeCall, NewSale, Replaces, SaleChange, SaleId, SaleVersion, Terms, Timestamp, When,
};
