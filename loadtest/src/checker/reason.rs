//! The failures that the checker can find, and their words.

use std::fmt;

/// A failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reason {
    pub(crate) kind: Kind,
    detail: String,
}

/// What can fail; the most important kinds come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Another sale was started during the run.
    Restarted,
    /// More units were sold than there were.
    Oversold,
    /// One order took its units more than once.
    Duplicates,
    /// Orders were acknowledged and are not recorded.
    Lost,
    /// Units came back that had come back or were sold, or an order was confirmed twice.
    EndedTwice,
    /// A buyer was told that an order is confirmed, cancelled or expired, and the ledger says otherwise.
    ChangeLost,
    /// An instance no longer has the sale.
    Gone,
    /// Orders are recorded whose buyers were refused, or that were not sent.
    Unacknowledged,
    /// Orders of other clients are recorded, and none are allowed.
    Foreign,
    /// An instance wrote with an older token after a newer one: two held the lock.
    TokenWentDown,
    /// Orders were accepted without a token, where each must have one.
    WithoutToken,
    /// Units appeared or vanished.
    Unbalanced,
    /// The ledger contradicts itself or the stock.
    LedgerDoesNotAddUp,
    /// An answer differs from the ledger.
    Misreported,
    /// Buyers were refused although enough units were left for them.
    SoldOutTooEarly,
    /// The ledger has an order before another one that was answered before it was sent.
    OutOfOrder,
    /// A hold ended too early, or was confirmed after its end.
    HoldNotKept,
    /// A user has more units than allowed.
    OverLimit,
    /// Buyers were refused as if they had enough.
    LimitedTooEarly,
    /// Orders were sent, and for too long none was decided.
    Paused,
    /// Holds did not end.
    StillHeld,
    /// An order was tried for too long.
    SlowOrder,
    /// The instances disagree.
    StatesDiffer,
    /// Orders were answered with an error.
    Failed,
    /// Too many orders got no answer.
    Unanswered,
    /// Without a ledger: the stock does not fit the answers.
    Unaccounted,
}

impl Kind {
    /// The name in the JSON report, the violated invariant, and the words before the detail. Without an
    /// invariant, the run proves nothing for another reason.
    const fn row(self) -> (&'static str, Option<&'static str>, &'static str) {
        match self {
            Self::Restarted => ("restarted", None, "restarted"),
            Self::Oversold => ("oversold", Some("I1"), "oversold"),
            Self::Duplicates => ("duplicates", Some("I2"), "sold twice"),
            Self::Lost => ("lost", Some("I2"), "lost"),
            Self::EndedTwice => ("ended_twice", Some("I2"), "ended twice"),
            Self::ChangeLost => ("change_lost", Some("I2"), "lost"),
            Self::Gone => ("gone", Some("I2"), "gone"),
            Self::Unacknowledged => ("untold", Some("I3"), "unacknowledged"),
            Self::Foreign => ("strangers", Some("I3"), "foreign"),
            Self::TokenWentDown => ("token_went_down", Some("I4"), "two holders at once"),
            Self::WithoutToken => ("without_token", Some("I4"), "without a token"),
            Self::Unbalanced => ("unbalanced", Some("I1"), "unbalanced"),
            Self::LedgerDoesNotAddUp => {
                ("ledger_does_not_add_up", Some("I1"), "the ledger does not add up")
            }
            Self::Misreported => ("misreported", Some("I2"), "misreported"),
            Self::SoldOutTooEarly => ("sold_out_too_early", Some("I6"), "sold out too early"),
            Self::OutOfOrder => ("out_of_order", Some("I6"), "out of order"),
            Self::HoldNotKept => ("hold_not_kept", Some("I6"), "hold not kept"),
            Self::OverLimit => ("over_limit", Some("I1"), "over the limit"),
            Self::LimitedTooEarly => ("limited_too_early", Some("I6"), "limited too early"),
            Self::Paused => ("paused", Some("I5"), "paused"),
            Self::StillHeld => ("still_held", Some("I5"), "still held"),
            Self::SlowOrder => ("slow_order", Some("I5"), "slow"),
            Self::StatesDiffer => ("states_differ", None, "the instances disagree"),
            Self::Failed => ("failed", None, "failed"),
            Self::Unanswered => ("unanswered", None, "unanswered"),
            Self::Unaccounted => ("unaccounted", Some("I1"), "unaccounted"),
        }
    }

    /// The name in the JSON report.
    pub(crate) fn name(self) -> &'static str {
        self.row().0
    }

    /// `I1` to `I6`.
    pub(crate) fn invariant(self) -> Option<&'static str> {
        self.row().1
    }

    /// A failure of this kind.
    pub(crate) fn because(self, detail: impl Into<String>) -> Reason {
        Reason { kind: self, detail: detail.into() }
    }
}

impl Reason {
    /// The reason without the name of the invariant.
    pub(crate) fn sentence(&self) -> String {
        format!("{}: {}", self.kind.row().2, self.detail)
    }
}

/// With the name of the invariant, if there is one.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind.invariant() {
            Some(invariant) => write!(f, "{invariant} {}", self.sentence()),
            None => f.write_str(&self.sentence()),
        }
    }
}

/// An invariant in words.
pub(crate) fn meaning(invariant: &str) -> &'static str {
    match invariant {
        "I1" => {
            "at no moment more is sold than there is, or than a user may have; the sums are right"
        }
        "I2" => "what a buyer was told is in the ledger, and nothing is there twice",
        "I3" => "what is in the ledger was told to its buyer",
        "I4" => "tokens never go down: no two hold the lock",
        "I5" => "the sale goes on, and holds end",
        _ => "the ledger agrees with the buyers' clocks",
    }
}

/// A time in microseconds since the run's start.
pub(super) fn at(micros: u64) -> String {
    format!("{}.{:06} s", micros / 1_000_000, micros % 1_000_000)
}

/// `1 order`, `2 orders`.
pub(crate) fn count(n: u64, noun: &str) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{n} {noun}{plural}")
}

/// `1 order is`, `2 orders are`.
pub(super) fn are(n: u64, noun: &str) -> String {
    format!("{} {}", count(n, noun), if n == 1 { "is" } else { "are" })
}

/// `1 order was`, `2 orders were`.
pub(super) fn were(n: u64, noun: &str) -> String {
    format!("{} {}", count(n, noun), if n == 1 { "was" } else { "were" })
}
