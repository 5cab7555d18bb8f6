//! I5: pauses and slow orders.
//!
//! A pause is of the sale as a whole: it begins while an order waits at any instance, and any decision ends
//! it. It includes the time in which all orders wait for an instance that does not answer, which
//! `--attempt-timeout` bounds. It does not show one order that hangs while others are answered: the slowest
//! order does.

use std::time::Duration;

use super::order::Order;

/// A stretch of a run, in microseconds since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pause {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Pause {
    pub(crate) fn length(self) -> Duration {
        Duration::from_micros(self.to.saturating_sub(self.from))
    }
}

/// The longest time in which orders were tried and none was decided; the first one of several. (Sold out is a
/// decision.)
///
/// It begins with an answer while other orders wait, or else with the first order after it, and ends
/// with the next answer, or with the last order's end. Orders that fail do not end it.
pub(crate) fn longest(orders: &[Order]) -> Pause {
    let tried: Vec<_> = orders.iter().filter(|order| order.attempts > 0).collect();
    let mut answers: Vec<_> =
        tried.iter().filter(|order| order.is_decided()).map(|order| order.ended).collect();
    answers.sort_unstable();
    let mut sent: Vec<_> = tried.iter().map(|order| order.sent).collect();
    sent.sort_unstable();
    let mut ended: Vec<_> = tried.iter().map(|order| order.ended).collect();
    ended.sort_unstable();
    let (Some(&start), Some(&end)) = (sent.first(), ended.last()) else { return Pause::default() };

    let mut longest = Pause { from: start, to: answers.first().copied().unwrap_or(end) };
    let (mut begun, mut over) = (0, 0);
    for (number, &answer) in answers.iter().enumerate() {
        begun += sent[begun..].iter().take_while(|sent| **sent <= answer).count();
        over += ended[over..].iter().take_while(|ended| **ended <= answer).count();
        let from = if begun > over {
            answer
        } else if let Some(&next) = sent.get(begun) {
            next
        } else {
            break;
        };
        let pause = Pause { from, to: answers.get(number + 1).copied().unwrap_or(end) };
        if pause.length() > longest.length() {
            longest = pause;
        }
    }
    longest
}

/// The time of an order: from its first sending to its decision, or to the end of its last attempt. It
/// includes the time in which its buyer was away on purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slowest {
    /// The order's number.
    pub(crate) number: usize,
    pub(crate) pause: Pause,
}

/// The order that took longest; the first one of several.
pub(crate) fn slowest(orders: &[Order]) -> Slowest {
    let mut slowest = Slowest::default();
    for (number, order) in orders.iter().enumerate() {
        let pause = Pause { from: order.sent, to: order.ended };
        if order.attempts > 0 && pause.length() > slowest.pause.length() {
            slowest = Slowest { number, pause };
        }
    }
    slowest
}
