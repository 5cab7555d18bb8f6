//! Random sales that are right must pass, and damage to them is found.

use std::collections::BTreeSet;
use std::time::Duration;

use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_xoshiro::SplitMix64;

use super::*;

const SEEDS: u64 = 300;

/// The length of a hold, in milliseconds.
const HOLD: u64 = 1000;

/// What becomes of the answers to a question.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Answered,
    /// The first answer was lost, or all of them.
    Resolved,
    Lost,
    Refused,
    Failed,
}

/// What takes effect.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Effect {
    Order(Fate),
    /// The change of an order at this place, unless it does not arrive.
    Change(usize, Fate),
    HoldEnds,
}

/// A sale in the making.
struct Sale {
    history: History,
    /// Times in milliseconds, with the numbers of the orders.
    to_come: BTreeSet<(u64, usize, Effect)>,
    stock: i64,
    token: i64,
}

impl Sale {
    /// Takes effect, and is what the answer says.
    fn write(&mut self, random: &mut SplitMix64, number: usize, event: Event) -> FinalOutcome {
        let History { quantity, ledger, .. } = &self.history;
        self.stock += event.to_stock(*quantity);
        self.token += random.random_range(0..3);
        let position = u64_from(ledger.len()) + 1;
        let (remaining, token) = (self.stock, Some(self.token));
        let entry = LedgerEntry {
            position,
            event,
            order: order_id(RUN, number),
            user: self.history.user(number),
            quantity: *quantity,
            remaining,
            instance: Some("8080".to_owned()),
            token,
        };
        self.history.ledger.push(entry);
        acknowledged(remaining, token)
    }

    /// A new question, sent at a time, with its answer. Returns when it takes effect, and whether it arrives.
    fn ask(random: &mut SplitMix64, sent: u64) -> (Order, u64, Fate) {
        let ended = sent + random.random_range(1..=200);
        let fate = match random.random_range(0..20) {
            0..15 => Fate::Answered,
            15 => Fate::Resolved,
            16 | 17 => Fate::Lost,
            18 => Fate::Refused,
            _ => Fate::Failed,
        };
        let late = if fate == Fate::Lost { 300 } else { 0 };
        let in_doubt = matches!(fate, Fate::Resolved | Fate::Lost);
        let (sent, at) = (sent * 1000, random.random_range(sent..ended + late));
        let asked = Order { attempts: 1, in_doubt, sent, ended: ended * 1000, ..Order::default() };
        (asked, at, fate)
    }

    /// What the ledger says of the hold of an order.
    fn end(&self, number: usize) -> Option<Event> {
        let id = order_id(RUN, number);
        let mut entries = self.history.ledger.iter().rev().filter(|entry| entry.order == id);
        entries.next().map(|last| last.event).filter(|event| *event != Event::Reserved)
    }

    /// The units that the user of an order has.
    fn has(&self, number: usize) -> i64 {
        let user = self.history.user(number);
        let of_user = self.history.ledger.iter().filter(|entry| entry.user == user);
        -of_user.map(|entry| entry.event.to_stock(entry.quantity)).sum::<i64>()
    }

    fn order(&mut self, random: &mut SplitMix64, at: u64, number: usize) -> FinalOutcome {
        let units = i64::try_from(self.history.quantity).expect("small");
        let limit = self.history.before.per_user.map(|limit| i64::try_from(limit).expect("small"));
        if limit.is_some_and(|limit| self.has(number) + units > limit) {
            return FinalOutcome::LimitReached;
        }
        if self.stock < units {
            return SoldOut;
        }
        let outcome = self.write(random, number, Event::Reserved);
        if self.history.before.hold_seconds.is_some() {
            self.to_come.insert((at + HOLD, number, Effect::HoldEnds));
        }
        outcome
    }

    /// What the buyer does with an order that was accepted: once, twice or not at all.
    fn settle(&mut self, random: &mut SplitMix64, number: usize) {
        let mut from = self.history.orders[number].ended / 1000;
        for place in 0..random.random_range(0..3) {
            let sent = from + random.random_range(0..HOLD + HOLD / 4);
            let (asked, at, fate) = Self::ask(random, sent);
            from = asked.ended / 1000;
            let event = if random.random_bool(0.7) { Event::Confirmed } else { Event::Cancelled };
            self.history.orders[number].changes.push((event, asked));
            self.to_come.insert((at, number, Effect::Change(place, fate)));
        }
    }

    fn change(&mut self, random: &mut SplitMix64, number: usize, place: usize, fate: Fate) {
        let event = self.history.orders[number].changes[place].0;
        let outcome = match self.end(number) {
            _ if fate == Fate::Lost && random.random_bool(0.5) => return,
            _ if matches!(fate, Fate::Refused | Fate::Failed) => return,
            None => self.write(random, number, event),
            Some(end) if end == event => {
                let id = order_id(RUN, number);
                let ends = |entry: &&LedgerEntry| entry.order == id && entry.event == end;
                let entry = self.history.ledger.iter().find(ends).expect("it ended");
                acknowledged(entry.remaining, entry.token)
            }
            Some(end) => FinalOutcome::Over(end),
        };
        if fate != Fate::Lost {
            self.history.orders[number].changes[place].1.outcome = outcome;
        }
    }
}

