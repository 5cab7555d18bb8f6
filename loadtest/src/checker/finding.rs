//! What can be wrong with a run.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Something that is wrong with a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// A stable name, such as `oversold`.
    pub kind: String,
    /// The violated invariant, `I1` to `I6`; null if the run proves nothing for another reason.
    pub invariant: Option<String>,
    /// How often it was found.
    pub count: u64,
    /// The first one.
    pub example: String,
    /// The same in words.
    pub text: String,
}

/// The findings so far: how often each, and the first example.
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
    /// Units came back that were not taken.
    NotHeld,
    /// An entry has other units than the order.
    WrongQuantity,
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
    /// Two instances wrote under one token: both held the lock.
    TokenShared,
    /// Orders were accepted without a token, where each must have one.
    WithoutToken,
    /// Units appeared or vanished.
    Unbalanced,
    /// The ledger contradicts itself or the stock.
    LedgerDoesNotAddUp,
    /// An answer differs from the ledger.
    Misreported,
    /// An order that was sent again after its answer got another one.
    AnsweredAnew,
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
    /// Orders that were due were not sent.
    NotSent,
    /// An order that was sent again got its first answer, and not the mark of a repeated one.
    NotMarked,
    /// The service has neither ledger nor tokens, and need not be judged by the sums alone.
    NoLedger,
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
            Self::NotHeld => (Some("I1"), Some("ended without a hold")),
            Self::WrongQuantity => (Some("I1"), Some("in the ledger with other units")),
            Self::Duplicates => (Some("I2"), Some("more than once in the ledger")),
            Self::Lost => (Some("I2"), Some("acknowledged and not in the ledger")),
            Self::EndedTwice => (Some("I2"), Some("ended more than once in the ledger")),
            Self::ChangeLost => (Some("I2"), Some("told otherwise than the ledger has it")),
            Self::Misreported => (Some("I2"), Some("answered otherwise than the ledger has it")),
            Self::AnsweredAnew => (Some("I2"), Some("sent again, and answered otherwise")),
            Self::Gone => (Some("I2"), None),
            Self::Untold => (Some("I3"), Some("in the ledger without an answer to a buyer")),
            Self::Strangers => (Some("I3"), Some("in the ledger, and this run must be alone")),
            Self::WithoutToken => (Some("I4"), Some("accepted without a token")),
            Self::TokenShared => (Some("I4"), Some("written under another instance's token")),
            Self::TokenWentDown => (Some("I4"), None),
            Self::StillHeld => (Some("I5"), Some("held after the end")),
            Self::SlowOrder => (Some("I5"), Some("tried for longer than allowed")),
            Self::Paused => (Some("I5"), None),
            Self::SoldOutTooEarly => (Some("I6"), Some("told sold out, while enough was left")),
            Self::LimitedTooEarly => (Some("I6"), Some("refused while its user had room")),
            Self::OutOfOrder => (Some("I6"), Some("behind an order sent after its answer")),
            Self::HoldNotKept => (Some("I6"), Some("not held as long as it must")),
            Self::NotMarked => {
                (None, Some("sent again, and answered without Idempotency-Replayed"))
            }
            Self::Restarted
            | Self::StatesDiffer
            | Self::Failed
            | Self::Unanswered
            | Self::NotSent
            | Self::NoLedger => (None, None),
        }
    }
}

impl Found {
    pub(crate) fn add(&mut self, kind: Kind, example: impl Into<String>) {
        self.0.entry(kind).or_insert_with(|| (0, example.into())).0 += 1;
    }

    /// The most important first.
    pub(crate) fn findings(self) -> Vec<Finding> {
        let finding = |(kind, (count, example)): (Kind, (u64, String))| {
            let (invariant, of) = kind.row();
            let what = kind.to_string().replace('_', " ");
            let text = match of {
                Some(of) => format!("{what}: {} {of}, such as {example}", were(count, "order")),
                None => format!("{what}: {example}"),
            };
            let (kind, invariant) = (kind.to_string(), invariant.map(str::to_owned));
            Finding { kind, invariant, count, example, text }
        };
        self.0.into_iter().map(finding).collect()
    }
}

impl Finding {
    /// One of a caller's own, under a name that is no kind of the load test.
    pub fn new(name: &str, text: impl Into<String>) -> Self {
        let (name, text) = (name.to_owned(), text.into());
        let (invariant, example) = (Some(name.clone()), text.clone());
        Self { kind: name, invariant, count: 1, example, text }
    }

    /// The invariant, or else the kind.
    pub fn name(&self) -> &str {
        self.invariant.as_deref().unwrap_or(&self.kind)
    }
}

/// With the invariant.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let invariant = self.invariant.iter().try_for_each(|name| write!(f, "{name} "));
        invariant.and_then(|()| f.write_str(&self.text))
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
        "I4" => "tokens never go down, and each is of one instance: no two hold the lock",
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
