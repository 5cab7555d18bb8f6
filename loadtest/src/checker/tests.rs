//! Damaged histories: each must fail for its own reason, and for that one alone.

mod changes;
mod holds;

use std::collections::BTreeSet;
use std::time::Duration;

use super::FinalOutcome::{Acknowledged, HeldOut, LimitReached, SoldOut, Unknown};
use super::model::Change;
use super::order::Held;
use super::*;
use crate::cli::{Limits, Plan};
use crate::conduct::Conduct;
use crate::record::Setup;
use crate::report::Report;
use crate::tests::sale::Sale;

const RUN: &str = "run";

/// Limits that a good history keeps.
const LIMITS: Limits =
    Limits { longest_pause: Duration::from_secs(4), longest_order: Some(Duration::from_secs(5)) };

fn state(stock: i64, lucky: i64, orders: u64) -> StockState {
    StockState { stock, lucky, initial: 300, orders, sale: Some(1), ..StockState::default() }
}

fn acknowledged(remaining: i64, token: Option<i64>) -> FinalOutcome {
    let instance = "8080".to_owned();
    FinalOutcome::Acknowledged(Acknowledgement {
        remaining,
        instance,
        token,
        ..Acknowledgement::default()
    })
}

fn failed() -> FinalOutcome {
    FinalOutcome::Failed("500 internal".to_owned())
}

/// An order that was answered at once. All orders are sent at the beginning, and answered one after the other.
fn order(number: usize, outcome: FinalOutcome) -> Order {
    let in_doubt = outcome == Unknown;
    let ended = 1000 + u64_from(number);
    Order { outcome, in_doubt, attempts: 1, ended, ..Order::default() }
}

/// A set-up with orders of this quantity, for this many users (0: no users).
fn setup(before: StockState, quantity: u64, users: usize) -> Setup {
    let conduct = Conduct { users: Some(users), ..Conduct::default() };
    let plan = Plan { conduct, quantity, ..Plan::default() };
    Setup { run: RUN.to_owned(), before, plan, ..Setup::default() }
}

fn history(sale: Sale, setup: Setup, orders: Vec<Order>) -> History {
    let after = ["a", "b"].map(|url| (url.to_owned(), sale.state())).into();
    History { setup, orders, ledger: sale.ledger, after, ..History::default() }
}

/// A good history: 500 orders of this quantity, for 300 units.
fn history_of(quantity: u64) -> History {
    let mut sale = Sale::new(300, StockState { sale: Some(1), ..StockState::default() });
    let setup = setup(sale.before.clone(), quantity, 0);
    let mut buy = |number| order(number, sale.order(&setup.id(number), "", quantity));
    let orders = (0..500).map(&mut buy).collect();
    history(sale, setup, orders)
}

fn set_after(history: &mut History, state: &StockState) {
    for (_, after) in &mut history.after {
        *after = state.clone();
    }
}

/// Corrects the numbers and sums of the ledger.
fn renumber(history: &mut History) {
    let mut sale = Sale::new(history.before().initial, history.before().clone());
    for LedgerEntry { event, order, user, quantity, .. } in &history.ledger {
        sale.write(*event, order, user, *quantity);
    }
    set_after(history, &sale.state());
    history.ledger = sale.ledger;
}

fn set_outcome(history: &mut History, number: usize, outcome: FinalOutcome) {
    history.orders[number] = order(number, outcome);
}

fn answer(history: &mut History, number: usize) -> &mut Acknowledgement {
    match &mut history.orders[number].outcome {
        Acknowledged(answer) => answer,
        other => panic!("{number} is not acknowledged: {other:?}"),
    }
}

/// Replaces a buyer's entry by one of the order `id`. The buyer is refused, and all sums stay right.
fn replace_entry(history: &mut History, number: usize, id: &str) {
    history.ledger[number].order = id.to_owned();
    set_outcome(history, number, SoldOut);
}

