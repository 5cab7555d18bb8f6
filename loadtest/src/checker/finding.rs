//! What can be wrong with a run.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Something that is wrong with a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// A stable name, such as `oversold`.
    pub kind: String,
    /// The violated invariant, `I1` to `I6`. Null if none is violated, but the run proves nothing.
    pub invariant: Option<String>,
    /// How often it was found.
    pub count: u64,
    /// The first example.
    pub example: String,
    /// The finding in words.
    pub text: String,
}

/// The findings so far: the number of times, and the first example of each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found(BTreeMap<Kind, (u64, String)>);

/// Defines the kinds, each with the violated invariant, and, where orders are counted, with what is wrong with each of them. A
/// kind without an invariant means that the run proves nothing.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident $invariant:literal $of:literal,)*) => {
        /// The kinds of findings; the most important ones come first.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub(crate) enum Kind {
            $($(#[$doc])* $kind,)*
        }

        impl Kind {
            fn row(self) -> (&'static str, &'static str) {
                match self {
                    $(Self::$kind => ($invariant, $of),)*
                }
            }
        }
    };
}

kinds! {
    /// Another sale was started during the run.
    Restarted "" "",
    /// More units were sold than there were.
    Oversold "I1" "",
    /// One order took its units more than once.
    Duplicates "I2" "more than once in the ledger",
    /// Orders were acknowledged and are not recorded.
    Lost "I2" "acknowledged and not in the ledger",
    /// Units came back twice, or units of a confirmed hold came back, or an order was confirmed twice.
    EndedTwice "I2" "ended more than once in the ledger",
    /// Units came back that were never taken.
    NotHeld "I1" "ended without a hold",
    /// An order was returned that was not final.
    NotConfirmed "I1" "returned, and was not confirmed",
    /// An entry has another quantity than the order.
    WrongQuantity "I1" "in the ledger with other units",
    /// A buyer was told that an order is confirmed, cancelled, expired or returned, and the ledger says otherwise.
    ChangeLost "I2" "told otherwise than the ledger has it",
    /// An instance no longer has the sale.
    Gone "I2" "",
    /// The ledger has orders whose buyers were refused, or that were not sent.
    Untold "I3" "in the ledger without an answer to a buyer",
    /// The ledger has orders of other clients, although `--alone` allows none.
    Strangers "I3" "in the ledger, and this run must be alone",
    /// An instance wrote with an older token after a newer one: two held the lock.
    TokenWentDown "I4" "",
    /// Two instances wrote under one token: both held the lock.
    TokenShared "I4" "written under another instance's token",
    /// Orders were accepted without a token, although each must have one.
    WithoutToken "I4" "accepted without a token",
    /// Units appeared or vanished.
    Unbalanced "I1" "",
    /// The ledger contradicts itself or the stock.
    LedgerDoesNotAddUp "I1" "",
    /// An answer differs from the ledger.
    Misreported "I2" "answered otherwise than the ledger has it",
    /// An order was sent again after its answer, and got another answer.
    AnsweredAnew "I2" "sent again, and answered otherwise",
    /// Buyers were told that the item is sold out, although enough units were left or held.
    SoldOutTooEarly "I6" "told sold out, while enough was left or held",
    /// Buyers were told to wait: that all units are held, although enough were left, or too few were held; or that the sale is
    /// paused, although it was not.
    NotAllHeld "I6" "told that all is held or the sale paused, while that was not so",
    /// The ledger has an order behind one that was sent only after its answer.
    OutOfOrder "I6" "behind an order sent after its answer",
    /// A hold ended too early, or was confirmed after its end.
    HoldNotKept "I6" "not held as long as it must",
    /// Orders were accepted while a change kept the sale closed.
    AcceptedWhileClosed "I1" "accepted while the sale was paused or had ended",
    /// A user has more units than allowed.
    OverLimit "I1" "accepted beyond the limit of its user",
    /// Buyers were refused for their limit, although they had room.
    LimitedTooEarly "I6" "refused while its user had room",
    /// While orders were sent, none was decided for too long.
    Paused "I5" "",
    /// Holds did not end.
    StillHeld "I5" "held after the end",
    /// An order was tried for too long before it was settled.
    SlowOrder "I5" "tried for longer than allowed",
    /// The instances report different states.
    StatesDiffer "" "",
    /// Orders were answered with an error.
    Failed "" "",
    /// Too many orders got no answer.
    Unanswered "" "",
    /// Orders that were due were not sent.
    NotSent "" "",
    /// An answer is marked as repeated and is not, or the other way round.
    Mismarked "" "answered with a wrong Idempotency-Replayed",
    /// The service has neither ledger nor tokens, and the flags do not allow that.
    NoLedger "" "",
    /// Without a ledger: the stock does not fit the answers.
    Unaccounted "I1" "",
}

impl Found {
    pub(crate) fn add(&mut self, kind: Kind, example: impl Into<String>) {
        self.0.entry(kind).or_insert_with(|| (0, example.into())).0 += 1;
    }

    /// The findings, the most important first.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        let finding = |(kind, (count, example)): (&Kind, &(u64, String))| {
            let (invariant, of) = kind.row();
            let what = kind.to_string().replace('_', " ");
            let text = match of {
                "" => format!("{what}: {example}"),
                of => format!("{what}: {} {of}, such as {example}", were(*count, "order")),
            };
            let invariant = Some(invariant.to_owned()).filter(|name| !name.is_empty());
            let (kind, example) = (kind.to_string(), example.clone());
            Finding { kind, invariant, count: *count, example, text }
        };
        self.0.iter().map(finding).collect()
    }
}

impl Finding {
    /// A finding of the caller, under a name that is no [`Kind`].
    pub fn new(name: &str, text: impl Into<String>) -> Self {
        let (name, text) = (name.to_owned(), text.into());
        let (invariant, example) = (Some(name.clone()), text.clone());
        Self { kind: name, invariant, count: 1, example, text }
    }

    /// The violated invariant; without one, the kind.
    pub fn name(&self) -> &str {
        self.invariant.as_deref().unwrap_or(&self.kind)
    }
}

/// The invariant, and the finding in words.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let invariant = self.invariant.iter().try_for_each(|name| write!(f, "{name} "));
        invariant.and_then(|()| f.write_str(&self.text))
    }
}

/// The name as in the JSON report.
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
