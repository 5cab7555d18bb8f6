//! The state of one item.

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
