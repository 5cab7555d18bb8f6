//! Damaged histories: each must fail for its own reason, and for that one alone.

mod holds;
mod random;

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use crate::cli::Limits;

const RUN: &str = "run";

/// More than the times of a good history.
const LIMITS: Limits = Limits {
    longest_pause: Some(Duration::from_secs(4)),
    longest_order: Some(Duration::from_secs(5)),
};

fn state(stock: i64, lucky: i64, orders: u64) -> StockState {
    StockState { stock, lucky, initial: 300, orders, sale: Some(1), ..StockState::default() }
}

fn acknowledged(remaining: i64, token: Option<i64>) -> FinalOutcome {
    let (instance, position) = ("8080".to_owned(), None);
    FinalOutcome::Acknowledged(Acknowledgement { remaining, instance, token, position })
}

fn failed() -> FinalOutcome {
    FinalOutcome::Failed { status: 500, kind: "500 internal".to_owned() }
}

/// An order that was answered at once: all are sent at the beginning, and answered one by one.
fn order(number: usize, outcome: FinalOutcome) -> Order {
    let in_doubt = outcome == FinalOutcome::Unknown;
    let ended = 1000 + u64_from(number);
    Order { outcome, in_doubt, attempts: 1, ended, ..Order::default() }
}

/// 500 orders of so many units each for 300 units, ten in a batch under one token: all as it should be.
fn history_of(quantity: u64) -> History {
    let units = quantity.cast_signed();
    let sold = usize::try_from(300 / units).expect("small");
    let mut orders = Vec::new();
    let mut ledger = Vec::new();
    let mut remaining = 300;
    for number in 0..500 {
        if number >= sold {
            orders.push(order(number, FinalOutcome::SoldOut));
            continue;
        }
        remaining -= units;
        let token = Some(100 + i64::try_from(number / 10).expect("small"));
        orders.push(order(number, acknowledged(remaining, token)));
        ledger.push(LedgerEntry {
            position: u64_from(number) + 1,
            event: Event::Reserved,
            order: order_id(RUN, number),
            user: String::new(),
            quantity,
            remaining,
            instance: Some("8080".to_owned()),
            token,
        });
    }
    let after = state(remaining, 300 - remaining, u64_from(sold));
    History {
        run: RUN.to_owned(),
        family: RUN.to_owned(),
        quantity,
        before: state(300, 0, 0),
        orders,
        ledger,
        after: vec![("a".to_owned(), after.clone()), ("b".to_owned(), after)],
        ..History::default()
    }
}

fn set_after(history: &mut History, state: &StockState) {
    for (_, after) in &mut history.after {
        *after = state.clone();
    }
}

fn set_outcome(history: &mut History, number: usize, outcome: FinalOutcome) {
    history.orders[number] = order(number, outcome);
}

fn answer(history: &mut History, number: usize) -> &mut Acknowledgement {
    match &mut history.orders[number].outcome {
        FinalOutcome::Acknowledged(answer) => answer,
        other => panic!("{number} is not acknowledged: {other:?}"),
    }
}

/// Puts the order `id` in the place of a buyer's, who is refused: all sums remain right.
fn replace_entry(history: &mut History, number: usize, id: &str) {
    history.ledger[number].order = id.to_owned();
    set_outcome(history, number, FinalOutcome::SoldOut);
}

/// Makes it a run with several items, of which this is the first.
fn first_of_several(history: &mut History) {
    (history.run, history.family) = ("run-1".to_owned(), "run".to_owned());
    for (number, entry) in history.ledger.iter_mut().enumerate() {
        entry.order = order_id("run-1", number);
    }
}

fn sell_one_more(history: &mut History) {
    set_outcome(history, 300, acknowledged(-1, Some(129)));
    let last = history.ledger[299].clone();
    let order = order_id(RUN, 300);
    history.ledger.push(LedgerEntry { position: 301, order, remaining: -1, ..last });
    set_after(history, &state(-1, 301, 301));
}

