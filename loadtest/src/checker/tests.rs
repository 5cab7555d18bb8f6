//! Broken histories: each must fail for its own reason, and for that one alone.

mod random;
mod time;

use super::order::{Acknowledgement, FinalOutcome, Order};
use super::reason::Reason;
use super::*;

const RUN: &str = "run";

fn state(stock: i64, lucky: i64, orders: u64) -> StockState {
    StockState { stock, lucky, initial: 300, orders, sale: Some(1) }
}

fn acknowledged(remaining: i64, token: Option<i64>) -> FinalOutcome {
    let instance = "8080".to_owned();
    let position = None;
    FinalOutcome::Acknowledged(Acknowledgement {
        quantity: 1,
        remaining,
        instance,
        token,
        position,
    })
}

/// An order that was answered at once: all are sent at the beginning, and answered one by one.
fn order(number: usize, outcome: FinalOutcome) -> Order {
    let in_doubt = outcome == FinalOutcome::Unknown;
    let ended = 1000 + u64_from(number);
    Order { outcome, in_doubt, abandoned: false, attempts: 1, sent: 0, ended }
}

fn judge(history: &History) -> Verdict {
    super::judge(history, Limits::default())
}

/// 500 orders for 300 units, ten in a batch under one token: all as it should be.
fn good() -> History {
    let numbered = (0..300_usize).zip((0..300_i64).rev());
    let token = |number: usize| Some(100 + i64::try_from(number / 10).expect("small"));
    let mut outcomes: Vec<_> = numbered
        .clone()
        .map(|(number, remaining)| acknowledged(remaining, token(number)))
        .collect();
    outcomes.resize(500, FinalOutcome::SoldOut);
    let orders =
        outcomes.into_iter().enumerate().map(|(number, outcome)| order(number, outcome)).collect();
    let ledger = numbered
        .map(|(number, remaining)| LedgerEntry {
            position: u64_from(number) + 1,
            order: order_id(RUN, number),
            quantity: 1,
            remaining,
            instance: Some("8080".to_owned()),
            token: token(number),
        })
        .collect();
    History {
        run: RUN.to_owned(),
        family: RUN.to_owned(),
        alone: false,
        tokens: false,
        quantity: 1,
        before: state(300, 0, 0),
        orders,
        ledger,
        after: vec![("a".to_owned(), state(0, 300, 300)), ("b".to_owned(), state(0, 300, 300))],
        gone: Vec::new(),
    }
}

fn set_after(history: &mut History, state: &StockState) {
    for (_, after) in &mut history.after {
        *after = state.clone();
    }
}

/// The kinds of all reasons, after checking that the message has them.
fn kinds(history: &History) -> Vec<&'static str> {
    let verdict = judge(history);
    for reason in &verdict.reasons {
        assert!(verdict.message.contains(&reason.to_string()), "{}", verdict.message);
    }
    verdict.reasons.iter().map(Reason::kind).collect()
}

/// Goal: the good history passes, with the message of the documentation.
#[test]
fn good_history_passes() {
    let verdict = judge(&good());
    assert_eq!(
        verdict.message,
        "PASS: 300 of 300 units sold, each exactly once; 200 were told sold out; \
         stock 0 + lucky 300 = 300"
    );
    assert!(verdict.reasons.is_empty() && verdict.notes.is_empty());
}

/// Goal: an order that took its unit twice is found, though all sums are right: another buyer got
/// nothing for it.
#[test]
fn order_twice_in_the_ledger() {
    let mut history = good();
    history.ledger[299].order = order_id(RUN, 298);
    history.orders[299].outcome = FinalOutcome::SoldOut;
    assert_eq!(kinds(&history), ["duplicates"]);
}

/// Goal: an acknowledged order that the ledger lacks is found, though all sums are right: a
/// foreign order stands in its place.
#[test]
fn order_missing_from_the_ledger() {
    let mut history = good();
    history.orders.truncate(299);
    history.ledger.truncate(299);
    history.ledger[17].order = "another-client".to_owned();
    set_after(&mut history, &state(1, 299, 299));
    assert_eq!(kinds(&history), ["lost"]);
    assert!(judge(&history).message.contains("1 acknowledged order is not in the ledger"));
}

