//! Random good sales must pass, and damage to them is found.

use std::collections::BTreeSet;
use std::time::Duration;

use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_xoshiro::SplitMix64;

use super::*;

const SEEDS: u64 = 300;

/// The length of a hold, in milliseconds.
const HOLD: u64 = 1000;

/// How a request's answers get lost.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Answered,
    /// The first answer is lost, or all of them are.
    Resolved,
    Lost,
    Refused,
    Failed,
}

/// Something that takes effect later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Effect {
    Order(Fate),
    /// The later request at this place of an order, unless it does not arrive.
    Change(usize, Fate),
    HoldEnds,
}

/// A sale under construction.
struct Run {
    sale: Sale,
    setup: Setup,
    orders: Vec<Order>,
    /// Effects to come: times in milliseconds, with the orders' numbers.
    to_come: BTreeSet<(u64, usize, Effect)>,
}

impl Run {
    /// A new request, sent at this time, and its answer. Returns when it takes effect, and whether it arrives.
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
        let ended = ended * 1000;
        let asked =
            Order { attempts: 1, in_doubt, sent, last_sent: sent, ended, ..Order::default() };
        (asked, at, fate)
    }

    /// The order takes effect. Returns the outcome for its answer.
    fn order(&mut self, at: u64, number: usize) -> FinalOutcome {
        let quantity = self.setup.plan.quantity;
        let outcome = self.sale.order(&self.setup.id(number), &self.setup.user(number), quantity);
        if self.sale.before.hold_seconds.is_some() {
            self.to_come.insert((at + HOLD, number, Effect::HoldEnds));
        }
        outcome
    }

    /// The buyer's later requests for an accepted order: once, twice or none.
    fn settle(&mut self, random: &mut SplitMix64, number: usize) {
        let mut from = self.orders[number].ended / 1000;
        for place in 0..random.random_range(0..3) {
            let sent = from + random.random_range(0..HOLD + HOLD / 4);
            let (asked, at, fate) = Self::ask(random, sent);
            from = asked.ended / 1000;
            let event = if random.random_bool(0.7) { Event::Confirmed } else { Event::Cancelled };
            self.orders[number].changes.push((event, asked));
            self.to_come.insert((at, number, Effect::Change(place, fate)));
        }
    }
}

/// A good sale: each request takes effect at one moment between its first sending and its answer, or at any later one if it had
/// no answer. Half of the sales have holds, and half have users with a limit.
fn random_run(random: &mut SplitMix64) -> History {
    let users = if random.random_bool(0.5) { random.random_range(1..20) } else { 0 };
    let terms = StockState {
        per_user: (users > 0).then(|| random.random_range(1..8)),
        hold_seconds: random.random_bool(0.5).then_some(HOLD / 1000),
        ..StockState::default()
    };
    let sale = Sale::new(random.random_range(1..=60), terms);
    let setup = setup(sale.before.clone(), random.random_range(1..=3), users);
    let mut run = Run { sale, setup, orders: Vec::new(), to_come: BTreeSet::new() };
    for number in 0..random.random_range(20..80) {
        let sent = random.random_range(0..3000);
        let (order, at, fate) = Run::ask(random, sent);
        run.orders.push(order);
        run.to_come.insert((at, number, Effect::Order(fate)));
    }
    while let Some((at, number, effect)) = run.to_come.pop_first() {
        // half of the requests without an answer do not arrive
        let arrives = random.random_bool(0.5);
        match effect {
            Effect::Order(Fate::Answered | Fate::Resolved) => {
                let outcome = run.order(at, number);
                let order = &mut run.orders[number];
                if outcome == FinalOutcome::HeldOut {
                    order.held.push(Held {
                        is_paused: false,
                        sent: order.sent,
                        ended: order.ended,
                        again: None,
                    });
                }
                order.outcome = outcome;
                if run.orders[number].acknowledged().is_some()
                    && run.sale.before.hold_seconds.is_some()
                {
                    run.settle(random, number);
                }
            }
            Effect::Order(Fate::Lost) if arrives => drop(run.order(at, number)),
            Effect::Order(Fate::Failed) => {
                run.orders[number].outcome = FinalOutcome::Failed("400 bad-item".to_owned());
            }
            Effect::Change(place, fate) => {
                let (event, asked) = &mut run.orders[number].changes[place];
                match fate {
                    Fate::Answered | Fate::Resolved => {
                        asked.outcome = run.sale.change(&run.setup.id(number), *event);
                    }
                    Fate::Lost if arrives => {
                        run.sale.change(&run.setup.id(number), *event);
                    }
                    _ => {}
                }
            }
            Effect::HoldEnds => drop(run.sale.change(&run.setup.id(number), Event::Expired)),
            Effect::Order(Fate::Lost | Fate::Refused) => {}
        }
    }
    let Run { sale, mut setup, orders, .. } = run;
    (setup.plan.alone, setup.plan.tokens) = (true, true);
    history(sale, setup, orders)
}

fn violations(history: &History, longest_pause: Duration) -> Vec<String> {
    let found = Report::new(history, Limits { longest_pause, longest_order: None }).findings;
    found.into_iter().filter_map(|found| found.invariant).collect()
}

/// Goal: a good sale is accused of nothing. A limit slightly below its longest pause is broken, and no other invariant is.
#[test]
fn right_sales_pass() {
    for seed in 0..SEEDS {
        let history = random_run(&mut SplitMix64::seed_from_u64(seed));
        let longest = pause::longest(&history.orders).length();
        assert_eq!(violations(&history, longest), [""; 0], "seed {seed}: {history:?}");
        let less = longest.saturating_sub(Duration::from_micros(1));
        assert_eq!(violations(&history, less), ["I5"], "seed {seed}");
    }
}

/// Goal: in every sale with holds, a doubled end in the ledger (a second return, a second cancellation, an expiry after a
/// confirmation) is found, and so is an end that was lost after its buyer was told.
#[test]
fn damaged_ends_are_found() {
    let mut found = BTreeSet::new();
    for seed in 0..SEEDS {
        let mut random = SplitMix64::seed_from_u64(seed);
        let good = random_run(&mut random);
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
            let Report { findings, .. } = Report::new(&damaged, LIMITS);
            let is_found = findings.iter().any(|found| found.kind == expected);
            assert!(is_found, "seed {seed}: {findings:?}, and not {expected}");
            found.insert((end.event, again));
        }
    }
    assert_eq!(found.len(), 12, "{found:?}");
}