fn forget_tokens(history: &mut History) {
    for (number, entry) in history.ledger.iter_mut().enumerate() {
        entry.token = None;
        history.orders[number].outcome = acknowledged(entry.remaining, None);
    }
}

/// Makes it a sale that keeps no ledger and is guarded all the same.
fn keep_no_ledger(history: &mut History) {
    forget_tokens(history);
    history.ledger.clear();
    set_after(history, &state(0, 300, 0));
}

/// One order tried for 5.000001 s, while others are answered.
fn hang(history: &mut History, outcome: FinalOutcome) {
    set_outcome(history, 420, outcome);
    history.orders[420].ended = 5_000_001;
    for (number, order) in history.orders[421..].iter_mut().enumerate() {
        order.sent = u64_from(number) * 100_000;
        order.ended = order.sent + 9;
    }
}

/// The expected reasons, a part of the verdict or of the notes, and what is done to a good history. Without a reason it
/// must pass.
struct Mutation(&'static str, &'static str, fn(&mut History));

const MUTATIONS: &[Mutation] = &[
    // I1
    Mutation(
        "oversold",
        "FAIL: I1 oversold: 301 orders were acknowledged for 300 units, 1 too many",
        sell_one_more,
    ),
    // those who were refused before that were refused rightly
    Mutation("oversold", "1 too many", |it| {
        sell_one_more(it);
        (it.orders[300].sent, it.orders[300].ended) = (9000, 9500);
    }),
    Mutation("unbalanced", "stock 0 + lucky 299 = 299", |it| set_after(it, &state(0, 299, 300))),
    Mutation("ledger_does_not_add_up", "a counts 301 entries, and it has 300", |it| {
        set_after(it, &state(0, 300, 301));
    }),
    Mutation(
        "ledger_does_not_add_up",
        "it has 300 units sold, and the stock went down by 301",
        |it| set_after(it, &state(-1, 301, 300)),
    ),
    Mutation("ledger_does_not_add_up", "position 9 follows where 8 belongs", |it| {
        it.ledger[7].position = 9;
    }),
    Mutation(
        "ledger_does_not_add_up",
        "after position 8 it says 5 units are left, and 292 must be",
        |it| {
            it.ledger[7].remaining = 5;
            answer(it, 7).remaining = 5;
        },
    ),
    // a sale without a lock
    Mutation(
        "oversold unbalanced unaccounted",
        "FAIL: I1 oversold: 500 orders were acknowledged for 300 units, 200 too many; I1 unbalanced",
        |it| {
            it.ledger.clear();
            for number in 0..500 {
                set_outcome(it, number, acknowledged(289, None));
            }
            set_after(it, &state(289, 500, 0));
        },
    ),
    // without a ledger the sums decide
    Mutation(
        "",
        "PASS: 300 of 300 units sold, as far as the sums can tell; 200 were told sold out; \
         stock 0 + lucky 300 = 300",
        keep_no_ledger,
    ),
    Mutation("", "no ledger: only the sums were checked", keep_no_ledger),
    Mutation("", "1 order was not answered in the end", |it| {
        keep_no_ledger(it);
        set_outcome(it, 7, FinalOutcome::Unknown);
    }),
    Mutation("unaccounted", "buyers got 299 units, and the stock went down by 300", |it| {
        keep_no_ledger(it);
        set_outcome(it, 7, FinalOutcome::SoldOut);
    }),
    // I2
    Mutation(
        "duplicates",
        "FAIL: I2 sold twice: 1 order is more than once in the ledger, such as run-298",
        |it| replace_entry(it, 299, "run-298"),
    ),
    Mutation(
        "duplicates",
        "1 order is more than once in the ledger, such as another-client",
        |it| {
            replace_entry(it, 298, "another-client");
            replace_entry(it, 299, "another-client");
        },
    ),
    Mutation(
        "lost",
        "FAIL: I2 lost: 1 acknowledged order is not in the ledger, such as run-17",
        |it| {
            it.orders.truncate(299);
            it.ledger.truncate(299);
            it.ledger[17].order = "another-client".to_owned();
            set_after(it, &state(1, 299, 299));
        },
    ),
    // a ledger that was lost is not taken for one that was never kept
    Mutation("lost ledger_does_not_add_up", "300 acknowledged orders", |it| it.ledger.clear()),
    Mutation("lost ledger_does_not_add_up", "300 acknowledged orders", |it| {
        keep_no_ledger(it);
        set_after(it, &state(0, 300, 300));
    }),
    Mutation("lost gone", "I2 gone: a no longer has the sale", |it| {
        keep_no_ledger(it);
        it.gone = it.after.drain(..).map(|(url, _)| url).collect();
    }),
    Mutation("", "PASS", |it| it.ledger[3].instance = None),
    Mutation("misreported", "the ledger contradicts the answer to 1 order, such as run-3", |it| {
        it.ledger[3].instance = Some("8090".to_owned());
    }),
    Mutation("", "PASS", |it| answer(it, 3).position = Some(4)),
    Mutation("misreported", "such as run-3", |it| answer(it, 3).position = Some(5)),
    Mutation("misreported", "such as run-3", |it| answer(it, 3).remaining = 5),
    Mutation("misreported", "such as run-3", |it| answer(it, 3).token = Some(5)),
    // I3
    Mutation(
        "untold",
        "FAIL: I3 unacknowledged: 1 order is in the ledger without an answer to a buyer, such as run-5",
        |it| set_outcome(it, 5, FinalOutcome::SoldOut),
    ),
    Mutation("untold", "such as run-9999", |it| replace_entry(it, 299, "run-9999")),
    Mutation("", "PASS", first_of_several),
    Mutation("untold", "such as run-2-7", |it| {
        first_of_several(it);
        replace_entry(it, 299, "run-2-7");
    }),
    Mutation("untold", "such as run-0299", |it| replace_entry(it, 299, "run-0299")),
    Mutation("untold", "such as run-299-again", |it| replace_entry(it, 299, "run-299-again")),
    // every attempt was refused; or one had no answer
    Mutation("untold", "such as run-5", |it| {
        it.orders[5] = Order { in_doubt: false, ..order(5, FinalOutcome::Unknown) }
    }),
    Mutation("", "the ledger says that 1 of them stand", |it| {
        set_outcome(it, 5, FinalOutcome::Unknown);
    }),
    Mutation("untold failed", "such as run-5", |it| set_outcome(it, 5, failed())),
    Mutation(
        "failed",
        "FAIL: failed: 1 order was answered with an error (1 x 500 internal)",
        |it| it.orders[5] = Order { in_doubt: true, ..order(5, failed()) },
    ),
    // sold out speaks for all attempts
    Mutation("untold", "such as run-5", |it| {
        it.orders[5] = Order { in_doubt: true, ..order(5, FinalOutcome::SoldOut) }
    }),
    Mutation("", "other buyers took 1 unit in 1 order during the run", |it| {
        replace_entry(it, 299, "another-client");
    }),
    // other buyers do not hide an oversold sale
    Mutation("oversold lost", "1 too many", |it| {
        replace_entry(it, 299, "another-client");
        set_outcome(it, 300, acknowledged(0, Some(129)));
    }),
    Mutation(
        "strangers",
        "FAIL: I3 foreign: 1 order is in the ledger and not of this run, which must be alone, such as another-client",
        |it| {
            replace_entry(it, 299, "another-client");
            it.alone = true;
        },
    ),
    // I4
    Mutation(
        "token_went_down",
        "FAIL: I4 two holders at once: the tokens in the ledger go down 1 time, first at position 11, \
         from 101 to 100",
        |it| {
            for (number, token) in [(9, 101), (10, 100)] {
                it.ledger[number].token = Some(token);
                answer(it, number).token = Some(token);
            }
        },
    ),
    Mutation("without_token", "such as run-299", |it| {
        it.ledger[299].token = None;
        set_outcome(it, 299, FinalOutcome::Unknown);
    }),
    Mutation(
        "without_token",
        "FAIL: I4 without a token: 1 order was accepted without one, such as another-client, and each \
         must have one",
        |it| {
            replace_entry(it, 299, "another-client");
            it.ledger[299].token = None;
        },
    ),
    Mutation("", "PASS", forget_tokens),
    Mutation("without_token", "300 orders were accepted without one, such as run-0", |it| {
        forget_tokens(it);
        it.tokens = true;
    }),
    Mutation("without_token", "300 orders were accepted without one, such as run-0", |it| {
        keep_no_ledger(it);
        it.tokens = true;
    }),
    // I5
    Mutation("", "PASS", |it| it.orders[200..].iter_mut().for_each(|one| one.ended += 3_998_800)),
    Mutation(
        "paused",
        "FAIL: I5 paused: for 4.000 s, from 0.001199 s on, orders were sent and none was decided; 4s \
         are allowed",
        |it| it.orders[200..].iter_mut().for_each(|one| one.ended += 4_000_000),
    ),
    Mutation("", "PASS", |it| {
        hang(it, FinalOutcome::SoldOut);
        it.orders[420].ended = 5_000_000;
    }),
    Mutation(
        "slow_order",
        "FAIL: I5 slow: 1 order was tried for longer than 5s, the longest time run-420: for 5.000 s",
        |it| hang(it, FinalOutcome::SoldOut),
    ),
    Mutation("slow_order", "the longest time run-420", |it| hang(it, FinalOutcome::Unknown)),
    // I6
    Mutation("", "PASS", |it| {
        it.orders.iter_mut().for_each(|order| order.ended += 10_000);
        // answered while the one before it was under way
        it.orders[7].sent = 5000;
        it.orders[8].ended = 5000;
    }),
    Mutation(
        "out_of_order",
        "FAIL: I6 out of order: 1 order is in the ledger behind an order that was sent only after the \
         answer, such as run-8 at position 9, answered at 0.004999 s: run-7 at position 8 was first \
         sent at 0.005000 s",
        |it| {
            it.orders.iter_mut().for_each(|order| order.ended += 10_000);
            it.orders[7].sent = 5000;
            it.orders[8].ended = 4999;
        },
    ),
    Mutation("", "PASS", |it| {
        it.orders[299].sent = 9000;
        it.orders[299..].iter_mut().for_each(|order| order.ended = 9000);
    }),
    Mutation(
        "sold_out_too_early",
        "FAIL: I6 sold out too early: 1 order was told sold out, such as run-420, first sent at \
         0.000000 s and answered at 0.008999 s, while enough was left",
        |it| {
            it.orders[299].sent = 9000;
            it.orders[299..].iter_mut().for_each(|order| order.ended = 9000);
            it.orders[420].ended = 8999;
        },
    ),
    Mutation("sold_out_too_early", "201 orders were told sold out, such as run-299", |it| {
        set_outcome(it, 299, FinalOutcome::SoldOut);
        it.ledger.pop();
        set_after(it, &state(1, 299, 299));
    }),
    // 6 units are left: too few for an order of 7
    Mutation("", "PASS: 294 of 300 units sold", |it| *it = history_of(7)),
    // no proof
    Mutation(
        "restarted ledger_does_not_add_up",
        "FAIL: restarted: another sale was started during the run",
        |it| set_after(it, &StockState { initial: 50, sale: None, ..state(50, 0, 300) }),
    ),
    Mutation("restarted", "FAIL: restarted", |it| {
        set_after(it, &StockState { sale: Some(2), ..state(0, 300, 300) });
    }),
    Mutation(
        "states_differ",
        "a tells stock 0, lucky 300, 300 orders, but b tells stock 1, lucky 299, 299 orders",
        |it| it.after[1].1 = state(1, 299, 299),
    ),
    Mutation("", "b does not answer after the run", |it| it.silent.push("b".to_owned())),
    // one in a hundred
    Mutation(
        "",
        "5 orders were not answered in the end; the ledger says that 0 of them stand",
        |it| (495..500).for_each(|number| set_outcome(it, number, FinalOutcome::Unknown)),
    ),
    Mutation(
        "unanswered",
        "FAIL: unanswered: 6 of 500 orders got no answer, too many to judge the sale",
        |it| (494..500).for_each(|number| set_outcome(it, number, FinalOutcome::Unknown)),
    ),
    Mutation("unanswered", "500 of 500 orders got no answer", |it| {
        (0..500).for_each(|number| set_outcome(it, number, FinalOutcome::Unknown));
    }),
    // clients that disconnect on purpose are not counted against the service
    Mutation("", "100 orders were not answered in the end", |it| {
        (300..400).for_each(|number| set_outcome(it, number, FinalOutcome::Unknown));
        it.orders[300..400].iter_mut().for_each(|order| order.abandoned = true);
    }),
];