fn sell_one_more(history: &mut History) {
    set_outcome(history, 300, acknowledged(-1, Some(129)));
    let last = history.ledger[299].clone();
    let order = "run-300".to_owned();
    history.ledger.push(LedgerEntry { position: 301, order, remaining: -1, ..last });
    set_after(history, &state(-1, 301, 301));
}

fn forget_tokens(history: &mut History) {
    for (number, entry) in history.ledger.iter_mut().enumerate() {
        entry.token = None;
        history.orders[number].outcome = acknowledged(entry.remaining, None);
    }
}

/// Two instances take the orders in turn, and these holders write them under one token.
fn share(history: &mut History, holders: [Option<&str>; 2]) {
    for (number, entry) in history.ledger.iter_mut().enumerate() {
        let instance = ["8080", "8090"][number % 2].to_owned();
        entry.holder = holders[number % 2].map(str::to_owned);
        (entry.token, entry.instance) = (Some(7), Some(instance.clone()));
        let Acknowledged(answer) = &mut history.orders[number].outcome else { unreachable!() };
        (answer.token, answer.instance) = (Some(7), instance);
    }
}

/// Sends an order again. It gets its first answer again, with this change.
fn ask_again(history: &mut History, change: fn(&mut Acknowledgement)) {
    let mut again = Acknowledgement { replayed: true, ..answer(history, 7).clone() };
    change(&mut again);
    let asked = order(7, FinalOutcome::Acknowledged(again));
    history.orders[7].changes.push((Event::Reserved, asked));
}

/// Makes the sale one that keeps no ledger, although a lock guards it.
fn keep_no_ledger(history: &mut History) {
    forget_tokens(history);
    history.setup.plan.without_ledger = true;
    history.ledger.clear();
    set_after(history, &state(0, 300, 0));
}

/// The expected kinds, a part of the verdict or of the notes, and the change of a good history. If no kind is expected, the run
/// must pass.
type Mutation = (&'static str, &'static str, fn(&mut History));

