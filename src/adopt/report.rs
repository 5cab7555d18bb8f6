//! What the operator reads.

use std::fmt::Write as _;

use fenced_lock::Token;

use crate::inventory::{Fence, Found, Inventory, Item, Stock};

/// What was found.
pub(super) fn state(item: &Item, inventory: &Inventory, found: &Found, token: Token) -> String {
    let mut text = String::new();
    // writing to a text cannot fail
    let _ = writeln!(text, "item     {item}");
    let _ = writeln!(text, "store    {}", inventory.address());
    match &found.stock {
        None => text.push_str("stock    none\n"),
        Some(Stock { stock, lucky, initial, fence, orders, .. }) => {
            let _ = writeln!(text, "stock    {stock} left and {lucky} sold, of {initial}");
            let _ = match &found.latest {
                Some(latest) => writeln!(
                    text,
                    "ledger   {orders} orders, the latest is {}",
                    latest.order.as_str()
                ),
                None => writeln!(text, "ledger   {orders} orders"),
            };
            let _ = match fence {
                Some(Fence { cluster, revision }) => {
                    writeln!(text, "fence    token {revision} of etcd cluster {cluster}")
                }
                None => writeln!(text, "fence    none"),
            };
        }
    }
    if let Some(doubt) = &found.doubt {
        let _ = writeln!(text, "missed   {doubt}");
    }
    let cluster = token.cluster();
    let _ = writeln!(text, "lock     taken, with token {token} of etcd cluster {cluster}");
    text
}

/// What another cluster for the fence means.
pub(super) fn cluster_given_up(fence: Fence) -> String {
    format!(
        "\nThe fence would be of this cluster. Every token of cluster {} is refused from then on, \
         also that of\na holder that is still alive. No order is lost. Make sure that no instance uses \
         that cluster any more.\n",
        fence.cluster
    )
}

/// What accepting the store as it is means.
pub(super) fn store_given_up(found: &Found) -> String {
    if found.stock.is_none() {
        return "\nThere would be no sale of this item any more, until one is started. Every order of it \
                that was\nacknowledged is given up. If there is a copy with all orders, bring that one \
                back instead.\n"
            .to_owned();
    }
    let behind = found.latest.as_ref().map_or_else(
        || "in\nthis sale".to_owned(),
        |latest| {
            format!("behind\n{}, number {} of the ledger,", latest.order.as_str(), latest.position)
        },
    );
    format!(
        "\nThe sale would go on from here, at all instances. Every order that was acknowledged {behind} \
         is given up: its buyer was told that it stands, and its units are sold again.\n\
         The instances' logs name an order that is missing. If there is a copy with all orders, bring\n\
         that one back instead. If etcd was restored from a backup as well, its tokens count from an\n\
         earlier number: do this while no instance runs, and start them again afterwards.\n"
    )
}

/// That it was done.
pub(super) fn store_accepted(found: &Found, token: Token) -> String {
    if found.stock.is_none() {
        return "\nDone: there is no sale of this item. PUT /stock starts one.\n".to_owned();
    }
    format!(
        "\nDone: all instances go on with what is there, under token {token} or later. If etcd was restored\n\
         as well and instances ran meanwhile, stop them all, do this once more, and start them again.\n"
    )
}
