//! A sale that changes while it runs.

use serde_json::{Value, json};

use super::*;

/// The entry of an order for one unit of this user.
fn order_of(user: &str, remaining: i64) -> Value {
    json!({ "order": format!("{user}{remaining}"), "user": user, "quantity": 1, "remaining": remaining })
}

fn changed(change: &Value, remaining: i64) -> Value {
    json!({ "event": "changed", "change": change, "note": "x", "remaining": remaining })
}

/// Goal: terms and units are those of the entries before, and the state at the end is theirs. Whether orders can be accepted that were
/// refused before is known.
#[test]
fn changes_are_stepped() {
    let end = |at: &str| changed(&json!({ "ends_at": at }), 1);
    let cases: [(&[Value], &[&str], bool); 9] = [
        (&[changed(&json!({ "add": 3 }), 5), order_of("a", 4), order_of("a", 3)], &[], true),
        (
            &[
                changed(&json!({ "add": -2 }), 0),
                changed(&json!({ "add": 1 }), 1),
                order_of("a", 0),
            ],
            &[],
            true,
        ),
        (&[changed(&json!({ "add": -3 }), 2)], &["ledger_does_not_add_up"], false),
        (
            &[changed(&json!({ "paused": true }), 2), order_of("a", 1)],
            &["accepted_while_closed"],
            false,
        ),
        (
            &[
                changed(&json!({ "paused": true }), 2),
                changed(&json!({ "paused": false }), 2),
                order_of("a", 1),
            ],
            &[],
            true,
        ),
        (&[order_of("a", 1), end("now"), order_of("b", 0)], &["accepted_while_closed"], false),
        (&[order_of("a", 1), end("now"), end("2100-01-01T00:00:00Z"), order_of("b", 0)], &[], true),
        (
            &[order_of("a", 1), changed(&json!({ "per_user": 1 }), 1), order_of("a", 0)],
            &["over_limit"],
            false,
        ),
        (&[changed(&json!({ "per_order": 1_000_000, "hold_seconds": 5 }), 2)], &[], true),
    ];
    for (entries, findings, can_gain) in cases {
        let before =
            StockState { stock: 2, initial: 2, per_user: Some(2), ..StockState::default() };
        let mut sale = super::super::model::Sale::new(&before, true);
        let mut after = before.clone();
        for (entry, position) in entries.iter().zip(1_u64..) {
            let mut entry = entry.clone();
            (entry["position"], entry["token"]) = (position.into(), 7.into());
            let entry: LedgerEntry = serde_json::from_value(entry).expect("an entry");
            sale.apply(&entry);
            let change = entry.change.unwrap_or_default();
            after.initial += change.add.unwrap_or(0);
            after.paused = change.paused.unwrap_or(after.paused);
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

/// Goal: who gave up while the sale was paused was answered, and was not told that all is held.
#[test]
fn a_paused_sale_answers() {
    let mut history = history_of(1);
    for order in &mut history.orders[300..310] {
        *order = Order::default();
        let failure = Failure { why: "paused".into(), is_final: false };
        let outcome = Outcome { status: Some(409), effect: Effect::Failed(failure) };
        order.add(0, 0, 500, outcome);
    }
    let report = Report::new(&history, LIMITS);
    assert!(report.pass && report.tally.held_out == 10, "{report:?}");
}