const MUTATIONS: &[Mutation] = &[
    // I1
    ("oversold", "FAIL: I1 oversold: 301 units were sold in 301 orders, and", sell_one_more),
    // the buyers who were refused before that were refused rightly
    ("oversold", "1 too many", |it| {
        sell_one_more(it);
        (it.orders[300].sent, it.orders[300].ended) = (9000, 9500);
    }),
    ("unbalanced", "stock 0 + lucky 299 = 299", |it| set_after(it, &state(0, 299, 300))),
    ("ledger_does_not_add_up", "a counts 301 entries, and it has 300", |it| {
        set_after(it, &state(0, 300, 301));
    }),
    ("ledger_does_not_add_up", "300 units sold, and the stock went down by 301", |it| {
        set_after(it, &state(-1, 301, 300));
    }),
    ("ledger_does_not_add_up", "a counts 303 orders, and it has 300", |it| {
        set_after(it, &StockState { entries: Some(300), ..state(0, 300, 303) });
    }),
    ("ledger_does_not_add_up", "position 9 follows where 8 belongs", |it| {
        it.ledger[7].position = 9;
        answer(it, 7).position = None;
    }),
    ("ledger_does_not_add_up", "says 5 units are left, and 292 must be", |it| {
        it.ledger[7].remaining = 5;
        answer(it, 7).remaining = 5;
    }),
    // a sale without a lock
    ("oversold unbalanced unaccounted", "200 too many; I1 unbalanced", |it| {
        it.setup.plan.without_ledger = true;
        it.ledger.clear();
        for number in 0..500 {
            set_outcome(it, number, acknowledged(289, None));
        }
        set_after(it, &state(289, 500, 0));
    }),
    // without a ledger the sums decide
    ("", "PASS: 300 of 300 units sold, as far as the sums can tell; 200 were", keep_no_ledger),
    ("", "no ledger: only the sums were checked", keep_no_ledger),
    ("no_ledger", "the service keeps no ledger and gives no tokens", |it| {
        keep_no_ledger(it);
        it.setup.plan.without_ledger = false;
    }),
    ("not_sent", "200 of 700 orders were due and not sent", |it| {
        (it.setup.plan.rate, it.setup.bound_seconds) = (Some(100.0), Some(7.0));
        it.setup.most_requests = 1000;
    }),
    // order 415 is due exactly at the end, though in floating point 50 times 8.3 is more than 415
    ("", "PASS", |it| {
        it.orders.truncate(415);
        (it.setup.plan.rate, it.setup.bound_seconds) = (Some(50.0), Some(8.3));
        it.setup.most_requests = 1000;
    }),
    ("", "1 order was not answered in the end", |it| {
        keep_no_ledger(it);
        set_outcome(it, 7, Unknown);
    }),
    ("unaccounted", "299 units, and the stock went down by 300", |it| {
        keep_no_ledger(it);
        set_outcome(it, 7, SoldOut);
    }),
    // more units than one order may have, and a refusal for a limit that does not exist
    ("over_limit", "42 orders were accepted beyond the limit of its user, such as run-0", |it| {
        *it = history_of(7);
        it.setup.before.per_order = Some(5);
    }),
    ("limited_too_early", "such as run-420", |it| set_outcome(it, 420, LimitReached)),
    // I2
    // sent again after its answer
    ("", "PASS", |it| ask_again(it, |_| {})),
    ("answered_anew", "such as run-7", |it| ask_again(it, |again| again.token = Some(101))),
    ("answered_anew", "such as run-7", |it| ask_again(it, |again| again.remaining -= 1)),
    ("answered_anew", "such as run-7: SoldOut", |it| {
        ask_again(it, |_| {});
        it.orders[7].changes[0].1.outcome = SoldOut;
    }),
    ("change_lost", "run-7, Expired and not there", |it| {
        ask_again(it, |_| {});
        it.orders[7].changes[0].1.outcome = FinalOutcome::Over(Event::Expired);
    }),
    ("mismarked", "such as run-7", |it| ask_again(it, |again| again.replayed = false)),
    // marked as repeated, once where no earlier attempt can have been accepted, and once where one can
    ("mismarked", "such as run-7", |it| answer(it, 7).replayed = true),
    ("", "PASS", |it| {
        answer(it, 7).replayed = true;
        it.orders[7].in_doubt = true;
    }),
    ("duplicates", "duplicates: 1 order was more than once in the ledger, such as run-298", |it| {
        replace_entry(it, 299, "run-298");
    }),
    ("duplicates", "such as another-client", |it| {
        replace_entry(it, 298, "another-client");
        replace_entry(it, 299, "another-client");
    }),
    ("lost", "1 order was acknowledged and not in the ledger, such as run-17", |it| {
        it.orders.truncate(299);
        it.ledger.truncate(299);
        it.ledger[17].order = "another-client".to_owned();
        set_after(it, &state(1, 299, 299));
    }),
    // a lost ledger differs from a ledger that was never kept
    ("lost ledger_does_not_add_up", "300 orders were acknowledged and", |it| it.ledger.clear()),
    ("lost ledger_does_not_add_up", "300 orders were acknowledged and", |it| {
        keep_no_ledger(it);
        set_after(it, &state(0, 300, 300));
    }),
    ("lost gone", "I2 gone: a no longer has the sale", |it| {
        keep_no_ledger(it);
        it.gone = it.after.drain(..).map(|(url, _)| url).collect();
    }),
    ("", "PASS", |it| it.ledger[3].instance = None),
    (
        "token_shared misreported",
        "1 order was answered otherwise than the ledger has it, such as run-3",
        |it| it.ledger[3].instance = Some("8090".to_owned()),
    ),
    ("misreported", "such as run-3", |it| answer(it, 3).instance = "8090".to_owned()),
    ("", "PASS", |it| answer(it, 3).position = None),
    ("misreported", "such as run-3", |it| answer(it, 3).position = Some(5)),
    ("misreported", "such as run-3", |it| answer(it, 3).remaining = 5),
    ("misreported", "such as run-3", |it| answer(it, 3).token = Some(5)),
    // I3
    ("untold", "in the ledger without an answer to a buyer, such as run-5", |it| {
        set_outcome(it, 5, SoldOut);
    }),
    ("untold", "such as run-9999", |it| replace_entry(it, 299, "run-9999")),
    ("untold", "such as run-0299", |it| replace_entry(it, 299, "run-0299")),
    ("untold", "such as run-299-again", |it| replace_entry(it, 299, "run-299-again")),
    // an order without an answer took more than it asked for
    (
        "oversold wrong_quantity",
        "1 order was in the ledger with other units, such as run-299",
        |it| {
            set_outcome(it, 299, Unknown);
            it.ledger[299].quantity = 2;
            it.ledger[299].remaining = -1;
            set_after(it, &state(-1, 301, 300));
        },
    ),
    // an order in the ledger whose attempts were all refused; the same with one attempt without an answer
    ("untold", "such as run-5", |it| it.orders[5] = Order { in_doubt: false, ..order(5, Unknown) }),
    ("", "and 1 of them are in the ledger", |it| set_outcome(it, 5, Unknown)),
    ("untold failed", "such as run-5", |it| set_outcome(it, 5, failed())),
    ("failed", "FAIL: failed: 1 order was answered with an error (1 x 500 internal)", |it| {
        it.orders[5] = Order { in_doubt: true, ..order(5, failed()) };
    }),
    // without holds, sold out covers all attempts
    ("untold", "such as run-5", |it| it.orders[5] = Order { in_doubt: true, ..order(5, SoldOut) }),
    ("", "other buyers took 1 unit in 1 order", |it| replace_entry(it, 299, "another-client")),
    // other clients' orders do not hide an oversold sale
    ("oversold lost", "1 too many", |it| {
        replace_entry(it, 299, "another-client");
        set_outcome(it, 300, acknowledged(0, Some(129)));
    }),
    ("strangers", "in the ledger, and this run must be alone, such as another-client", |it| {
        replace_entry(it, 299, "another-client");
        it.setup.plan.alone = true;
    }),
    // I4
    ("token_went_down", "token went down: first at position 11, from 101 to 100", |it| {
        for (number, token) in [(9, 101), (10, 100)] {
            it.ledger[number].token = Some(token);
            answer(it, number).token = Some(token);
        }
    }),
    ("token_shared", "run-7: 8090 at position 8, under 100 of 8080", |it| {
        it.ledger[7].instance = Some("8090".to_owned());
        answer(it, 7).instance = "8090".to_owned();
    }),
    // the orders of two instances under one token: each writes its own; one of them writes all; others write them
    ("token_shared", "token shared: 150 orders were written under", |it| share(it, [None; 2])),
    ("", "PASS", |it| share(it, [None, Some("8080")])),
    ("", "PASS", |it| share(it, [Some("8100"); 2])),
    ("token_shared", "run-1: 8110 at position 2, under 7 of 8100", |it| {
        share(it, [Some("8100"), Some("8110")]);
    }),
    ("token_shared", "run-1: 8080 at position 2, under 7 of 8090", |it| {
        share(it, [Some("8090"), Some("8080")]);
    }),
    ("without_token", "such as run-299", |it| {
        it.ledger[299].token = None;
        set_outcome(it, 299, Unknown);
    }),
    ("without_token", "without a token, such as another-client", |it| {
        replace_entry(it, 299, "another-client");
        it.ledger[299].token = None;
    }),
    ("", "PASS", forget_tokens),
    ("without_token", "300 orders were accepted without a token", |it| {
        forget_tokens(it);
        it.setup.plan.tokens = true;
    }),
    ("without_token", "300 orders were accepted without a token", |it| {
        keep_no_ledger(it);
        it.setup.plan.tokens = true;
    }),
    // I5
    ("paused", "for 4.000 s, from 0.001199 s on, orders were", |it| {
        it.orders[200..].iter_mut().for_each(|one| one.ended += 4_000_000);
    }),
    (
        "paused slow_order",
        "was tried for longer than allowed, such as run-420: for 5.000 s",
        |it| {
            it.orders[420].ended = 5_000_001;
        },
    ),
    // I6
    ("", "PASS", |it| {
        it.orders.iter_mut().for_each(|order| order.ended += 10_000);
        // it was answered while the one before it was under way
        (it.orders[7].sent, it.orders[7].last_sent) = (5000, 5000);
        it.orders[8].ended = 5000;
    }),
    ("out_of_order", "run-8, answered at 0.004999 s: run-7 was first sent", |it| {
        it.orders.iter_mut().for_each(|order| order.ended += 10_000);
        (it.orders[7].sent, it.orders[7].last_sent) = (5000, 5000);
        it.orders[8].ended = 4999;
    }),
    ("", "PASS", |it| {
        (it.orders[299].sent, it.orders[299].last_sent) = (9000, 9000);
        it.orders[299..].iter_mut().for_each(|order| order.ended = 9000);
    }),
    ("sold_out_too_early", "such as run-420, sent at 0.000000 s and answered at", |it| {
        (it.orders[299].sent, it.orders[299].last_sent) = (9000, 9000);
        it.orders[299..].iter_mut().for_each(|order| order.ended = 9000);
        it.orders[420].ended = 8999;
    }),
    (
        "sold_out_too_early",
        "201 orders were told sold out, while enough was left or held, such as run-299",
        |it| {
            set_outcome(it, 299, SoldOut);
            it.ledger.pop();
            set_after(it, &state(1, 299, 299));
        },
    ),
    // without holds its buyer cannot take an order back, so it is final
    ("", "PASS", |it| {
        let kept = order(7, FinalOutcome::Over(Event::Confirmed));
        it.orders[7].changes.push((Event::Cancelled, kept));
    }),
    // another client's change
    ("", "the sale was changed 1 time during the run (+50 units)", |it| {
        let change = Some(Change { add: Some(50), ..Change::default() });
        let last = it.ledger[299].clone();
        let (order, event, position) = (String::new(), Event::Changed, 301);
        it.ledger.push(LedgerEntry { order, event, position, change, remaining: 50, ..last });
        set_after(it, &StockState { initial: 350, entries: Some(301), ..state(50, 300, 300) });
    }),
    // 6 units are left, too few for an order of 7
    ("", "PASS: 294 of 300 units sold", |it| *it = history_of(7)),
    // the run proves nothing
    ("restarted ledger_does_not_add_up", "another sale was started during the run", |it| {
        set_after(it, &StockState { initial: 50, sale: None, ..state(50, 0, 300) });
    }),
    ("restarted", "FAIL: restarted", |it| {
        set_after(it, &StockState { sale: Some(2), ..state(0, 300, 300) });
    }),
    ("states_differ", "300 orders, but b tells stock 1, lucky 299, 299 orders", |it| {
        it.after[1].1 = state(1, 299, 299);
    }),
    // one order in a hundred
    ("", "5 orders were not answered in the end, and 0 of them", |it| {
        (495..500).for_each(|number| set_outcome(it, number, Unknown));
    }),
    ("unanswered", "6 of 500 orders got no answer, too many", |it| {
        (494..500).for_each(|number| set_outcome(it, number, Unknown));
    }),
    // clients that disconnect on purpose are not counted against the service
    ("", "100 orders were not answered in the end", |it| {
        (300..400).for_each(|number| set_outcome(it, number, Unknown));
        it.orders[300..400].iter_mut().for_each(|order| order.abandoned = true);
    }),
];