/// Goal: each mutation of a good history is found for its own reasons, and harmless ones are not.
#[test]
fn mutations() {
    let good = judge(&history_of(1), LIMITS);
    assert_eq!(
        good.pass,
        "PASS: 300 of 300 units sold, each exactly once; 200 were told sold out; \
         stock 0 + lucky 300 = 300"
    );
    assert!(good.reasons.is_empty() && good.notes.is_empty());
    let mut found = BTreeSet::new();
    for (number, Mutation(expected, text, mutate)) in MUTATIONS.iter().enumerate() {
        let mut history = history_of(1);
        mutate(&mut history);
        let Verdict { reasons, notes, pass, .. } = judge(&history, LIMITS);
        let all: Vec<_> = reasons.iter().map(ToString::to_string).collect();
        let message = if all.is_empty() { pass } else { format!("FAIL: {}", all.join("; ")) };
        let kinds: Vec<_> = reasons.iter().map(|reason| reason.kind.name()).collect();
        assert_eq!(kinds.join(" "), *expected, "mutation {number}, {text}: {message}");
        let said = format!("{message}\n{}", notes.join("\n"));
        assert!(said.contains(text), "mutation {number}, {text}: {said}");
        found.extend(kinds);
    }
    assert_eq!(found.len(), 20, "each kind of failure without holds occurs: {found:?}");
}

