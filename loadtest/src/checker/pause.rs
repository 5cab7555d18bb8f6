//! I5: pauses.
//!
//! A pause belongs to the sale as a whole: it begins while an order waits at any instance, and any decision ends it. It
//! includes the time in which all orders wait for a silent instance, which `--attempt-timeout` bounds. One order that hangs
//! while others are answered shows as the slowest order, not as a pause.

use std::time::Duration;

use super::order::Order;

/// A part of a run, in microseconds since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pause {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Pause {
    pub(crate) fn length(self) -> Duration {
        Duration::from_micros(self.to.saturating_sub(self.from))
    }
}

/// The events of an order. Events at the same time are sorted as listed here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Sent,
    GivenUp,
    Decided,
}

/// The longest time in which orders were tried and none was decided; of equal ones the first. *Sold out* is a decision. *All
/// held* and *paused* are until the buyer tries again. A later request for an order counts as an order.
///
/// A pause begins with a decision while other orders wait, or else with the next order. It ends with the next decision, or with
/// the last order. An order that fails does not end it.
pub(crate) fn longest(orders: &[Order]) -> Pause {
    let questions = orders.iter().flat_map(Order::questions).map(|(_, asked)| asked);
    let mut events: Vec<_> = questions
        .filter(|asked| asked.attempts > 0)
        .flat_map(|order| {
            let end = if order.is_decided() { Event::Decided } else { Event::GivenUp };
            let waits = order.held.iter().filter_map(|held| Some((held.ended, held.again?)));
            let told = |(ended, again)| [(ended, Event::Decided), (again, Event::Sent)];
            let rest = [(order.sent, Event::Sent), (order.ended, end)];
            rest.into_iter().chain(waits.flat_map(told))
        })
        .collect();
    events.sort_unstable();
    let last = events.len().saturating_sub(1);
    let mut longest = Pause::default();
    let mut waiting = 0_usize;
    let mut since = None;
    for (number, (at, event)) in events.into_iter().enumerate() {
        if event == Event::Sent {
            waiting += 1;
            since = since.or(Some(at));
            continue;
        }
        waiting -= 1;
        if event == Event::Decided || number == last {
            let pause = Pause { from: since.unwrap_or(at), to: at };
            since = (waiting > 0).then_some(at);
            if pause.length() > longest.length() {
                longest = pause;
            }
        }
    }
    longest
}
