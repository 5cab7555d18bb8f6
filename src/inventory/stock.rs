//! The state of one item, and its text in the store.

use fenced_lock::{ClusterId, Token};
use serde::{Serialize, Serializer};
use serde_json::json;

use super::terms::Terms;

/// The state of one item, read at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stock {
    /// Units left.
    pub stock: i64,
    /// Units of accepted orders, held or confirmed.
    pub lucky: i64,
    /// The units at the start of the sale and those added since, less those withdrawn.
    pub initial: i64,
    /// The fence: the largest token that the store has accepted. It refuses smaller ones. `None` before the first write
    /// under a token.
    #[serde(serialize_with = "cluster_and_revision")]
    pub fence: Option<Token>,
    /// Accepted orders, also those whose units came back.
    pub orders: u64,
    /// Entries of the ledger: orders, their later events, and changes of the sale.
    pub entries: u64,
    /// Orders with an open hold.
    pub held: u64,
    /// The parts of `lucky`.
    pub units: Units,
    /// Its state by Redis' clock.
    pub state: Phase,
    /// `None` for a stock set by hand before its first order.
    pub id: Option<String>,
    /// The terms of the sale.
    #[serde(flatten)]
    pub terms: Terms,
    /// Whether the sale refuses new orders for now.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// How often the sale was changed.
    pub version: u64,
    /// Identifies the sale of the item: the time of its start in microseconds since 1970, made unique. `None` for a
    /// stock set by hand before its first order.
    pub sale: Option<u64>,
}

/// Units of accepted orders. `None` until the next batch counts the orders that an instance of the previous version accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Units {
    /// Held.
    pub held: Option<i64>,
    /// Confirmed, or accepted without a hold, and not returned.
    pub confirmed: Option<i64>,
}

/// The state of a sale: the first of these that applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// It is over.
    Ended,
    /// It refuses new orders for now.
    Paused,
    /// It starts later.
    Scheduled,
    /// Units are on sale.
    #[default]
    Running,
    /// No unit is left, but some are held.
    AllHeld,
    /// No unit is left or held.
    SoldOut,
}

impl Stock {
    /// Whether `stock + lucky == initial`: no unit appeared, and none vanished.
    pub fn is_balanced(&self) -> bool {
        self.stock.checked_add(self.lucky) == Some(self.initial)
    }
}

#[allow(clippy::ref_option, reason = "the signature that serde asks for")]
fn cluster_and_revision<S: Serializer>(fence: &Option<Token>, to: S) -> Result<S::Ok, S::Error> {
    let view =
        |fence: Token| json!({ "cluster": fence.cluster().to_string(), "token": fence.revision() });
    fence.map(view).serialize(to)
}

/// A token in the form of the store: the cluster in hexadecimal, a space, the revision in decimal.
pub fn token_record(token: Token) -> String {
    format!("{:x} {}", token.cluster().0, token.revision())
}

/// Parses a token of the store.
pub fn parse_token(record: &str) -> Option<Token> {
    let (cluster, revision) = record.split_once(' ')?;
    let cluster = ClusterId(u64::from_str_radix(cluster, 16).ok()?);
    let revision = revision.parse().ok().filter(|revision| *revision > 0)?;
    Some(Token::new(cluster, revision))
}

/// The time at which the sale of this name began.
pub(super) fn began(name: &str) -> Option<u64> {
    name.split(' ').nth(1)?.parse().ok()
}
