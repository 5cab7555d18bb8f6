//! The texts for the operator.

use std::fmt::Write as _;

use fenced_lock::Token;

use crate::inventory::{Fence, Inspection, Inventory, Item, Stock};

/// The state of the item.
pub(super) fn state(
    item: &Item,
    inventory: &Inventory,
    inspected: &Inspection,
    token: Token,
) -> String {
    let mut text = String::new();
    // writing to a string cannot fail
    let _ = writeln!(text, "item     {item}");
    let _ = writeln!(text, "store    {}", inventory.address());
    match &inspected.stock {
        None => text.push_str("stock    none\n"),
        Some(Stock { stock, lucky, initial, fence, orders, .. }) => {
            let _ = writeln!(text, "stock    {stock} left and {lucky} sold, of {initial}");
            let _ = match &inspected.latest {
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
    if let Some(missing) = &inspected.rollback_detected {
        let _ = writeln!(text, "missing  {missing}");
    }
    let cluster = token.cluster();
    let _ = writeln!(text, "lock     taken, with token {token} of etcd cluster {cluster}");
    text
}

/// The effect of another cluster.
pub(super) fn cluster_given_up(fence: Fence) -> String {
    format!(
        "\nThe fence would become one of this cluster. The store would refuse every token of cluster {},\n\
         including that of a live holder. No order is lost. Make sure that no instance uses that cluster.\n",
        fence.cluster
    )
}

/// The effect of accepting the store.
pub(super) fn store_given_up(inspected: &Inspection) -> String {
    if inspected.stock.is_none() {
        return "\nThis would end the sale of the item and give up all its acknowledged orders. If a complete\n\
                copy of the data exists, restore it instead.\n"
            .to_owned();
    }
    let behind = inspected.latest.as_ref().map_or_else(
        || "of\nthis sale".to_owned(),
        |latest| {
            format!("after\n{} (number {} of the ledger)", latest.order.as_str(), latest.position)
        },
    );
    format!(
        "\nAll instances would resume the sale from this state. Every acknowledged order {behind} \
         would be given up:\nits buyer has a confirmation, and its units would be sold again. The instances' \
         logs name a\nmissing order. If a complete copy of the data exists, restore it instead.\n\
         If etcd was restored from a backup as well, stop all instances first: its tokens went back.\n"
    )
}

/// The result of accepting the store.
pub(super) fn store_accepted(inspected: &Inspection, token: Token) -> String {
    if inspected.stock.is_none() {
        return "\nDone. The item has no sale. PUT /stock starts one.\n".to_owned();
    }
    format!(
        "\nDone. All instances resume with this state, under token {token} or later. If etcd was restored\n\
         as well and instances were running, stop them, repeat this command, and start them again.\n"
    )
}
