//! The keys of an item in Redis.

use super::Item;

/// The keys of one item: `stock`, `lucky` and so on for the default item, `stock:{name}` for a named one. The
/// braces are a hash tag of Redis Cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Units not yet sold; a whole number.
    pub stock: String,
    /// Units sold; a whole number.
    pub lucky: String,
    /// Units that the sale began with; a whole number.
    pub initial: String,
    /// A hash from the id of each accepted order to its record.
    pub orders: String,
    /// A list of the ids of the accepted orders, in the order of acceptance.
    pub ledger: String,
    /// The largest token that was accepted.
    pub fence: String,
    /// Which sale this is: how and when it began, and under which token.
    pub sale: String,
    /// What an instance missed in the store. While this key exists, nothing of the item is sold.
    pub rollback_detected: String,
}

impl Keys {
    /// The keys of `item`.
    pub fn of(item: &Item) -> Self {
        let key = |what: &str| match item.name() {
            Some(name) => format!("{what}:{{{name}}}"),
            None => what.to_owned(),
        };
        Self {
            stock: key("stock"),
            lucky: key("lucky"),
            initial: key("initial"),
            orders: key("orders"),
            ledger: key("ledger"),
            fence: key("fence"),
            sale: key("sale"),
            rollback_detected: key("doubt"),
        }
    }

    /// All keys, as the script expects them.
    pub(super) fn all(&self) -> [&str; 8] {
        let Self { stock, lucky, initial, orders, ledger, fence, sale, rollback_detected } = self;
        [stock, lucky, initial, orders, ledger, fence, sale, rollback_detected]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the names of the keys, which operators use, stay.
    #[test]
    fn the_default_item_has_plain_keys_and_a_named_item_has_a_hash_tag() {
        let all = ["stock", "lucky", "initial", "orders", "ledger", "fence", "sale", "doubt"];
        assert_eq!(Keys::of(&Item::DEFAULT).all(), all);
        let named: Item = "tea-pot".parse().expect("a valid item name");
        assert_eq!(Keys::of(&named).all(), all.map(|key| format!("{key}:{{tea-pot}}")));
    }
}