/// A sale as it should be: everything takes effect at one moment between its first sending and its answer, or at any
/// later one if there was none. Half of the sales have holds, and half have users with a limit.
fn sale(random: &mut SplitMix64) -> History {
    let initial = random.random_range(1..=60);
    let users = if random.random_bool(0.5) { random.random_range(1..20) } else { 0 };
    let before = StockState {
        stock: initial,
        initial,
        per_user: (users > 0).then(|| random.random_range(1..8)),
        hold_seconds: random.random_bool(0.5).then_some(HOLD / 1000),
        ..StockState::default()
    };
    let history = History {
        run: RUN.to_owned(),
        family: RUN.to_owned(),
        alone: true,
        tokens: true,
        quantity: random.random_range(1..=3),
        users,
        before: before.clone(),
        ..History::default()
    };
    let mut sale = Sale { history, to_come: BTreeSet::new(), stock: initial, token: 100 };
    for number in 0..random.random_range(20..80) {
        let sent = random.random_range(0..3000);
        let (order, at, fate) = Sale::ask(random, sent);
        sale.history.orders.push(order);
        sale.to_come.insert((at, number, Effect::Order(fate)));
    }
    while let Some((at, number, effect)) = sale.to_come.pop_first() {
        match effect {
            Effect::Order(Fate::Answered | Fate::Resolved) => {
                let outcome = sale.order(random, at, number);
                sale.history.orders[number].outcome = outcome;
                if sale.history.orders[number].acknowledged().is_some()
                    && before.hold_seconds.is_some()
                {
                    sale.settle(random, number);
                }
            }
            Effect::Order(Fate::Lost) if random.random_bool(0.5) => {
                sale.order(random, at, number);
            }
            Effect::Order(Fate::Failed) => {
                let kind = "400 bad-item".to_owned();
                sale.history.orders[number].outcome = FinalOutcome::Failed { status: 400, kind };
            }
            Effect::Change(place, fate) => sale.change(random, number, place, fate),
            Effect::HoldEnds if sale.end(number).is_none() => {
                sale.write(random, number, Event::Expired);
            }
            Effect::Order(Fate::Lost | Fate::Refused) | Effect::HoldEnds => {}
        }
    }
    let Sale { mut history, stock, .. } = sale;
    history.after = vec![("a".to_owned(), before)];
    tell_state(&mut history, stock);
    history
}

/// Makes the state at the end that of the ledger.
fn tell_state(history: &mut History, stock: i64) {
    let is_order = |entry: &&LedgerEntry| entry.event == Event::Reserved;
    let orders = u64_from(history.ledger.iter().filter(is_order).count());
    let entries = Some(u64_from(history.ledger.len()));
    let (_, after) = &mut history.after[0];
    *after = StockState { stock, lucky: after.initial - stock, orders, entries, ..after.clone() };
}

/// Puts numbers and sums of the ledger right.
fn renumber(history: &mut History) {
    let mut remaining = history.before.stock;
    for (position, entry) in (1..).zip(&mut history.ledger) {
        remaining += entry.event.to_stock(entry.quantity);
        (entry.position, entry.remaining) = (position, remaining);
    }
    tell_state(history, remaining);
}

fn violations(history: &History, longest_pause: Option<Duration>) -> Vec<&'static str> {
    let limits = Limits { longest_pause, ..Limits::default() };
    let verdict = judge(history, limits);
    verdict.reasons.iter().filter_map(|reason| reason.kind.invariant()).collect()
}

/// Goal: no sale that is right is accused of anything. A limit that is a little less than its longest pause is broken,
/// and no other invariant.
#[test]
fn right_sales_pass() {
    for seed in 0..SEEDS {
        let history = sale(&mut SplitMix64::seed_from_u64(seed));
        let verdict = judge(&history, Limits::default());
        let longest = verdict.longest_pause.length();
        let found = violations(&history, Some(longest));
        assert_eq!(found, [""; 0], "seed {seed}: {:?} {history:?}", verdict.reasons);
        let less = longest.saturating_sub(Duration::from_micros(1));
        assert_eq!(violations(&history, Some(less)), ["I5"], "seed {seed}");
    }
}

/// Goal: in every sale with holds it is found when an end is in the ledger a second time (a unit returned twice, a
/// cancellation doubled, an expiry after a confirmation), or lost after its buyer was told.
#[test]
fn damaged_ends_are_found() {
    let mut found = BTreeSet::new();
    for seed in 0..SEEDS {
        let mut random = SplitMix64::seed_from_u64(seed);
        let good = sale(&mut random);
        let ends: Vec<_> = (0..good.ledger.len())
            .filter(|place| good.ledger[*place].event != Event::Reserved)
            .collect();
        let Some(&place) = ends.choose(&mut random) else { continue };
        let end = good.ledger[place].clone();
        for again in [None, Some(Event::Confirmed), Some(Event::Cancelled), Some(Event::Expired)] {
            let mut damaged = good.clone();
            let expected = if let Some(event) = again {
                damaged.ledger.push(LedgerEntry { event, ..end.clone() });
                "ended_twice"
            } else {
                damaged.ledger.remove(place);
                let number = good.own(&end).expect("there are no others");
                let is_told = good.orders[number].told().next().is_some();
                if is_told { "change_lost" } else { "still_held" }
            };
            renumber(&mut damaged);
            let verdict = judge(&damaged, Limits::default());
            let kinds: Vec<_> = verdict.reasons.iter().map(|reason| reason.kind.name()).collect();
            assert!(kinds.contains(&expected), "seed {seed}: {kinds:?}, and not {expected}");
            found.insert((end.event, again));
        }
    }
    assert_eq!(found.len(), 12, "{found:?}");
}
