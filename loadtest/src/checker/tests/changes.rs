//! A sale that changes while it runs.

use serde_json::{Value, json};

use super::*;

/// The entry of an order for one unit of this user.
fn order_of(user: &str, remaining: i64) -> Value {
    json!({ "order": format!("{user}{remaining}"), "user": user, "quantity": 1, "remaining": remaining })
}

fn set(change: &str, remaining: i64) -> Value {
    let change: Value = serde_json::from_str(change).expect("JSON");
    json!({ "event": "changed", "change": change, "note": "x", "remaining": remaining })
}

/// Goal: terms and units are those of the entries before, and the state at the end is theirs. Whether orders can be accepted that were
/// refused before is known.
#[test]
fn changes_are_stepped() {
    const CLOSED: &[&str] = &["accepted_while_closed"];
    let [sold, last] = [1, 0].map(|remaining| order_of("a", remaining));
    let [pause, resume] = ["true", "false"].map(|is| set(&format!(r#"{{"paused":{is}}}"#), 2));
    let [end, later] = ["now", "2100-01-01T00:00:00Z"];
    let [end, later] = [end, later].map(|at| set(&format!(r#"{{"ends_at":"{at}"}}"#), 1));
    let other = order_of("b", 0);
    let limit = set(r#"{"per_user":1}"#, 1);
    let [more, one] = [set(r#"{"add":3}"#, 5), set(r#"{"add":1}"#, 1)];
    let [fewer, too_few] = [set(r#"{"add":-2}"#, 0), set(r#"{"add":-3}"#, 2)];
    let cases: [(&[&Value], &[&str], bool); 9] = [
        (&[&more, &order_of("a", 4), &order_of("a", 3)], &[], true),
        (&[&fewer, &one, &last], &[], true),
        (&[&too_few], &["ledger_does_not_add_up"], false),
        (&[&pause, &sold], CLOSED, false),
        (&[&pause, &resume, &sold], &[], true),
        (&[&sold, &end, &other], CLOSED, false),
        (&[&sold, &end, &later, &other], &[], true),
        (&[&sold, &limit, &last], &["over_limit"], false),
        (&[&set(r#"{"per_order":1000000,"hold_seconds":5}"#, 2)], &[], true),
    ];
    for (entries, findings, can_gain) in cases {
        let before =
            StockState { stock: 2, initial: 2, per_user: Some(2), ..StockState::default() };
        let mut sale = super::super::model::Sale::new(&before, true);
        let mut after = before.clone();
        for (entry, position) in entries.iter().zip(1_u64..) {
            let mut entry = Value::clone(entry);
            (entry["position"], entry["token"]) = (position.into(), 7.into());
            let entry: LedgerEntry = serde_json::from_value(entry).expect("an entry");
            sale.apply(&entry);
            let change = entry.change.unwrap_or_default();
            after.initial += change.add.unwrap_or(0);
            after.paused = change.paused.unwrap_or(after.paused);
            after.per_order = change.per_order.or(after.per_order);
            after.per_user = change.per_user.or(after.per_user);
            after.hold_seconds = change.hold_seconds.or(after.hold_seconds);
            after.orders += u64::from(entry.event == Event::Reserved);
            (after.stock, after.entries) = (entry.remaining, Some(position));
        }
        after.lucky = after.initial - after.stock;
        sale.check_end("a", &after);
        let found: Vec<_> = sale.findings().into_iter().map(|finding| finding.kind).collect();
        let kinds: BTreeSet<_> = found.iter().map(String::as_str).collect();
        assert_eq!(kinds, findings.iter().copied().collect(), "{entries:?}");
        assert_eq!(sale.can_gain(), can_gain, "{entries:?}");
    }
}

/// Goal: a term at the end that is not the one of the last change is found, where both are known.
#[test]
fn terms_at_the_end_are_compared() {
    let before = StockState {
        per_order: Some(1),
        per_user: Some(1),
        hold_seconds: Some(1),
        ..StockState::default()
    };
    for name in ["per_order", "per_user", "hold_seconds"] {
        let mut sale = super::super::model::Sale::new(&before, false);
        let mut entry = set(&format!(r#"{{"{name}":3}}"#), 0);
        entry["position"] = 1.into();
        sale.apply(&serde_json::from_value(entry).expect("an entry"));
        let mut after = StockState { entries: Some(1), ..before.clone() };
        sale.check_end("a", &after);
        let found = sale.findings();
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        assert_eq!(found[0].kind, "ledger_does_not_add_up", "{name}");
        (after.per_order, after.per_user, after.hold_seconds) = (None, None, None);
        let mut sale = super::super::model::Sale::new(&sale.state.clone(), false);
        sale.check_end("a", &after);
        assert!(sale.findings().is_empty(), "{name}: {:?}", sale.findings());
    }
}

/// Goal: who gave up while the sale was paused was answered, and was not told that all is held. It is a fault if the sale was not
/// paused at any moment of the attempt. Method: changes before the entry at a place; the last order is answered at 9 ms.
#[test]
fn a_paused_sale_answers() {
    for (before, place, changes, sent, is_true) in [
        (false, 0, &[][..], 0, false),
        (false, 299, &[true, false], 0, true),
        (false, 299, &[true, false], 9000, true),
        (false, 299, &[true, false], 9001, false),
        (false, 300, &[true], 9001, true),
        (true, 0, &[false], 0, true),
        (true, 0, &[false], 9001, false),
    ] {
        let mut history = history_of(1);
        (history.setup.before.paused, history.orders[299].ended) = (before, 9000);
        let like = LedgerEntry { order: String::new(), ..history.ledger[0].clone() };
        let remaining = 300 - i64::try_from(place).expect("small");
        let change = |paused: &bool| {
            let change = Some(Change { paused: Some(*paused), ..Change::default() });
            LedgerEntry { event: Event::Changed, change, remaining, ..like.clone() }
        };
        history.ledger.splice(place..place, changes.iter().map(change));
        for (entry, position) in history.ledger.iter_mut().zip(1..) {
            (entry.position, entry.token) = (position, Some(1));
        }
        for order in &mut history.orders[..300] {
            let Acknowledged(answer) = &mut order.outcome else { unreachable!() };
            (answer.position, answer.token) = (None, Some(1));
        }
        for order in &mut history.orders[300..310] {
            *order = Order::default();
            let failure = Failure { why: "paused".into(), is_final: false };
            let outcome = Outcome { status: Some(409), effect: Effect::Failed(failure) };
            order.add(0, sent, sent + 500, outcome);
        }
        let paused = changes.last().copied().unwrap_or(before);
        let entries = Some(u64_from(history.ledger.len()));
        set_after(&mut history, &StockState { entries, paused, ..state(0, 300, 300) });
        let report = Report::new(&history, LIMITS);
        let kinds: Vec<_> = report.findings.iter().map(|found| &*found.kind).collect();
        let expected: &[&str] = if is_true { &[] } else { &["not_all_held"] };
        assert_eq!((kinds, report.tally.held_out), (expected.to_vec(), 10), "{report:?}");
    }
}
