//! I6: the ledger agrees with the clients' clock.
//!
//! All times are of one clock, that of the load test. An entry takes effect at one moment between its
//! first sending and its answer, and the ledger is said to be the order of those moments. A hold ends by Redis'
//! clock, which is compared with some tolerance.

use std::collections::HashMap;

use super::history::{History, LedgerEntry, order_id, u64_from};
use super::order::{Event, FinalOutcome, Order};
use super::reason::{Kind, Reason, are, at, were};

/// By how much the clocks may differ: this part of a hold.
const CLOCK_TOLERANCE: u64 = 50;

/// When an entry took effect, in microseconds: not before, and not after. Of other buyers that is not known.
#[derive(Clone, Copy, Debug)]
struct Span {
    from: u64,
    to: u64,
}

/// The times in which too few units were left for an order, in the stock or of what a user may have.
#[derive(Debug)]
struct Shortage {
    left: i64,
    needed: i64,
    /// The earliest time at which the present one began.
    since: Option<u64>,
    /// The earliest beginnings and the latest ends of the others, in order.
    past: Vec<Span>,
}

impl Shortage {
    fn of(left: i64, quantity: u64) -> Self {
        let needed = i64::try_from(quantity).unwrap_or(i64::MAX);
        Self { left, needed, since: (left < needed).then_some(0), past: Vec::new() }
    }

    /// Adds an entry, which comes not before `from` and not after `to`.
    fn add(&mut self, units: i64, Span { from, to }: Span) {
        self.left = self.left.saturating_add(units);
        if self.left < self.needed {
            self.since.get_or_insert(from);
        } else if let Some(from) = self.since.take() {
            self.past.push(Span { from, to });
        }
    }

    /// Whether there may have been one between these times.
    fn explains(&self, order: &Order) -> bool {
        let next = self.past.partition_point(|past| past.to < order.sent);
        let from = self.past.get(next).map(|past| past.from).or(self.since);
        from.is_some_and(|from| from <= order.ended)
    }
}

/// What in the ledger contradicts the times. Where accepted orders are lost, refusals cannot be judged.
pub(super) fn reasons(history: &History, is_whole: bool) -> Vec<Reason> {
    let spans = spans(history);
    let mut reasons: Vec<_> = out_of_order(history, &spans).into_iter().collect();
    reasons.extend(hold_not_kept(history, &spans));
    // an entry comes after all before it, and before all behind it
    let mut bounds = spans;
    for place in 1..bounds.len() {
        bounds[place].from = bounds[place].from.max(bounds[place - 1].from);
    }
    for place in (1..bounds.len()).rev() {
        bounds[place - 1].to = bounds[place - 1].to.min(bounds[place].to);
    }
    let mut of_stock = Shortage::of(history.before.stock, history.quantity);
    let mut of_users = HashMap::new();
    let limit = history.before.per_user.map(|limit| i64::try_from(limit).unwrap_or(i64::MAX));
    let new_user = || Shortage::of(limit.unwrap_or(i64::MAX), history.quantity);
    let mut over = Vec::new();
    for (entry, bounds) in history.ledger.iter().zip(bounds) {
        let units = entry.event.to_stock(entry.quantity);
        of_stock.add(units, bounds);
        if limit.is_some() {
            let of_user = of_users.entry(entry.user.clone()).or_insert_with(new_user);
            of_user.add(units, bounds);
            if of_user.left < 0 && units < 0 {
                over.push(format!("{} with {}", entry.user, entry.order));
            }
        }
    }
    if let Some(example) = over.first() {
        let times = were(u64_from(over.len()), "order");
        reasons.push(Kind::OverLimit.because(format!("{times} accepted, such as of {example}")));
    }
    if !is_whole {
        return reasons;
    }
    let explains = |_: usize, order: &Order| of_stock.explains(order);
    reasons.extend(refused(history, &FinalOutcome::SoldOut, explains));
    // without a limit for each user, it is that of an order
    let is_by_user =
        limit.is_some() && history.before.per_order.is_none_or(|most| history.quantity <= most);
    let has_nothing = new_user();
    let explains = |number: usize, order: &Order| {
        let of_user = of_users.get(&history.user(number)).unwrap_or(&has_nothing);
        !is_by_user || of_user.explains(order)
    };
    reasons.extend(refused(history, &FinalOutcome::LimitReached, explains));
    reasons
}