/// An order that was sent and ended then, in milliseconds.
fn span(sent: u64, ended: u64, outcome: FinalOutcome) -> Order {
    Order { sent: sent * 1000, ended: ended * 1000, ..order(0, outcome) }
}

fn longest_pause(orders: &[Order]) -> (u64, u64) {
    let Pause { from, to } = pause::longest(orders);
    (from / 1000, to / 1000)
}

/// Goal: a pause is measured while orders are tried, up to the next answer that says yes or no.
#[test]
fn longest_pause_is_found() {
    let yes = || acknowledged(0, None);
    assert_eq!(longest_pause(&[]), (0, 0));
    assert_eq!(longest_pause(&[span(5, 9, yes())]), (5, 9));
    // no order was tried from 3 to 500
    assert_eq!(longest_pause(&[span(0, 3, yes()), span(500, 502, yes())]), (0, 3));
    // nor after two that ended together
    let orders = [span(0, 3, yes()), span(0, 3, failed()), span(500, 502, yes())];
    assert_eq!(longest_pause(&orders), (0, 3));
    // one waited from 0 to 60, and others were answered meanwhile
    let orders = [span(0, 60, yes()), span(1, 10, yes()), span(11, 30, FinalOutcome::SoldOut)];
    assert_eq!(longest_pause(&orders), (30, 60));
    // orders that fail or are not answered do not end it
    let orders = [
        span(0, 1, yes()),
        span(100, 120, FinalOutcome::Unknown),
        span(150, 160, failed()),
        span(200, 250, yes()),
    ];
    assert_eq!(longest_pause(&orders), (100, 250));
    // nor is there an end to it if nothing is answered any more
    assert_eq!(longest_pause(&orders[..2]), (100, 120));
    assert_eq!(longest_pause(&[Order::default(), span(7, 8, FinalOutcome::Unknown)]), (7, 8));
}
