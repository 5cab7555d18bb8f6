//! The reasons in words.

use std::fmt;
use std::time::Duration;

use super::pause::Pause;
use super::reason::{Moment, Reason};

/// With the name of the invariant, if there is one.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.invariant() {
            Some(invariant) => write!(f, "{invariant:?} {}", Message(self)),
            None => write!(f, "{}", Message(self)),
        }
    }
}

/// A reason without the name of the invariant.
pub(crate) struct Message<'a>(pub(crate) &'a Reason);

impl fmt::Display for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Reason::Restarted => f.write_str(
                "restarted: another sale was started during the run; run again without other clients",
            ),
            Reason::Oversold { orders, units, available } => {
                oversold(f, *orders, *units, *available)
            }
            Reason::Duplicates { orders, example } => write!(
                f,
                "sold twice: {} more than once in the ledger, such as {example}",
                are(*orders, "order")
            ),
            Reason::Lost { orders, without_token, example } => {
                let lost = are(*orders, "acknowledged order");
                write!(f, "lost: {lost} not in the ledger, such as {example}")?;
                match without_token {
                    0 => Ok(()),
                    n => write!(f, " ({n} of them sold without the distributed lock)"),
                }
            }
            Reason::Unacknowledged { orders, example } => write!(
                f,
                "unacknowledged: {} in the ledger without an answer to a buyer, such as {example}",
                are(*orders, "order")
            ),
            Reason::ForeignOrders { orders, example } => write!(
                f,
                "foreign: {} in the ledger and not of this run, such as {example}, and there must be no other \
                 buyers",
                are(*orders, "order")
            ),
            Reason::TokenWentDown { times, position, from, to } => write!(
                f,
                "two holders at once: the tokens in the ledger go down {}, first at position \
                 {position}, from {from} to {to}",
                count(*times, "time")
            ),
            Reason::WithoutToken { orders, example } => write!(
                f,
                "without a token: {} accepted without one, such as {example}, and each must have one",
                were(*orders, "order")
            ),
            Reason::Unbalanced { stock, lucky, initial } => write!(
                f,
                "unbalanced: stock {stock} + lucky {lucky} = {}, and the sale began with {initial}",
                i128::from(*stock) + i128::from(*lucky)
            ),
            Reason::LedgerDoesNotAddUp { what } => write!(f, "the ledger does not add up: {what}"),
            Reason::Misreported { orders, example } => write!(
                f,
                "misreported: the ledger contradicts the answer to {}, such as {example}",
                count(*orders, "order")
            ),
            Reason::SoldOutTooEarly { orders, left } => write!(
                f,
                "sold out too early: {} told sold out, and {left} units are left",
                were(*orders, "order")
            ),
            Reason::Gone { url } => write!(f, "gone: {url} no longer has the sale"),
            Reason::SoldOutBeforeSent { orders, example, answered, taker, sent } => write!(
                f,
                "sold out too early: {} told sold out, such as {example} at {}, while units were \
                 left: {taker}, which took one later, was first sent at {}",
                were(*orders, "order"),
                at(*answered),
                at(*sent)
            ),
            Reason::OutOfOrder { orders, answered, sent } => {
                out_of_order(f, *orders, answered, sent)
            }
            Reason::Paused { pause, limit } => paused(f, *pause, *limit),
            Reason::SlowOrder { orders, example, took, limit } => {
                slow(f, *orders, example, *took, *limit)
            }
            Reason::StatesDiffer { first, second } => {
                write!(f, "the instances disagree: {first}, but {second}")
            }
            Reason::Failed { orders, kinds } => {
                write!(
                    f,
                    "failed: {} answered with an error ({kinds})",
                    were(*orders, "order")
                )
            }
            Reason::Unanswered { orders, of } => write!(
                f,
                "unanswered: {orders} of {} got no answer, too many to judge the sale",
                count(*of, "order")
            ),
            Reason::Unaccounted { acknowledged, taken } => write!(
                f,
                "unaccounted: buyers got {}, and the stock went down by {taken}",
                count(*acknowledged, "unit")
            ),
        }
    }
}

fn oversold(f: &mut fmt::Formatter<'_>, orders: u64, units: u64, available: u64) -> fmt::Result {
    let excess = units.saturating_sub(available);
    if orders == units {
        let (orders, units) = (were(orders, "order"), count(available, "unit"));
        write!(f, "oversold: {orders} acknowledged for {units}, {excess} too many")
    } else {
        let (units, orders) = (were(units, "unit"), count(orders, "order"));
        write!(
            f,
            "oversold: {units} sold in {orders}, and there were {available}: {excess} too many"
        )
    }
}

fn paused(f: &mut fmt::Formatter<'_>, pause: Pause, limit: Duration) -> fmt::Result {
    write!(
        f,
        "paused: for {:.3} s, from {} on, orders were sent and none was decided; {} are allowed",
        pause.length().as_secs_f64(),
        at(pause.from),
        humantime::format_duration(limit)
    )
}

fn slow(
    f: &mut fmt::Formatter<'_>,
    orders: u64,
    example: &str,
    took: Duration,
    limit: Duration,
) -> fmt::Result {
    write!(
        f,
        "slow: {} tried for longer than {}, the longest time {example}: for {:.3} s",
        were(orders, "order"),
        humantime::format_duration(limit),
        took.as_secs_f64()
    )
}

fn out_of_order(
    f: &mut fmt::Formatter<'_>,
    orders: u64,
    answered: &Moment,
    sent: &Moment,
) -> fmt::Result {
    write!(
        f,
        "out of order: {} in the ledger behind an order that was sent only after the answer, such as \
         {} at position {}, answered at {}: {} at position {} was first sent at {}",
        are(orders, "order"),
        answered.order,
        answered.position,
        at(answered.at),
        sent.order,
        sent.position,
        at(sent.at)
    )
}

/// A moment in microseconds since the run's start.
fn at(micros: u64) -> String {
    format!("{}.{:06} s", micros / 1_000_000, micros % 1_000_000)
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
