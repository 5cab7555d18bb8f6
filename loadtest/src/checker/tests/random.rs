//! Random sales that are right must pass, and each single damage to one must be found.

use std::time::Duration;

use rand::{RngExt as _, SeedableRng as _};
use rand_xoshiro::SplitMix64;

use super::*;
use crate::checker::reason::Invariant;

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
        orders.push(Order { sent, ended, ..Order::unsent() });
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
                quantity,
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
        gone: Vec::new(),
    }
}

fn violations(history: &History, longest_pause: Option<Duration>) -> Vec<Invariant> {
    let limits = Limits { pause: longest_pause, ..Limits::default() };
    let verdict = super::super::judge(history, limits);
    verdict.reasons.iter().filter_map(Reason::invariant).collect()
}

/// Goal: no sale that is right is accused of anything.
#[test]
fn right_sales_pass() {
    for seed in 0..SEEDS {
        let history = sale(&mut SplitMix64::seed_from_u64(seed));
        assert_eq!(violations(&history, None), [], "seed {seed}: {history:?}");
    }
}

/// One damage, and the invariant that it violates. `false` if this sale has nothing to damage so.
type Damage = fn(&mut History, &mut SplitMix64) -> bool;

fn number_of(
    history: &History,
    is: impl Fn(&Order) -> bool,
    random: &mut SplitMix64,
) -> Option<usize> {
    let all: Vec<_> = (0..history.orders.len()).filter(|n| is(&history.orders[*n])).collect();
    (!all.is_empty()).then(|| all[random.random_range(0..all.len())])
}

fn place_of(history: &History, number: usize) -> Option<usize> {
    history.ledger.iter().position(|entry| entry.order == order_id(RUN, number))
}

fn lose_an_entry(history: &mut History, random: &mut SplitMix64) -> bool {
    let number = number_of(history, |order| order.acknowledged().is_some(), random);
    let place = number.and_then(|number| place_of(history, number));
    place.map(|place| history.ledger.remove(place)).is_some()
}

fn repeat_an_entry(history: &mut History, random: &mut SplitMix64) -> bool {
    if history.ledger.is_empty() {
        return false;
    }
    let place = random.random_range(0..history.ledger.len());
    let again = history.ledger[place].clone();
    history.ledger.insert(random.random_range(place..history.ledger.len()), again);
    true
}

fn sell_one_more(history: &mut History, random: &mut SplitMix64) -> bool {
    let Some(number) = number_of(history, |order| order.outcome == FinalOutcome::SoldOut, random)
    else {
        return false;
    };
    history.quantity = 1;
    history.before.stock = history.ledger.iter().map(|entry| entry.quantity.cast_signed()).sum();
    history.orders[number].outcome = acknowledged(-1, None);
    true
}

/// Of an order that has no answer: else it is lost as well, which is another damage.
fn make_it_foreign(history: &mut History, random: &mut SplitMix64) -> bool {
    let number = number_of(history, |order| order.outcome == FinalOutcome::Unknown, random);
    let place = number.and_then(|number| place_of(history, number));
    place.map(|place| history.ledger[place].order = "another-client".to_owned()).is_some()
}

fn unbalance_the_stock(history: &mut History, random: &mut SplitMix64) -> bool {
    let state = &mut history.after[0].1;
    let counter = if random.random_bool(0.5) { &mut state.stock } else { &mut state.lucky };
    *counter += 1;
    true
}

fn refuse_who_got_it(history: &mut History, random: &mut SplitMix64) -> bool {
    let Some(number) = number_of(history, |order| order.acknowledged().is_some(), random) else {
        return false;
    };
    history.orders[number].outcome = FinalOutcome::SoldOut;
    true
}

fn swap_tokens(history: &mut History, random: &mut SplitMix64) -> bool {
    let Some(last) = history.ledger.len().checked_sub(1).filter(|last| *last > 0) else {
        return false;
    };
    let place = random.random_range(0..last);
    let (one, other) = (history.ledger[place].token, history.ledger[place + 1].token);
    (history.ledger[place].token, history.ledger[place + 1].token) = (other, one);
    one != other
}

fn forget_a_token(history: &mut History, random: &mut SplitMix64) -> bool {
    if history.ledger.is_empty() {
        return false;
    }
    let place = random.random_range(0..history.ledger.len());
    history.ledger[place].token.take().is_some()
}

/// Swaps two entries of which one was answered before the other was sent.
fn turn_time_round(history: &mut History, random: &mut SplitMix64) -> bool {
    let Some(later) = number_of(history, |order| order.acknowledged().is_some(), random) else {
        return false;
    };
    let sent = history.orders[later].sent;
    let is_earlier = |order: &Order| order.acknowledged().is_some_and(|at| at < sent);
    let earlier = number_of(history, is_earlier, random);
    let places =
        earlier.and_then(|earlier| place_of(history, earlier)).zip(place_of(history, later));
    places.map(|(one, other)| history.ledger.swap(one, other)).is_some()
}

fn refuse_too_early(history: &mut History, random: &mut SplitMix64) -> bool {
    let latest = history.ledger.iter().filter_map(|entry| history.number(&entry.order));
    let latest = latest.map(|number| history.orders[number].sent).max().unwrap_or(0);
    let refused = number_of(history, |order| order.outcome == FinalOutcome::SoldOut, random);
    let Some(number) = refused.filter(|_| latest > 0) else { return false };
    (history.orders[number].sent, history.orders[number].ended) =
        (0, random.random_range(0..latest));
    true
}

/// Goal: each damage is found as what it is, whatever the sale looked like.
#[test]
fn damaged_sales_fail() {
    let damages: [(Damage, Invariant); 10] = [
        (sell_one_more, Invariant::I1),
        (unbalance_the_stock, Invariant::I1),
        (lose_an_entry, Invariant::I2),
        (repeat_an_entry, Invariant::I2),
        (make_it_foreign, Invariant::I3),
        (refuse_who_got_it, Invariant::I3),
        (swap_tokens, Invariant::I4),
        (forget_a_token, Invariant::I4),
        (turn_time_round, Invariant::I6),
        (refuse_too_early, Invariant::I6),
    ];
    for (which, (damage, invariant)) in damages.into_iter().enumerate() {
        let mut done = 0;
        for seed in 0..SEEDS {
            let random = &mut SplitMix64::seed_from_u64(seed);
            let mut history = sale(random);
            if damage(&mut history, random) {
                done += 1;
                let found = violations(&history, None);
                assert!(found.contains(&invariant), "damage {which}, seed {seed}: {found:?}");
            }
        }
        assert!(done > SEEDS / 10, "damage {which} was done {done} times only");
    }
}

/// Goal: a limit that is a little less than the longest pause is broken, and no other invariant.
#[test]
fn pauses_are_found() {
    for seed in 0..SEEDS {
        let history = sale(&mut SplitMix64::seed_from_u64(seed));
        let longest = judge(&history).longest_pause.length();
        let less = longest.saturating_sub(Duration::from_micros(1));
        assert_eq!(violations(&history, Some(less)), [Invariant::I5], "seed {seed}");
        assert_eq!(violations(&history, Some(longest)), [], "seed {seed}");
    }
}
