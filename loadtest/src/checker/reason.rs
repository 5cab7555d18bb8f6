//! The reasons for a FAIL.

use std::time::Duration;

use super::pause::Pause;

/// A failure; the most important ones come first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    /// Another sale was started during the run.
    Restarted,
    /// More units were sold than there were.
    Oversold { orders: u64, units: u64, available: u64 },
    /// One order took its units more than once.
    Duplicates { orders: u64, example: String },
    /// Orders were acknowledged and are not recorded; some of them without a token.
    Lost { orders: u64, without_token: u64, example: String },
    /// An instance no longer has the sale.
    Gone { url: String },
    /// Orders are recorded whose buyers were refused, or that were not sent.
    Unacknowledged { orders: u64, example: String },
    /// Orders of other clients are recorded, and none are allowed.
    ForeignOrders { orders: u64, example: String },
    /// An instance wrote with an older token after a newer one: two held the lock.
    TokenWentDown { times: u64, position: u64, from: i64, to: i64 },
    /// Orders were accepted without a token, where each must have one.
    WithoutToken { orders: u64, example: String },
    /// Units appeared or vanished.
    Unbalanced { stock: i64, lucky: i64, initial: i64 },
    /// The ledger contradicts itself or the stock.
    LedgerDoesNotAddUp { what: String },
    /// An answer differs from the ledger.
    Misreported { orders: u64, example: String },
    /// Buyers were refused although enough units were left for them.
    SoldOutTooEarly { orders: u64, left: i64 },
    /// Buyers were refused before the orders that emptied the stock had all been sent.
    SoldOutBeforeSent { orders: u64, example: String, answered: u64, taker: String, sent: u64 },
    /// The ledger has an order before another one that was answered before it was sent.
    OutOfOrder { orders: u64, answered: Moment, sent: Moment },
    /// Orders were sent, and for too long none was decided.
    Paused { pause: Pause, limit: Duration },
    /// An order was tried for too long.
    SlowOrder { example: String, took: Duration, orders: u64, limit: Duration },
    /// The instances disagree.
    StatesDiffer { first: String, second: String },
    /// Orders were answered with an error.
    Failed { orders: u64, kinds: String },
    /// Too many orders got no answer.
    Unanswered { orders: u64, of: u64 },
    /// Without a ledger: the stock does not fit the answers.
    Unaccounted { acknowledged: u64, taken: i64 },
}

/// An order in the ledger, and something that happened to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment {
    pub(crate) order: String,
    /// Its place in the ledger.
    pub(crate) position: u64,
    /// In microseconds since the run's start.
    pub(crate) at: u64,
}

/// The invariants of a sale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Invariant {
    /// No more units are acknowledged than there were, and stock + lucky = initial.
    I1,
    /// Every acknowledged order is in the ledger exactly once, as it was acknowledged.
    I2,
    /// Every order in the ledger was acknowledged, or got no answer.
    I3,
    /// The tokens in the ledger never go down, and none is missing.
    I4,
    /// No pause and no order is too long.
    I5,
    /// The ledger's order agrees with real time, and so does sold out.
    I6,
}

impl Reason {
    /// The violated invariant; `None` if the run proves nothing for another reason.
    pub(crate) fn invariant(&self) -> Option<Invariant> {
        match self {
            Self::Oversold { .. }
            | Self::Unbalanced { .. }
            | Self::Unaccounted { .. }
            | Self::LedgerDoesNotAddUp { .. } => Some(Invariant::I1),
            Self::Duplicates { .. }
            | Self::Lost { .. }
            | Self::Gone { .. }
            | Self::Misreported { .. } => Some(Invariant::I2),
            Self::Unacknowledged { .. } | Self::ForeignOrders { .. } => Some(Invariant::I3),
            Self::TokenWentDown { .. } | Self::WithoutToken { .. } => Some(Invariant::I4),
            Self::Paused { .. } | Self::SlowOrder { .. } => Some(Invariant::I5),
            Self::SoldOutTooEarly { .. }
            | Self::SoldOutBeforeSent { .. }
            | Self::OutOfOrder { .. } => Some(Invariant::I6),
            Self::Restarted
            | Self::StatesDiffer { .. }
            | Self::Failed { .. }
            | Self::Unanswered { .. } => None,
        }
    }

    /// The name in the JSON report.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Restarted => "restarted",
            Self::Oversold { .. } => "oversold",
            Self::Duplicates { .. } => "duplicates",
            Self::Lost { .. } => "lost",
            Self::Unacknowledged { .. } => "untold",
            Self::ForeignOrders { .. } => "strangers",
            Self::TokenWentDown { .. } => "token_went_down",
            Self::WithoutToken { .. } => "without_token",
            Self::Unbalanced { .. } => "unbalanced",
            Self::LedgerDoesNotAddUp { .. } => "ledger_does_not_add_up",
            Self::Misreported { .. } => "misreported",
            Self::Gone { .. } => "gone",
            Self::SoldOutTooEarly { .. } | Self::SoldOutBeforeSent { .. } => "sold_out_too_early",
            Self::OutOfOrder { .. } => "out_of_order",
            Self::Paused { .. } => "paused",
            Self::SlowOrder { .. } => "slow_order",
            Self::StatesDiffer { .. } => "states_differ",
            Self::Failed { .. } => "failed",
            Self::Unanswered { .. } => "unanswered",
            Self::Unaccounted { .. } => "unaccounted",
        }
    }
}