/// Goal: each mutation of a good history is found for its own reasons, and each harmless one passes.
#[test]
fn mutations() {
    let good = Report::new(&history_of(1), LIMITS);
    let pass = "PASS: 300 of 300 units sold, each exactly once; 200 were told";
    assert!(good.verdict.starts_with(pass) && good.notes.is_empty(), "{good:?}");
    let found = judge_all(&history_of(1), LIMITS, MUTATIONS);
    assert_eq!(found.len(), 29, "each kind of failure without holds occurs: {found:?}");
}

/// Judges a good history with each damage. The run must fail for the expected kinds alone, and in these words. Returns all the
/// kinds.
fn judge_all(good: &History, limits: Limits, mutations: &[Mutation]) -> BTreeSet<String> {
    let (mut found, mut misjudged) = (BTreeSet::new(), Vec::new());
    for (expected, text, mutate) in mutations {
        let mut history = good.clone();
        mutate(&mut history);
        let Report { findings, notes, verdict, .. } = Report::new(&history, limits);
        let kinds: Vec<_> = findings.into_iter().map(|found| found.kind).collect();
        let said = format!("{verdict}\n{}", notes.join("\n"));
        if kinds.join(" ") != *expected || !said.contains(text) {
            misjudged.push(format!("{expected}, {text}: {said}"));
        }
        found.extend(kinds);
    }
    assert!(misjudged.is_empty(), "{misjudged:#?}");
    found
}