/// Goal: one sale too many is found although acknowledgements, ledger and sums agree.
#[test]
fn one_sale_too_many() {
    let mut history = good();
    history.orders[300].outcome = acknowledged(-1, Some(129));
    let order = order_id(RUN, 300);
    history.ledger.push(LedgerEntry {
        position: 301,
        order,
        quantity: 1,
        remaining: -1,
        instance: Some("8080".to_owned()),
        token: Some(129),
    });
    set_after(&mut history, &state(-1, 301, 301));
    assert_eq!(kinds(&history), ["oversold"]);
    let message = judge(&history).message;
    assert_eq!(
        message,
        "FAIL: I1 oversold: 301 orders were acknowledged for 300 units, 1 too many"
    );
}

/// Goal: a unit that vanished from `lucky` is found.
#[test]
fn unbalanced_stock() {
    let mut history = good();
    set_after(&mut history, &state(0, 299, 300));
    assert_eq!(kinds(&history), ["unbalanced"]);
}

/// Goal: two tokens in the wrong order are found: two instances wrote in turns.
#[test]
fn tokens_swapped() {
    let mut history = good();
    for (number, token) in [(9, 101), (10, 100)] {
        history.ledger[number].token = Some(token);
        let FinalOutcome::Acknowledged(answer) = &mut history.orders[number].outcome else {
            unreachable!("the first 300 are acknowledged")
        };
        answer.token = Some(token);
    }
    assert_eq!(kinds(&history), ["token_went_down"]);
    assert!(judge(&history).message.contains("first at position 11, from 101 to 100"));
}

/// Goal: an order without a token beside others that have one is found, also of another client; and where
/// tokens are asked for, a sale without any.
#[test]
fn tokens_missing() {
    let mut history = good();
    history.ledger[299].token = None;
    history.orders[299] = order(299, FinalOutcome::Unknown);
    assert_eq!(kinds(&history), ["without_token"]);
    history.ledger[299].order = "another-client".to_owned();
    assert_eq!(kinds(&history), ["without_token"]);
    assert_eq!(
        judge(&history).message,
        "FAIL: I4 without a token: 1 order was accepted without one, such as another-client, and \
         each must have one"
    );

    let mut history = good();
    for (number, entry) in history.ledger.iter_mut().enumerate() {
        entry.token = None;
        history.orders[number].outcome = acknowledged(entry.remaining, None);
    }
    assert_eq!(kinds(&history), [""; 0], "nothing guards it, and no token is required");
    history.tokens = true;
    assert_eq!(kinds(&history), ["without_token"]);

    let mut history = good_without_a_ledger();
    history.tokens = true;
    assert_eq!(kinds(&history), ["without_token"]);
}

/// Goal: an answer that names another instance than the ledger is found; a ledger that names none
/// says nothing.
#[test]
fn instance_that_contradicts_the_ledger() {
    let mut history = good();
    history.ledger[3].instance = None;
    assert_eq!(kinds(&history), [""; 0]);
    history.ledger[3].instance = Some("8090".to_owned());
    assert_eq!(kinds(&history), ["misreported"]);
}

/// Goal: an entry of this run whose buyer was refused is found, and one that was never sent.
#[test]
fn unacknowledged_entry() {
    let mut history = good();
    history.orders[5].outcome = FinalOutcome::SoldOut;
    assert_eq!(kinds(&history), ["untold"]);

    let mut history = good();
    history.ledger[299].order = order_id(RUN, 9999);
    history.orders[299].outcome = FinalOutcome::SoldOut;
    assert_eq!(kinds(&history), ["untold"]);
}

/// Goal: a refusal while units were left is found.
#[test]
fn sold_out_while_stock_remained() {
    let mut history = good();
    history.orders[299].outcome = FinalOutcome::SoldOut;
    history.ledger.pop();
    set_after(&mut history, &state(1, 299, 299));
    assert_eq!(kinds(&history), ["sold_out_too_early"]);
}

/// Goal: what is left may be too little for one order, and then refusals are right.
#[test]
fn sold_out_with_too_few_left() {
    let mut history = good();
    history.quantity = 2;
    history.orders[299].outcome = FinalOutcome::SoldOut;
    history.ledger.pop();
    set_after(&mut history, &state(1, 299, 299));
    assert_eq!(kinds(&history), [""; 0]);
}

/// Goal: instances that tell different states are found.
#[test]
fn instances_disagree() {
    let mut history = good();
    history.after[1].1 = state(1, 299, 299);
    assert_eq!(kinds(&history), ["states_differ"]);
}

