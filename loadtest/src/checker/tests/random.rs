//! Random sales that are right must pass, and each single damage to one must be found.

use std::time::Duration;

use super::*;
use crate::checker::reason::Invariant;

const SEEDS: u64 = 300;

/// Numbers by splitmix64.
struct Random(u64);

impl Random {
    /// From 0 to less than `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) % end
    }

    fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(u64_from(length))).expect("less than a length")
    }
}

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
fn sale(random: &mut Random) -> History {
    let quantity = 1 + random.below(3);
    let initial = i64::try_from(1 + random.below(120)).expect("small");
    let mut effects = Vec::new();
    let mut orders = Vec::new();
    for number in 0..usize::try_from(20 + random.below(60)).expect("small") {
        let sent = random.below(10_000);
        let ended = sent + 1 + random.below(2000);
        let fate = match random.below(20) {
            0..15 => Fate::Answered,
            15 => Fate::Resolved,
            16 | 17 => Fate::Lost,
            18 => Fate::Refused,
            _ => Fate::Failed,
        };
        let late = if fate == Fate::Lost { 3000 } else { 0 };
        effects.push((sent + random.below(ended + late - sent), number, fate));
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
            Fate::Lost => random.below(2) == 0,
            Fate::Refused => false,
            Fate::Failed => {
                order.told = Told::Failed { status: 400, kind: "400 bad-item".to_owned() };
                false
            }
        };
        if !reached {
            continue;
        }
        let told = if stock < units {
            Told::SoldOut
        } else {
            stock -= units;
            token += i64::try_from(random.below(3)).expect("small");
            let position = u64_from(ledger.len()) + 1;
            ledger.push(LedgerEntry {
                position,
                order: order_id(RUN, number),
                quantity,
                remaining: stock,
                instance: Some("8080".to_owned()),
                token: Some(token),
            });
            Told::Acknowledged(Acknowledgement {
                quantity,
                remaining: stock,
                instance: "8080".to_owned(),
                token: Some(token),
                position: Some(position),
            })
        };
        if fate != Fate::Lost {
            order.told = told;
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
        let history = sale(&mut Random(seed));
        assert_eq!(violations(&history, None), [], "seed {seed}: {history:?}");
    }
}

/// One damage, and the invariant that it violates. `false` if this sale has nothing to damage so.
type Damage = fn(&mut History, &mut Random) -> bool;

fn number_of(history: &History, is: impl Fn(&Order) -> bool, random: &mut Random) -> Option<usize> {
    let all: Vec<_> = (0..history.orders.len()).filter(|n| is(&history.orders[*n])).collect();
    (!all.is_empty()).then(|| all[random.index(all.len())])
}

fn place_of(history: &History, number: usize) -> Option<usize> {
    history.ledger.iter().position(|entry| entry.order == order_id(RUN, number))
}

fn lose_an_entry(history: &mut History, random: &mut Random) -> bool {
    let number = number_of(history, |order| order.acknowledged().is_some(), random);
    let place = number.and_then(|number| place_of(history, number));
    place.map(|place| history.ledger.remove(place)).is_some()
}

fn repeat_an_entry(history: &mut History, random: &mut Random) -> bool {
    if history.ledger.is_empty() {
        return false;
    }
    let place = random.index(history.ledger.len());
    let again = history.ledger[place].clone();
    history.ledger.insert(place + random.index(history.ledger.len() - place), again);
    true
}

fn sell_one_more(history: &mut History, random: &mut Random) -> bool {
    let Some(number) = number_of(history, |order| order.told == Told::SoldOut, random) else {
        return false;
    };
    history.quantity = 1;
    history.before.stock = history.ledger.iter().map(|entry| entry.quantity.cast_signed()).sum();
    history.orders[number].told = acknowledged(-1, None);
    true
}

/// Of an order that has no answer: else it is lost as well, which is another damage.
fn give_it_to_a_stranger(history: &mut History, random: &mut Random) -> bool {
    let number = number_of(history, |order| order.told == Told::Unknown, random);
    let place = number.and_then(|number| place_of(history, number));
    place.map(|place| history.ledger[place].order = "somebody-else".to_owned()).is_some()
}

fn unbalance_the_stock(history: &mut History, random: &mut Random) -> bool {
    let state = &mut history.after[0].1;
    let counter = if random.below(2) == 0 { &mut state.stock } else { &mut state.lucky };
    *counter += 1;
    true
}

fn refuse_who_got_it(history: &mut History, random: &mut Random) -> bool {
    let Some(number) = number_of(history, |order| order.acknowledged().is_some(), random) else {
        return false;
    };
    history.orders[number].told = Told::SoldOut;
    true
}

fn swap_tokens(history: &mut History, random: &mut Random) -> bool {
    let Some(last) = history.ledger.len().checked_sub(1).filter(|last| *last > 0) else {
        return false;
    };
    let place = random.index(last);
    let (one, other) = (history.ledger[place].token, history.ledger[place + 1].token);
    (history.ledger[place].token, history.ledger[place + 1].token) = (other, one);
    one != other
}

fn forget_a_token(history: &mut History, random: &mut Random) -> bool {
    if history.ledger.is_empty() {
        return false;
    }
    let place = random.index(history.ledger.len());
    history.ledger[place].token.take().is_some()
}

/// Swaps two entries of which one was answered before the other was sent.
fn turn_time_round(history: &mut History, random: &mut Random) -> bool {
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

fn refuse_too_early(history: &mut History, random: &mut Random) -> bool {
    let latest = history.ledger.iter().filter_map(|entry| history.number(&entry.order));
    let latest = latest.map(|number| history.orders[number].sent).max().unwrap_or(0);
    let refused = number_of(history, |order| order.told == Told::SoldOut, random);
    let Some(number) = refused.filter(|_| latest > 0) else { return false };
    (history.orders[number].sent, history.orders[number].ended) = (0, random.below(latest));
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
        (give_it_to_a_stranger, Invariant::I3),
        (refuse_who_got_it, Invariant::I3),
        (swap_tokens, Invariant::I4),
        (forget_a_token, Invariant::I4),
        (turn_time_round, Invariant::I6),
        (refuse_too_early, Invariant::I6),
    ];
    for (which, (damage, invariant)) in damages.into_iter().enumerate() {
        let mut done = 0;
        for seed in 0..SEEDS {
            let random = &mut Random(seed);
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
        let history = sale(&mut Random(seed));
        let longest = judge(&history).longest_pause.length();
        let less = longest.saturating_sub(Duration::from_micros(1));
        assert_eq!(violations(&history, Some(less)), [Invariant::I5], "seed {seed}");
        assert_eq!(violations(&history, Some(longest)), [], "seed {seed}");
    }
}
