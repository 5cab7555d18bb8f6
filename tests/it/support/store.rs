//! Orders, and the stock in a Redis of the tests.

use std::time::Duration;

use flash_sale::inventory::{
    Accepted, Action, Inventory, InventoryError, InventoryOptions, Item, Order, OrderId, Outcome,
    Quantity, RedisAccess, User,
};
use testkit::PrivateRedis;

/// For a store that answers, however busy the machine is.
pub(crate) const PATIENT: InventoryOptions = both(Duration::from_secs(20));
/// For one that may not.
pub(crate) const HASTY: InventoryOptions = both(Duration::from_millis(300));

/// This time to connect, and the same to answer.
pub(crate) const fn both(time: Duration) -> InventoryOptions {
    InventoryOptions { connect_timeout: time, response_timeout: time }
}

pub(crate) async fn connect(url: &str) -> Inventory {
    open(url, InventoryOptions::default()).await.unwrap()
}

/// The inventory of a store that answers now.
pub(crate) async fn open(
    access: impl Into<RedisAccess>,
    options: InventoryOptions,
) -> Result<Inventory, InventoryError> {
    let inventory = Inventory::new(access, options)?;
    inventory.ping().await.map(|()| inventory)
}

/// How many scripts have run in this Redis.
pub(crate) async fn scripts_run(redis: &PrivateRedis) -> u32 {
    let stats: String = redis.run("INFO commandstats").await.unwrap();
    let (_, calls) = stats.split_once("cmdstat_evalsha:calls=").unwrap();
    calls.split_once(',').unwrap().0.parse().unwrap()
}

/// An order of the default item, without a user.
pub(crate) fn order(id: &str, units: u32) -> Order {
    Order {
        id: OrderId::new(id).unwrap(),
        item: Item::DEFAULT,
        quantity: Quantity::new(units).unwrap(),
        user: User::default(),
        action: Action::Reserve,
    }
}

/// The order that was accepted, now or earlier.
pub(crate) fn accepted(outcome: &Outcome) -> &Accepted {
    match outcome {
        Outcome::Reserved(accepted) | Outcome::Repeated(accepted) => accepted,
        other => panic!("reserved was expected, not {other:?}"),
    }
}
