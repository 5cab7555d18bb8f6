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

    /// `default` is the default item, so that a caller can send back every name of an answer.
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

/// The names of all keys, in the order of the scripts. `state.lua` describes them.
const NAMES: [&str; 13] = [
    "stock", "lucky", "initial", "orders", "ledger", "fence", "sale", "doubt", "terms", "changes",
    "holds", "buyers", "sales",
];

impl Item {
    /// The item's key of this name in Redis: `stock` for the default item, `stock:{name}` for a named one. The braces are a hash
    /// tag of Redis Cluster.
    pub fn key(&self, name: &str) -> String {
        match self.name() {
            Some(item) => format!("{name}:{{{item}}}"),
            None => name.to_owned(),
        }
    }

    /// All keys of the item, in the order of the scripts.
    pub(super) fn keys(&self) -> [String; 13] {
        NAMES.map(|name| self.key(name))
    }
}
