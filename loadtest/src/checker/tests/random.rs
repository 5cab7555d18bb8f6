//! Random sales that are right must pass.

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
