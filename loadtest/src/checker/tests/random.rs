//! Random sales that are right must pass, and each single damage to one must be found.

use std::time::Duration;

use rand::{RngExt as _, SeedableRng as _};
use rand_xoshiro::SplitMix64;

use super::*;

const SEEDS: u64 = 300;

/// What becomes of an order's answers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Answered,
    /// The first answer was lost, or all of them.
    Resolved,
    Lost,
    Refused,
    Failed,
}

/// A sale as it should be: each order takes effect at one moment between its first sending and its
/// answer, or at any later one if there was none.
fn sale(random: &mut SplitMix64) -> History {
    let quantity = random.random_range(1..=3);
    let initial = random.random_range(1..=120);
    let mut effects = Vec::new();
    let mut orders = Vec::new();
    for number in 0..random.random_range(20..80) {
        let sent = random.random_range(0..10_000);
        let ended = sent + random.random_range(1..=2000);
        let fate = match random.random_range(0..20) {
            0..15 => Fate::Answered,
            15 => Fate::Resolved,
            16 | 17 => Fate::Lost,
            18 => Fate::Refused,
            _ => Fate::Failed,
        };
        let late = if fate == Fate::Lost { 3000 } else { 0 };
        effects.push((random.random_range(sent..ended + late), number, fate));
        orders.push(Order { sent, ended, ..Order::default() });
    }
    effects.sort_unstable_by_key(|(at, number, _)| (*at, *number));
    let (mut stock, mut token) = (initial, 100);
    let mut ledger = Vec::new();
    for (_, number, fate) in effects {
        let order = &mut orders[number];
        order.attempts = 1;
        order.in_doubt = matches!(fate, Fate::Resolved | Fate::Lost);
        let units = i64::try_from(quantity).expect("small");
        let reached = match fate {
            Fate::Answered | Fate::Resolved => true,
            Fate::Lost => random.random_bool(0.5),
            Fate::Refused => false,
            Fate::Failed => {
                order.outcome =
                    FinalOutcome::Failed { status: 400, kind: "400 bad-item".to_owned() };
                false
            }
        };
        if !reached {
            continue;
        }
        let outcome = if stock < units {
            FinalOutcome::SoldOut
        } else {
            stock -= units;
            token += random.random_range(0..3);
            let position = u64_from(ledger.len()) + 1;
            ledger.push(LedgerEntry {
                position,
                order: order_id(RUN, number),
                quantity,
                remaining: stock,
                instance: Some("8080".to_owned()),
                token: Some(token),
            });
            FinalOutcome::Acknowledged(Acknowledgement {
                remaining: stock,
                instance: "8080".to_owned(),
                token: Some(token),
                position: Some(position),
            })
        };
        if fate != Fate::Lost {
            order.outcome = outcome;
        }
    }
    let before = StockState { stock: initial, lucky: 0, initial, orders: 0, sale: None };
    let lucky = initial - stock;
    let state = StockState { stock, lucky, initial, orders: u64_from(ledger.len()), sale: None };
    let after = vec![("a".to_owned(), state)];
    History {
        run: RUN.to_owned(),
        family: RUN.to_owned(),
        alone: true,
        tokens: true,
        quantity,
        before,
        orders,
        ledger,
        after,
        ..History::default()
    }
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
        let longest = judge(&history, Limits::default()).longest_pause.length();
        assert_eq!(violations(&history, Some(longest)), [""; 0], "seed {seed}: {history:?}");
        let less = longest.saturating_sub(Duration::from_micros(1));
        assert_eq!(violations(&history, Some(less)), ["I5"], "seed {seed}");
    }
}

fn any_order(
    history: &History,
    random: &mut SplitMix64,
    is: impl Fn(&Order) -> bool,
) -> Option<usize> {
    let all: Vec<_> = (0..history.orders.len()).filter(|n| is(&history.orders[*n])).collect();
    (!all.is_empty()).then(|| all[random.random_range(0..all.len())])
}

fn entry_of(history: &History, number: usize) -> Option<usize> {
    history.ledger.iter().position(|entry| entry.order == order_id(RUN, number))
}

fn is_accepted(order: &Order) -> bool {
    order.acknowledged().is_some()
}

fn is_refused(order: &Order) -> bool {
    order.outcome == FinalOutcome::SoldOut
}

/// The invariant that a damage violates, and the damage: `None` if this sale has nothing to damage so.
type Damage = (&'static str, fn(&mut History, &mut SplitMix64) -> Option<()>);

const DAMAGES: [Damage; 6] = [
    ("I1", |sale, random| {
        let number = any_order(sale, random, is_refused)?;
        sale.before.stock = sale.ledger.iter().map(|entry| entry.quantity.cast_signed()).sum();
        sale.orders[number].outcome = acknowledged(-1, None);
        Some(())
    }),
    ("I2", |sale, random| {
        let number = any_order(sale, random, is_accepted)?;
        sale.ledger.remove(entry_of(sale, number)?);
        Some(())
    }),
    // of an order that has no answer: else it is lost as well, which is another damage
    ("I3", |sale, random| {
        let number = any_order(sale, random, |order| !order.is_settled())?;
        let place = entry_of(sale, number)?;
        sale.ledger[place].order = "another-client".to_owned();
        Some(())
    }),
    ("I4", |sale, random| {
        let number = any_order(sale, random, is_accepted)?;
        let place = entry_of(sale, number).filter(|place| *place > 0)?;
        let (one, other) = (sale.ledger[place].token, sale.ledger[place - 1].token);
        (sale.ledger[place].token, sale.ledger[place - 1].token) = (other, one);
        (one != other).then_some(())
    }),
    // swaps two entries of which one was answered before the other was sent
    ("I6", |sale, random| {
        let later = any_order(sale, random, is_accepted)?;
        let sent = sale.orders[later].sent;
        let is_earlier = |order: &Order| order.acknowledged().is_some_and(|at| at < sent);
        let earlier = any_order(sale, random, is_earlier)?;
        let (one, other) = (entry_of(sale, earlier)?, entry_of(sale, later)?);
        sale.ledger.swap(one, other);
        Some(())
    }),
    ("I6", |sale, random| {
        let number = any_order(sale, random, is_refused)?;
        let taken = sale.ledger.iter().filter_map(|entry| sale.number(&entry.order));
        let latest = taken.map(|taken| sale.orders[taken].sent).max().filter(|at| *at > 0)?;
        let order = &mut sale.orders[number];
        (order.sent, order.ended) = (0, random.random_range(0..latest));
        Some(())
    }),
];

/// Goal: each damage is found as what it is, whatever the sale looked like.
#[test]
fn damaged_sales_fail() {
    for (which, (invariant, damage)) in DAMAGES.into_iter().enumerate() {
        let mut done = 0;
        for seed in 0..SEEDS {
            let random = &mut SplitMix64::seed_from_u64(seed);
            let mut history = sale(random);
            if damage(&mut history, random).is_some() {
                done += 1;
                let found = violations(&history, None);
                assert!(found.contains(&invariant), "damage {which}, seed {seed}: {found:?}");
            }
        }
        assert!(done > SEEDS / 10, "damage {which} was done {done} times only");
    }
}
