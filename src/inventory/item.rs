//! The item of a sale, and its keys in Redis.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// An item: its name is 1 to 64 characters of `[a-z0-9-]`. The default item has no name and uses the plain keys
/// `stock` and `lucky`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Item(Option<Box<str>>);

impl Item {
    /// The item that is sold when none is named.
    pub const DEFAULT: Item = Item(None);

    /// The name, or `None` for the default item.
    pub fn name(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

impl FromStr for Item {
    type Err = &'static str;

    /// `default` is the default item, so that every name in an answer can be sent back.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        if name == "default" {
            return Ok(Self::DEFAULT);
        }
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let valid = (1..=64).contains(&name.len()) && name.bytes().all(allowed);
        valid
            .then(|| Self(Some(name.into())))
            .ok_or("an item name is 1 to 64 characters of a-z, 0-9 and -")
    }
}

impl fmt::Display for Item {
    /// The name; `default` for the default item.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name().unwrap_or("default"))
    }
}

impl Serialize for Item {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

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
    /// A hash from the [key](super::Order::key) of each accepted order to its record.
    pub orders: String,
    /// A list of the keys of the accepted orders, and of what became of their holds, in the order in which it happened.
    pub ledger: String,
    /// The largest token that was accepted.
    pub fence: String,
    /// What the sale allows, and its id: JSON.
    pub terms: String,
    /// A hash from the id of each sale that was replaced to what is known of it. Its orders and its ledger are in keys with
    /// `@` and its id behind the name.
    pub sales: String,
}

/// The names of all keys, as the scripts expect them. `script.lua` describes them.
const NAMES: [&str; 13] = [
    "stock", "lucky", "initial", "orders", "ledger", "fence", "sale", "doubt", "terms", "changes",
    "holds", "buyers", "sales",
];

impl Keys {
    /// The keys of `item`.
    pub fn of(item: &Item) -> Self {
        let key = |name| key_of(item, name);
        Self {
            stock: key("stock"),
            lucky: key("lucky"),
            initial: key("initial"),
            orders: key("orders"),
            ledger: key("ledger"),
            fence: key("fence"),
            terms: key("terms"),
            sales: key("sales"),
        }
    }

    /// All keys of `item`, as the scripts expect them.
    pub(super) fn all(item: &Item) -> [String; 13] {
        NAMES.map(|name| key_of(item, name))
    }
}

fn key_of(item: &Item, name: &str) -> String {
    match item.name() {
        Some(item) => format!("{name}:{{{item}}}"),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the names of the keys, which operators use, stay.
    #[test]
    fn the_default_item_has_plain_keys_and_a_named_item_has_a_hash_tag() {
        assert_eq!(Keys::all(&Item::DEFAULT), NAMES);
        assert_eq!(Keys::of(&Item::DEFAULT).ledger, "ledger");
        let named: Item = "tea-pot".parse().expect("a valid item name");
        assert_eq!(Keys::all(&named), NAMES.map(|key| format!("{key}:{{tea-pot}}")));
    }
}
