//! The inventory, against a real Redis.

mod changes;
pub(crate) mod cluster;
mod damage;
mod durability;
mod faults;
mod fence;
mod holds;
mod previous_version;
mod reads;
mod replicas;
mod roll_back;
mod sale;
mod sales;
mod sentinel;

use fenced_lock::{ClusterId, Token};
use flash_sale::inventory::{Accepted, Inventory, InventoryError, Item, Order, Outcome};
use testkit::shared::{Raw, fresh_database};

use crate::support::store::{accepted, connect, order};

const ITEM: Item = Item::DEFAULT;

/// The inventory of a new database, and a plain connection to it.
async fn fresh() -> (Inventory, Raw) {
    let url = fresh_database().await;
    (connect(&url).await, Raw::connect(&url).await)
}

async fn reduce(
    inventory: &Inventory,
    token: Option<Token>,
    batch: &[Order],
) -> Result<Vec<Outcome>, InventoryError> {
    inventory.reduce(&ITEM, token, "8080", batch).await
}

/// Sells one unit to the order of this id.
async fn sell(
    inventory: &Inventory,
    token: Option<Token>,
    id: &str,
) -> Result<Accepted, InventoryError> {
    let outcomes = reduce(inventory, token, &[order(id, 1)]).await?;
    Ok(accepted(&outcomes[0]).clone())
}

fn token(revision: i64) -> Token {
    Token::new(ClusterId(0xcafe), revision)
}