/// Goal: a sale that is no longer there is not taken for one that keeps no ledger.
#[test]
fn sale_that_is_gone() {
    let mut history = good_without_a_ledger();
    history.after.clear();
    history.gone = vec!["a".to_owned(), "b".to_owned()];
    assert_eq!(kinds(&history), ["lost", "gone"]);
}

/// Goal: a place in the ledger that the service reported, and that is another order's, is found.
#[test]
fn position_that_contradicts_the_ledger() {
    let mut history = good();
    for (position, right) in [(4, true), (5, false)] {
        let FinalOutcome::Acknowledged(answer) = &mut history.orders[3].outcome else {
            unreachable!("the first 300 are acknowledged")
        };
        answer.position = Some(position);
        let expected: &[&str] = if right { &[] } else { &["misreported"] };
        assert_eq!(kinds(&history), expected);
    }
}

/// Goal: a ledger that is shorter than the service says, or whose sums jump, is found.
#[test]
fn ledger_that_does_not_add_up() {
    let mut history = good();
    set_after(&mut history, &state(0, 300, 301));
    assert_eq!(kinds(&history), ["ledger_does_not_add_up"]);

    let mut history = good();
    history.ledger[7].position = 9;
    assert_eq!(kinds(&history), ["ledger_does_not_add_up"]);
}

/// Goal: an answer that contradicts the ledger is found.
#[test]
fn answer_that_contradicts_the_ledger() {
    let mut history = good();
    history.orders[3].outcome = acknowledged(5, Some(100));
    assert_eq!(kinds(&history), ["misreported"]);
}

/// Goal: a sale that was replaced during the run is not judged as if it were the same.
#[test]
fn sale_started_afresh_meanwhile() {
    let mut history = good();
    set_after(&mut history, &StockState { initial: 50, sale: None, ..state(50, 0, 0) });
    assert_eq!(kinds(&history)[0], "restarted");

    // with the same units, and as much sold since
    let mut history = good();
    let (_, after) = history.after[0].clone();
    set_after(&mut history, &StockState { sale: Some(2), ..after });
    assert_eq!(kinds(&history), ["restarted"]);
}

/// Goal: orders without an answer do not fail a run, stand or not, and a note mentions them.
#[test]
fn unanswered_orders_are_noted() {
    let mut history = good();
    history.orders[5] = order(5, FinalOutcome::Unknown);
    history.orders[400] = order(400, FinalOutcome::Unknown);
    let verdict = judge(&history);
    assert_eq!(verdict.reasons, []);
    assert_eq!(
        verdict.notes,
        ["2 orders were not answered in the end; the ledger says that 1 of them stand"]
    );
}

/// Goal: a run in which too many orders were not answered does not pass, nor one with odd answers.
#[test]
fn orders_must_be_settled() {
    let mut history = good();
    for number in 495..500 {
        history.orders[number] = order(number, FinalOutcome::Unknown);
    }
    assert_eq!(kinds(&history), [""; 0], "one in a hundred is a note");
    history.orders[494] = order(494, FinalOutcome::Unknown);
    assert_eq!(kinds(&history), ["unanswered"]);
    let message = judge(&history).message;
    assert!(message.starts_with("FAIL: unanswered: 6 of 500 orders got no answer"), "{message}");
    for number in 0..500 {
        history.orders[number] = order(number, FinalOutcome::Unknown);
    }
    assert_eq!(kinds(&history), ["unanswered"]);

    let mut history = good();
    history.orders[400].outcome =
        FinalOutcome::Failed { status: 500, kind: "500 internal".to_owned() };
    assert_eq!(kinds(&history), ["failed"]);
    assert!(judge(&history).message.contains("(1 x 500 internal)"));
}

/// Goal: other buyers of the same sale neither fail the run nor hide an oversold one.
#[test]
fn other_buyers() {
    let mut history = good();
    history.ledger[299].order = "another-client".to_owned();
    history.orders[299].outcome = FinalOutcome::SoldOut;
    let verdict = judge(&history);
    assert_eq!(verdict.reasons, []);
    assert_eq!(verdict.notes, ["other buyers took 1 unit in 1 order during the run"]);

    history.orders[300].outcome = acknowledged(0, Some(129));
    assert_eq!(kinds(&history), ["oversold", "lost"]);
}

