//! What the operator reads.

use crate::inventory::{Accepted, Fence, Inventory, Item, Stock};
use crate::lock::Token;

/// What was found.
pub(super) fn state(
    item: &Item,
    inventory: &Inventory,
    stock: &Stock,
    latest: Option<&Accepted>,
    token: Token,
) {
    let Stock { stock, lucky, initial, fence, orders } = stock;
    println!("item     {item}");
    println!("store    {}", inventory.address());
    println!("stock    {stock} left and {lucky} sold, of {initial}");
    match latest {
        Some(latest) => {
            println!("ledger   {orders} orders, the latest is {}", latest.order.as_str());
        }
        None => println!("ledger   {orders} orders"),
    }
    match fence {
        Some(Fence { cluster, revision }) => {
            println!("fence    token {revision} of etcd cluster {cluster}");
        }
        None => println!("fence    none"),
    }
    println!("lock     taken, with token {token} of etcd cluster {}", token.cluster());
}

/// What another cluster for the fence means.
pub(super) fn cluster_given_up(fence: Fence) {
    println!(
        "\nThe fence would be of this cluster. Every token of cluster {} is refused from then on, \
         also that of\na holder that is still alive. No order is lost. Make sure that no instance uses \
         that cluster any more.",
        fence.cluster
    );
}

/// What accepting the store as it is means.
pub(super) fn store_given_up(latest: Option<&Accepted>) {
    let behind = latest.map_or_else(
        || "in\nthis sale".to_owned(),
        |latest| {
            format!("behind\n{}, number {} of the ledger,", latest.order.as_str(), latest.position)
        },
    );
    println!(
        "\nThe sale would go on from here, at all instances. Every order that was acknowledged {behind} \
         is given up: its buyer was told that it stands, and its units are sold again.\n\
         The instances' logs name an order that is missing. If there is a copy with all orders, bring\n\
         that one back instead."
    );
}
