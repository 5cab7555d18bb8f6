//! The failures that the checker can find.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

/// The failures of a run: how often each was found, and the first example.
#[derive(Debug, Default)]
pub(crate) struct Found(BTreeMap<Kind, (u64, String)>);

/// What can fail; the most important kinds come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
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
    Untold,
    /// Orders of other clients are recorded, and none are allowed.
    Strangers,
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
    /// The violated invariant, and what is wrong with an order, where orders are counted. Without an invariant, the run
    /// proves nothing for another reason.
    pub(crate) fn row(self) -> (Option<&'static str>, Option<&'static str>) {
        match self {
            Self::Oversold | Self::Unbalanced | Self::LedgerDoesNotAddUp | Self::Unaccounted => {
                (Some("I1"), None)
            }
            Self::OverLimit => (Some("I1"), Some("accepted beyond the limit of its user")),
            Self::Duplicates => (Some("I2"), Some("more than once in the ledger")),
            Self::Lost => (Some("I2"), Some("acknowledged and not in the ledger")),
            Self::EndedTwice => (Some("I2"), Some("ended more than once in the ledger")),
            Self::ChangeLost => (Some("I2"), Some("told otherwise than the ledger has it")),
            Self::Misreported => (Some("I2"), Some("answered otherwise than the ledger has it")),
            Self::Gone => (Some("I2"), None),
            Self::Untold => (Some("I3"), Some("in the ledger without an answer to a buyer")),
            Self::Strangers => (Some("I3"), Some("in the ledger, and this run must be alone")),
            Self::WithoutToken => (Some("I4"), Some("accepted without a token")),
            Self::TokenWentDown => (Some("I4"), None),
            Self::StillHeld => (Some("I5"), Some("held after the end")),
            Self::SlowOrder => (Some("I5"), Some("tried for longer than allowed")),
            Self::Paused => (Some("I5"), None),
            Self::SoldOutTooEarly => (Some("I6"), Some("told sold out, while enough was left")),
            Self::LimitedTooEarly => (Some("I6"), Some("refused while its user had room")),
            Self::OutOfOrder => (Some("I6"), Some("behind an order sent after its answer")),
            Self::HoldNotKept => (Some("I6"), Some("not held as long as it must")),
            Self::Restarted | Self::StatesDiffer | Self::Failed | Self::Unanswered => (None, None),
        }
    }
}

impl Found {
    pub(crate) fn add(&mut self, kind: Kind, example: impl Into<String>) {
        self.0.entry(kind).or_insert_with(|| (0, example.into())).0 += 1;
    }

    pub(crate) fn has(&self, kind: Kind) -> bool {
        self.0.contains_key(&kind)
    }

    /// The failures in words, without the names of invariants; the most important first.
    pub(crate) fn sentences(self) -> impl Iterator<Item = (Kind, String)> {
        self.0.into_iter().map(|(kind, (times, example))| {
            let what = kind.to_string().replace('_', " ");
            let sentence = match kind.row().1 {
                Some(of) => format!("{what}: {} {of}, such as {example}", were(times, "order")),
                None => format!("{what}: {example}"),
            };
            (kind, sentence)
        })
    }
}

/// The name in the JSON report.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// An invariant in words.
pub(crate) fn meaning(invariant: &str) -> &'static str {
    match invariant {
        "I1" => "no more is sold than there is, or than a user may have; the sums are right",
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

/// `1 order was`, `2 orders were`.
pub(super) fn were(n: u64, noun: &str) -> String {
    format!("{} {}", count(n, noun), if n == 1 { "was" } else { "were" })
}