/// The orders that were refused so, and nothing explains it.
fn refused(
    history: &History,
    outcome: &FinalOutcome,
    explains: impl Fn(usize, &Order) -> bool,
) -> Option<Reason> {
    let (kind, told) = match outcome {
        FinalOutcome::SoldOut => (Kind::SoldOutTooEarly, "sold out"),
        _ => (Kind::LimitedTooEarly, "that the limit is reached"),
    };
    let wrong: Vec<_> = (history.orders.iter().enumerate())
        .filter(|(_, order)| order.outcome == *outcome && order.attempts > 0)
        .filter(|(number, order)| !explains(*number, order))
        .collect();
    let (number, order) = wrong.iter().min_by_key(|(_, order)| order.ended)?;
    let (orders, id) = (were(u64_from(wrong.len()), "order"), order_id(&history.run, *number));
    let (sent, answered) = (at(order.sent), at(order.ended));
    Some(kind.because(format!(
        "{orders} told {told}, such as {id}, first sent at {sent} and answered at {answered}, while enough was left"
    )))
}

/// When each entry took effect, as far as this run's clients know.
fn spans(history: &History) -> Vec<Span> {
    let mut seen = vec![[false; 2]; history.orders.len()];
    let hold = hold(history);
    let spans = history.ledger.iter().map(|entry| {
        let any = Span { from: 0, to: u64::MAX };
        let Some((number, order)) = order(history, entry) else { return any };
        // an order that is there twice is reported elsewhere
        if std::mem::replace(&mut seen[number][usize::from(entry.event != Event::Reserved)], true) {
            return any;
        }
        let told = order.told().filter(|(told, _)| *told == entry.event).map(|(_, at)| at);
        let asked = order.asked().filter(|(event, _)| *event == entry.event);
        let from = match entry.event {
            Event::Reserved => order.sent,
            Event::Expired => order.sent.saturating_add(hold - hold / CLOCK_TOLERANCE),
            _ => asked.map(|(_, asked)| asked.sent).min().unwrap_or(0),
        };
        Span {
            from,
            to: order
                .acknowledged()
                .filter(|_| entry.event == Event::Reserved)
                .or(told.min())
                .unwrap_or(u64::MAX),
        }
    });
    spans.collect()
}

/// The order of an entry, if it is one of this run's and was sent.
fn order<'h>(history: &'h History, entry: &LedgerEntry) -> Option<(usize, &'h Order)> {
    let number = history.own(entry)?;
    let order = history.orders.get(number).filter(|order| order.attempts > 0)?;
    Some((number, order))
}

/// How long a hold lasts, in microseconds.
fn hold(history: &History) -> u64 {
    history.before.hold_seconds.unwrap_or(0).saturating_mul(1_000_000)
}

fn out_of_order(history: &History, spans: &[Span]) -> Option<Reason> {
    // the entry so far that was sent last
    let mut latest = 0;
    let mut times = 0;
    // of those, the one that was answered longest before the entry in front of it was sent
    let mut clearest = (0, 0, 0);
    for (place, span) in spans.iter().enumerate() {
        if span.to < spans[latest].from && place > latest {
            times += 1;
            clearest = clearest.max((spans[latest].from - span.to, place, latest));
        }
        if spans[latest].from < span.from {
            latest = place;
        }
    }
    let (_, behind, before) = clearest;
    let of = |place: usize| {
        let LedgerEntry { order, position, .. } = &history.ledger[place];
        format!("{order} at position {position}")
    };
    (times > 0).then(|| {
        Kind::OutOfOrder.because(format!(
            "{} in the ledger behind an order that was sent only after the answer, such as {}, answered at {}: \
             {} was first sent at {}",
            are(times, "order"),
            of(behind),
            at(spans[behind].to),
            of(before),
            at(spans[before].from)
        ))
    })
}

/// Holds that ended before their time, or were confirmed or cancelled after it, by the clients' clock.
fn hold_not_kept(history: &History, spans: &[Span]) -> Option<Reason> {
    let hold = Some(hold(history)).filter(|hold| *hold > 0)?;
    let mut wrong = history.ledger.iter().zip(spans).filter(|(entry, span)| {
        let latest = match (entry.event, order(history, entry)) {
            (Event::Expired, _) => return span.to < span.from,
            (Event::Confirmed | Event::Cancelled, Some((_, order))) => order.acknowledged(),
            _ => None,
        };
        let latest = latest.map(|latest| latest.saturating_add(hold + hold / CLOCK_TOLERANCE));
        span.to < u64::MAX && latest.is_some_and(|latest| span.from > latest)
    });
    let (entry, span) = wrong.next()?;
    let holds = were(1 + u64_from(wrong.count()), "hold");
    let (order, event, told) = (&entry.order, entry.event, at(span.to));
    let example = format!("such as {order}, {event:?}, told at {told}");
    Some(Kind::HoldNotKept.because(format!("{holds} not as long as it must, {example}")))
}
