//! The state of one item, and its text in the store.

use fenced_lock::{ClusterId, Token};

/// The largest token that the store has accepted for an item. It refuses smaller ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The cluster whose tokens it compares.
    pub cluster: ClusterId,
    /// The revision of the largest token.
    pub revision: i64,
}

impl From<Token> for Fence {
    fn from(token: Token) -> Self {
        Self { cluster: token.cluster(), revision: token.revision() }
    }
}

impl Fence {
    /// Parses a fence's record.
    pub fn from_record(record: &str) -> Option<Self> {
        let (cluster, revision) = record.split_once(' ')?;
        let cluster = ClusterId(u64::from_str_radix(cluster, 16).ok()?);
        let revision = revision.parse().ok().filter(|revision| *revision > 0)?;
        Some(Self { cluster, revision })
    }

    /// The fence's record: the cluster in hexadecimal, a space, the revision in decimal.
    pub fn record(self) -> String {
        format!("{:x} {}", self.cluster.0, self.revision)
    }
}

/// The state of one item, read at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stock {
    /// Units not yet sold.
    pub stock: i64,
    /// Units sold.
    pub lucky: i64,
    /// Units that the sale began with.
    pub initial: i64,
    /// The fence; none before the first write under a token.
    pub fence: Option<Fence>,
    /// Orders in the ledger.
    pub orders: u64,
    /// Identifies the sale of the item: its start, in microseconds since 1970, made unique. None for a stock set
    /// by hand before its first order.
    pub sale: Option<u64>,
}

impl Stock {
    /// Whether `stock + lucky == initial`: no unit appeared and none vanished.
    pub fn is_balanced(&self) -> bool {
        self.stock.checked_add(self.lucky) == Some(self.initial)
    }
}

/// When the sale of this name began.
pub(super) fn began(name: &str) -> Option<u64> {
    name.split(' ').nth(1)?.parse().ok()
}

/// A whole number from 0, written as Redis writes it.
pub(super) fn parse_number(text: &str) -> Option<i64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_read_back_as_it_was_written() {
        for (cluster, revision) in [(0, 1), (u64::MAX, i64::MAX), (0xcafe, 42)] {
            let fence = Fence { cluster: ClusterId(cluster), revision };
            assert_eq!(Fence::from_record(&fence.record()), Some(fence));
        }
        for text in ["", "1", "1 ", "1 -2", "1 0", "xyz 1", "1 2 3"] {
            assert_eq!(Fence::from_record(text), None, "{text}");
        }
    }

    #[test]
    fn only_what_redis_writes_is_a_number() {
        assert_eq!(parse_number("300"), Some(300));
        for text in ["", "-", "-3", "+3", " 3", "3.0", "1e3", "99999999999999999999"] {
            assert_eq!(parse_number(text), None, "{text}");
        }
    }
}