/// An order that was sent and ended at these times, in milliseconds.
fn span(sent: u64, ended: u64, outcome: FinalOutcome) -> Order {
    Order { sent: sent * 1000, ended: ended * 1000, ..order(0, outcome) }
}

/// Goal: a pause lasts, while orders are tried, until the next answer that says yes or no.
#[test]
fn longest_pause_is_found() {
    let yes = || acknowledged(0, None);
    let failing = || vec![span(0, 1, yes()), span(100, 120, Unknown), span(150, 160, failed())];
    for (orders, pause) in [
        (vec![], (0, 0)),
        (vec![span(5, 9, yes())], (5, 9)),
        // no order was tried from 3 to 500, nor after two orders that ended together
        (vec![span(0, 3, yes()), span(500, 502, yes())], (0, 3)),
        (vec![span(0, 3, yes()), span(0, 3, failed()), span(500, 502, yes())], (0, 3)),
        // one order waited from 0 to 60, while others were answered
        (vec![span(0, 60, yes()), span(1, 10, yes()), span(11, 30, SoldOut)], (30, 60)),
        // failed and unanswered orders do not end a pause; and if no further order is answered, the pause lasts to the end
        ([failing(), vec![span(200, 250, yes())]].concat(), (100, 250)),
        (failing(), (100, 160)),
        (vec![Order::default(), span(7, 8, Unknown)], (7, 8)),
    ] {
        let pause::Pause { from, to } = pause::longest(&orders);
        assert_eq!((from / 1000, to / 1000), pause, "{orders:?}");
    }
}

/// Goal: an order whose buyer was told that all is held counts by the status of this answer, until it is sent again.
#[test]
fn refusals_that_may_pass_have_a_status() {
    let mut history = history_of(1);
    history.orders = vec![Order::default()];
    let failure = Failure { why: ALL_HELD.into(), is_final: false };
    let outcome = Outcome { status: Some(409), effect: Effect::Failed(failure) };
    history.orders[0].add(0, 1000, 3000, outcome);
    let report = Report::new(&history, LIMITS);
    assert_eq!(report.tally.answers_by_status, [("409".to_owned(), 1)].into());
    let latency = report.latency_microseconds.expect("there was an answer");
    assert_eq!((latency.min, latency.max), (2000, 2000));
    history.orders[0].add(0, 4000, 5000, Outcome::went_away());
    assert_eq!(history.orders[0].status, None, "the last attempt had no answer");
}