/// Goal: where no other client may buy, an order that was not sent is found, though all sums are right.
#[test]
fn foreign_order_where_no_other_buys() {
    let mut history = good();
    history.ledger[299].order = "another-client".to_owned();
    history.orders[299].outcome = FinalOutcome::SoldOut;
    assert_eq!(kinds(&history), [""; 0], "it may be of another client");
    history.alone = true;
    assert_eq!(kinds(&history), ["strangers"]);
    assert_eq!(
        judge(&history).message,
        "FAIL: I3 foreign: 1 order is in the ledger and not of this run, such as \
         another-client, and there must be no other buyers"
    );
}

/// Goal: an order that took its unit twice is found, whether it is ours or not.
#[test]
fn foreign_order_twice_in_the_ledger() {
    let mut history = good();
    for number in [298, 299] {
        history.ledger[number].order = "another-client".to_owned();
        history.orders[number].outcome = FinalOutcome::SoldOut;
    }
    assert_eq!(kinds(&history), ["duplicates"]);
    let message = judge(&history).message;
    assert!(message.contains("1 order is more than once in the ledger, such as another-client"));
}

/// Goal: an order of this run that stands in another item's ledger, or under another id, is found.
#[test]
fn order_of_this_run_in_the_wrong_ledger() {
    for id in ["run-2-7", "run-0299", "run-299-again"] {
        let mut history = good();
        (history.run, history.family) = ("run-1".to_owned(), "run".to_owned());
        for (number, entry) in history.ledger.iter_mut().enumerate() {
            entry.order = order_id("run-1", number);
        }
        assert_eq!(kinds(&history), [""; 0]);
        history.ledger[299].order = id.to_owned();
        history.orders[299].outcome = FinalOutcome::SoldOut;
        assert_eq!(kinds(&history), ["untold"], "{id}");
    }
}

/// A sale that keeps no ledger and was guarded all the same.
fn good_without_a_ledger() -> History {
    let mut history = good();
    history.ledger.clear();
    for (number, remaining) in (0..300_usize).zip((0..300_i64).rev()) {
        history.orders[number].outcome = acknowledged(remaining, None);
    }
    set_after(&mut history, &state(0, 300, 0));
    history
}

/// Goal: without a ledger the sums decide, and a note says so.
#[test]
fn sums_decide_without_a_ledger() {
    let mut history = good_without_a_ledger();
    let verdict = judge(&history);
    assert_eq!(
        verdict.message,
        "PASS: 300 of 300 units sold, as far as the sums can tell; 200 were told sold out; \
         stock 0 + lucky 300 = 300"
    );
    assert_eq!(verdict.notes.len(), 1);
    assert!(verdict.notes[0].starts_with("no ledger: only the sums"), "{:?}", verdict.notes);

    history.orders[7] = order(7, FinalOutcome::Unknown);
    assert_eq!(kinds(&history), [""; 0], "its unit may be one of those that left the stock");
    assert_eq!(judge(&history).notes.len(), 2);

    history.orders[7].outcome = FinalOutcome::SoldOut;
    assert_eq!(kinds(&history), ["unaccounted"]);
    assert!(
        judge(&history).message.contains("buyers got 299 units, and the stock went down by 300")
    );
}

/// Goal: a ledger that was lost is not taken for one that was never kept.
#[test]
fn lost_ledger_is_not_forgiven() {
    let mut history = good();
    history.ledger.clear();
    assert_eq!(kinds(&history), ["lost", "ledger_does_not_add_up"]);

    let mut history = good_without_a_ledger();
    set_after(&mut history, &state(0, 300, 300));
    assert_eq!(kinds(&history), ["lost", "ledger_does_not_add_up"], "the service counts orders");
}

/// Goal: a sale without a lock: oversold comes first.
#[test]
fn sale_without_a_lock() {
    let mut history = good();
    history.ledger.clear();
    for order in &mut history.orders {
        order.outcome = acknowledged(289, None);
    }
    set_after(&mut history, &state(289, 500, 0));
    assert_eq!(kinds(&history), ["oversold", "unbalanced", "unaccounted"]);
    let message = judge(&history).message;
    let first = "FAIL: I1 oversold: 500 orders were acknowledged for 300 units, 200 too many; ";
    assert!(message.starts_with(first), "{message}");
}
