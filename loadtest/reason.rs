//! Why a run does not pass, in plain words.

use std::fmt;

/// A fault that was found, the most important first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    /// The sale that is judged is not the one that was measured.
    Restarted,
    /// More units were sold than there were.
    Oversold { orders: u64, units: u64, available: u64 },
    /// One order took its units more than once.
    Duplicates { orders: u64, example: String },
    /// Orders were acknowledged and are not recorded; some of them without a token.
    Lost { orders: u64, without_token: u64 },
    /// Orders are recorded whose buyers were refused, or that nobody sent.
    Untold { orders: u64, example: String },
    /// An instance wrote with an older token after a newer one: two held the lock.
    TokenWentDown { times: u64, position: u64, from: i64, to: i64 },
    /// Units appeared or vanished.
    Unbalanced { stock: i64, lucky: i64, initial: i64 },
    /// The ledger contradicts itself or the stock.
    LedgerDoesNotAddUp { what: String },
    /// A buyer was told something else than the ledger has.
    Misreported { orders: u64, example: String },
    /// Buyers were refused although enough units were left for them.
    SoldOutTooEarly { orders: u64, left: i64 },
    /// The instances disagree.
    StatesDiffer { first: String, second: String },
    /// Buyers got an answer that is neither a yes nor a no.
    Failed { orders: u64, kinds: String },
    /// So many buyers got no answer that the run proves nothing.
    Unanswered { orders: u64, of: u64 },
    /// Without a ledger: the stock does not fit what the buyers were told.
    Unaccounted { told: u64, taken: i64 },
}

impl Reason {
    /// The name in the JSON report.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Restarted => "restarted",
            Self::Oversold { .. } => "oversold",
            Self::Duplicates { .. } => "duplicates",
            Self::Lost { .. } => "lost",
            Self::Untold { .. } => "untold",
            Self::TokenWentDown { .. } => "token_went_down",
            Self::Unbalanced { .. } => "unbalanced",
            Self::LedgerDoesNotAddUp { .. } => "ledger_does_not_add_up",
            Self::Misreported { .. } => "misreported",
            Self::SoldOutTooEarly { .. } => "sold_out_too_early",
            Self::StatesDiffer { .. } => "states_differ",
            Self::Failed { .. } => "failed",
            Self::Unanswered { .. } => "unanswered",
            Self::Unaccounted { .. } => "unaccounted",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Restarted => f.write_str(
                "restarted: somebody started the sale afresh during the run; run again, alone",
            ),
            Self::Oversold { orders, units, available } => {
                let excess = units.saturating_sub(*available);
                if orders == units {
                    write!(
                        f,
                        "oversold: {} acknowledged for {}, {excess} too many",
                        were(*orders, "order"),
                        count(*available, "unit"),
                    )
                } else {
                    write!(
                        f,
                        "oversold: {} sold in {}, and there were {available}: {excess} too many",
                        were(*units, "unit"),
                        count(*orders, "order"),
                    )
                }
            }
            Self::Duplicates { orders, example } => write!(
                f,
                "sold twice: {} more than once in the ledger, such as {example}",
                are(*orders, "order")
            ),
            Self::Lost { orders, without_token } => {
                write!(f, "lost: {} not in the ledger", are(*orders, "acknowledged order"))?;
                match without_token {
                    0 => Ok(()),
                    n => write!(f, " ({n} of them sold without the distributed lock)"),
                }
            }
            Self::Untold { orders, example } => write!(
                f,
                "sold to nobody: {} in the ledger that no buyer was told of, such as {example}",
                are(*orders, "order")
            ),
            Self::TokenWentDown { times, position, from, to } => write!(
                f,
                "two holders at once: the tokens in the ledger go down {}, first at position \
                 {position}, from {from} to {to}",
                count(*times, "time")
            ),
            Self::Unbalanced { stock, lucky, initial } => write!(
                f,
                "unbalanced: stock {stock} + lucky {lucky} = {}, and the sale began with {initial}",
                i128::from(*stock) + i128::from(*lucky)
            ),
            Self::LedgerDoesNotAddUp { what } => write!(f, "the ledger does not add up: {what}"),
            Self::Misreported { orders, example } => write!(
                f,
                "misreported: the ledger contradicts the answer to {}, such as {example}",
                count(*orders, "order")
            ),
            Self::SoldOutTooEarly { orders, left } => write!(
                f,
                "sold out too early: {} told sold out, and {left} units are left",
                were(*orders, "order")
            ),
            Self::StatesDiffer { first, second } => {
                write!(f, "the instances disagree: {first}, but {second}")
            }
            Self::Failed { orders, kinds } => {
                write!(
                    f,
                    "failed: {} answered neither yes nor no ({kinds})",
                    were(*orders, "order")
                )
            }
            Self::Unanswered { orders, of } => write!(
                f,
                "unanswered: {orders} of {} got no answer, too many to judge the sale",
                count(*of, "order")
            ),
            Self::Unaccounted { told, taken } => write!(
                f,
                "unaccounted: buyers were told of {}, and the stock went down by {taken}",
                count(*told, "unit")
            ),
        }
    }
}

/// `1 order`, `2 orders`.
pub(crate) fn count(n: u64, noun: &str) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{n} {noun}{plural}")
}

fn are(n: u64, noun: &str) -> String {
    format!("{} {}", count(n, noun), if n == 1 { "is" } else { "are" })
}

/// `1 order was`, `2 orders were`.
pub(crate) fn were(n: u64, noun: &str) -> String {
    format!("{} {}", count(n, noun), if n == 1 { "was" } else { "were" })
}
