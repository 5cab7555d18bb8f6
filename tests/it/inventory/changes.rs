//! Changes of a running sale.

use std::time::Duration;

use flash_sale::inventory::{
    Action, ChangeCall, Changed, Entry, Inventory, InventoryError, NewSale, Order, Outcome, Phase,
    Replaces, SaleChange, Terms, User,
};
use serde_json::json;

use super::holds::end_hold;
use super::{ITEM, accepted, fresh, order, reduce, token};

/// A named sale, as the service starts it.
fn named(id: &str, units: u64, terms: Terms) -> NewSale {
    let replaces = Replaces::Any;
    NewSale { id: id.parse().unwrap(), is_named: true, replaces, terms, ..NewSale::from(units) }
}

fn times(starts_at: Option<&str>, ends_at: Option<&str>) -> Terms {
    let time = |text: Option<&str>| text.map(|text| text.parse().unwrap());
    Terms { starts_at: time(starts_at), ends_at: time(ends_at), ..Terms::default() }
}

pub(super) fn call(key: &str, sale: &str, change: &str) -> ChangeCall {
    let (sales, change): (_, SaleChange) =
        (vec![sale.parse().unwrap()], serde_json::from_str(change).unwrap());
    ChangeCall { key: order(key, 1).id, change, sales }
}

async fn try_change(
    inventory: &Inventory,
    key: &str,
    sale: &str,
    change: &str,
) -> Result<Changed, InventoryError> {
    inventory.change_sale(&ITEM, Some(token(5)), "8080", &call(key, sale, change)).await
}

pub(super) async fn change(inventory: &Inventory, key: &str, change: &str) -> Changed {
    let changed = try_change(inventory, key, "s", change).await.unwrap();
    assert!(changed.stock.is_balanced(), "{:?}", changed.stock);
    assert_eq!(changed.stock, inventory.stock(&ITEM).await.unwrap());
    changed
}

async fn one(inventory: &Inventory, order: Order) -> Outcome {
    reduce(inventory, Some(token(5)), &[order]).await.unwrap().remove(0)
}

fn word(error: &InventoryError) -> String {
    match error {
        InventoryError::SaleRefused { why, .. } => (*why).to_owned(),
        InventoryError::TooFewUnits { left } => format!("{left} are left"),
        other => panic!("{other}"),
    }
}

/// Goal: each key makes one change, in the sale and the version that the call names. The ledger has the change. The start of the
/// sale can be repeated with the terms of the start.
#[tokio::test]
async fn a_change_is_made_once() {
    let (inventory, mut raw) = fresh().await;
    let ends = "2100-01-01T00:00:00.000001Z";
    let start = || named("s", 5, times(Some("2020-01-01T00:00:00Z"), Some(ends)));
    inventory.start(&ITEM, Some(token(1)), start()).await.unwrap();
    let body =
        r#"{"add":3,"per_order":2,"ends_at":"2101-01-01T01:00:00+01:00","note":"more \"tea\"\t"}"#;
    let note = body.replace("\\t", "");
    let wrong = serde_json::from_str::<SaleChange>(body).unwrap().check();
    assert!(wrong.is_err_and(|rule| rule.contains("`note`")));
    let made = try_change(&inventory, "k", "s:0", &note).await.unwrap();
    assert!(!made.is_repeated);
    let stock = &made.stock;
    assert_eq!((stock.stock, stock.initial, stock.version, stock.entries), (8, 8, 1, 1));
    let end = stock.terms.ends_at.unwrap().to_string();
    assert_eq!(end, "2101-01-01T00:00:00.000000Z");
    let entry = serde_json::to_value(&made.entry).unwrap();
    for (field, value) in [
        ("position", "1"),
        ("event", "\"changed\""),
        ("remaining", "8"),
        ("instance", "\"8080\""),
        ("token", "5"),
        ("note", r#""more \"tea\"""#),
        ("change", r#"{"add":3,"ends_at":"2101-01-01T00:00:00.000000Z","per_order":2}"#),
    ] {
        assert_eq!(entry[field].to_string(), value, "{field}");
    }
    assert!(entry.get("order").or(entry.get("quantity")).or(entry.get("user")).is_none());

    let dump = raw.dump().await;
    for (key, sale, change, why) in [
        // a known key counts before the version
        ("k", "other:9", r#"{"add":4}"#, "change-conflict"),
        ("l", "s:0", r#"{"add":4}"#, "sale-mismatch"),
        ("l", "other", r#"{"add":4}"#, "sale-mismatch"),
        ("l", "other:1", r#"{"add":4}"#, "sale-mismatch"),
    ] {
        let refused = try_change(&inventory, key, sale, change).await.unwrap_err();
        assert_eq!(word(&refused), why, "{key} {sale}");
    }
    let again = try_change(&inventory, "k", "other:9", &note).await.unwrap();
    assert_eq!(again, Changed { is_repeated: true, ..made.clone() });
    // a start, too, can name a version
    for (version, is_allowed) in [("s:0", false), ("s:1", true)] {
        let replaces = Replaces::AnyOf(vec![version.parse().unwrap()]);
        if !is_allowed {
            assert_eq!(raw.dump().await, dump);
            assert!(inventory.start(&ITEM, Some(token(5)), start()).await.unwrap().is_repeated);
        }
        let next = NewSale { replaces, ..named("t", 1, Terms::default()) };
        let started = inventory.start(&ITEM, Some(token(5)), next).await;
        assert_eq!(started.is_ok(), is_allowed, "{version}");
    }
    // a replaced sale keeps its own times and numbers
    let kept = &inventory.sales(&ITEM).await.unwrap().kept[0];
    assert_eq!((&kept["initial"], &kept["terms"]["per_order"]), (&8.into(), &2.into()));
    let refused = try_change(&inventory, "k", "s", &note).await.unwrap_err();
    assert_eq!(word(&refused), "sale-mismatch");
}

/// Goal: a change that cannot be made changes nothing.
#[tokio::test]
async fn a_change_may_be_refused() {
    let past = Some("2020-01-01T00:00:00Z");
    let later = Some("2090-01-01T00:00:00Z");
    let limited = Terms { per_user: Some(2), hold_seconds: Some(60), ..Terms::default() };
    for (terms, change, why) in [
        (Terms::default(), r#"{"add":-6}"#, "5 are left"),
        (Terms::default(), r#"{"add":1000000000000}"#, "too-many-units"),
        (Terms::default(), r#"{"per_user":2,"add":1}"#, "term-final"),
        (Terms::default(), r#"{"hold_seconds":2}"#, "term-final"),
        (Terms::default(), r#"{"starts_at":"2100-01-01T00:00:00Z"}"#, "term-final"),
        (times(past, None), r#"{"starts_at":"now"}"#, "term-final"),
        (times(past, None), r#"{"ends_at":"2020-01-02T00:00:00Z"}"#, "already-ended"),
        (times(later, None), r#"{"ends_at":"2089-01-01T00:00:00Z"}"#, "already-ended"),
        (times(past, later), r#"{"ends_at":"2100-01-01T00:00:00Z"}"#, ""),
        (times(later, None), r#"{"starts_at":"2020-01-01T00:00:00Z"}"#, ""),
        (times(later, None), r#"{"ends_at":"now"}"#, ""),
        (limited, r#"{"per_user":1,"hold_seconds":9,"per_order":1000000}"#, ""),
    ] {
        let (inventory, mut raw) = fresh().await;
        inventory.start(&ITEM, Some(token(5)), named("s", 5, terms.clone())).await.unwrap();
        let dump = raw.dump().await;
        match try_change(&inventory, "k", "s", change).await {
            Ok(_) => assert_eq!(why, "", "{change}"),
            Err(error) => {
                assert_eq!(word(&error), why, "{change} {terms:?}");
                assert_eq!(raw.dump().await, dump, "{change}");
            }
        }
    }
    // a sale whose stock was raised by hand keeps a number of units that can be read
    let (inventory, mut raw) = fresh().await;
    inventory.start(&ITEM, Some(token(5)), named("s", 5, Terms::default())).await.unwrap();
    raw.run::<()>("SET stock 100").await;
    let refused = try_change(&inventory, "k", "s", r#"{"add":-6}"#).await.unwrap_err();
    assert_eq!(word(&refused), "5 are left");
    // a stock that was set by hand has no terms
    let (inventory, mut raw) = fresh().await;
    raw.run::<()>("SET stock 5").await;
    accepted(&one(&inventory, order("a", 1)).await);
    let id = inventory.stock(&ITEM).await.unwrap().id.unwrap();
    let refused = try_change(&inventory, "k", &id, r#"{"add":1}"#).await.unwrap_err();
    assert_eq!(word(&refused), "term-final");
}

/// Goal: units on sale are withdrawn, all or none; held units stay. A unit whose hold is over counts as on sale. The count of
/// held units stays right.
#[tokio::test]
async fn held_units_are_not_withdrawn() {
    let (inventory, mut raw) = fresh().await;
    let terms = Terms { hold_seconds: Some(60), per_user: Some(2), ..Terms::default() };
    inventory.start(&ITEM, Some(token(1)), named("s", 3, terms)).await.unwrap();
    let user = User::new("ann").unwrap();
    let of = |id: &str| Order { user: user.clone(), ..order(id, 1) };
    for id in ["a", "b"] {
        accepted(&one(&inventory, of(id)).await);
    }
    let refused = try_change(&inventory, "k", "s", r#"{"add":-2}"#).await.unwrap_err();
    assert_eq!(word(&refused), "1 are left");
    end_hold(&mut raw, "ann\ta").await;
    let made = change(&inventory, "k", r#"{"add":-2}"#).await;
    let stock = made.stock;
    assert_eq!((stock.stock, stock.lucky, stock.initial, stock.held), (0, 1, 1, 1));
    assert_eq!((stock.units.held, made.entry.position), (Some(1), 4));
    // a hold keeps its end when later holds get another length
    change(&inventory, "h", r#"{"hold_seconds":1}"#).await;
    let held = one(&inventory, of("c")).await;
    let is_kept = |ends_in| ends_in > Duration::from_secs(1);
    assert!(matches!(held, Outcome::AllHeld { ends_in, .. } if is_kept(ends_in)), "{held:?}");
    // a limit that is lowered takes no unit away
    let stock =
        change(&inventory, "l", r#"{"add":4,"per_user":1,"hold_seconds":86400}"#).await.stock;
    assert_eq!((stock.stock, stock.lucky, stock.version), (4, 1, 3));
    let limited = Outcome::LimitReached { is_per_user: true, limit: 1, has: 1 };
    assert_eq!(one(&inventory, of("d")).await, limited);
    change(&inventory, "m", r#"{"per_user":2}"#).await;
    let later = one(&inventory, of("d")).await;
    let renewed = accepted(&later);
    assert_eq!(renewed.hold_until.unwrap().micros() - renewed.time.micros(), 86_400_000_000);
}

/// Goal: a paused sale refuses new orders and nothing else, and holds end in their time. It resumes in the state that it had,
/// even if it had not started. A change can end a sale, and another one can open it again.
#[tokio::test]
async fn a_paused_sale_serves_its_orders() {
    let (inventory, mut raw) = fresh().await;
    let terms = Terms { hold_seconds: Some(60), ..Terms::default() };
    inventory.start(&ITEM, Some(token(1)), named("s", 9, terms)).await.unwrap();
    for id in ["a", "b", "c", "d"] {
        accepted(&one(&inventory, order(id, 1)).await);
    }
    let stock = change(&inventory, "pause", r#"{"paused":true}"#).await.stock;
    assert_eq!((stock.state, stock.paused, stock.terms.starts_at), (Phase::Paused, true, None));
    end_hold(&mut raw, "a").await;
    let ask = |id: &str, action| one(&inventory, Order { action, ..order(id, 1) });
    assert_eq!(ask("new", Action::Reserve).await, Outcome::Paused);
    assert_eq!(inventory.stock(&ITEM).await.unwrap().held, 3);
    assert!(matches!(ask("b", Action::Reserve).await, Outcome::Repeated(_)));
    for (id, action) in [("b", Action::Confirm), ("c", Action::Cancel), ("b", Action::Return)] {
        let changed = ask(id, action).await;
        assert!(matches!(changed, Outcome::Changed { .. }), "{changed:?}");
    }
    let found = inventory.look_up(&ITEM, &["new".to_owned()]).await.unwrap();
    assert_eq!(found.available.closed, Some(Outcome::Paused));
    change(&inventory, "resume", r#"{"paused":false}"#).await;
    accepted(&ask("new", Action::Reserve).await);

    let ended = change(&inventory, "end", r#"{"ends_at":"now"}"#).await;
    assert_eq!(ended.stock.state, Phase::Ended);
    assert_eq!(ended.stock.terms.ends_at, Some(ended.entry.time));
    let late = Outcome::SaleEnded { at: ended.entry.time };
    assert_eq!(ask("late", Action::Reserve).await, late);
    let again = change(&inventory, "again", r#"{"ends_at":"2100-01-01T00:00:00Z"}"#).await;
    assert_eq!(again.stock.state, Phase::Running);
    accepted(&ask("late", Action::Reserve).await);

    let start = "2090-01-01T00:00:00Z";
    inventory.start(&ITEM, Some(token(5)), named("s2", 9, times(Some(start), None))).await.unwrap();
    let both = r#"{"paused":true,"starts_at":"2091-01-01T00:00:00Z"}"#;
    for (key, sale, body, state, start) in [
        ("a", "s2", r#"{"paused":true}"#, Phase::Paused, "2090"),
        ("b", "s2:1", both, Phase::Paused, "2091"),
        ("c", "s2", r#"{"paused":false}"#, Phase::Scheduled, "2091"),
    ] {
        let stock = try_change(&inventory, key, sale, body).await.unwrap().stock;
        let starts_at = stock.terms.starts_at.unwrap().to_string();
        assert_eq!((stock.state, &starts_at[..4]), (state, start));
    }
    let now = try_change(&inventory, "d", "s2", r#"{"starts_at":"now"}"#).await.unwrap();
    assert_eq!(now.stock.state, Phase::Running);
    accepted(&ask("e", Action::Reserve).await);

    // a replaced sale shows its state
    try_change(&inventory, "e", "s2", r#"{"paused":true}"#).await.unwrap();
    inventory.start(&ITEM, Some(token(5)), named("s3", 1, Terms::default())).await.unwrap();
    let mut kept = inventory.sales(&ITEM).await.unwrap().kept;
    let last = kept.pop().unwrap();
    let terms = json!({ "starts_at": now.stock.terms.starts_at.unwrap() });
    let told = [&last["terms"], &last["paused"], &last["version"]];
    assert_eq!(told, [&terms, &true.into(), &5.into()]);
}

/// Goal: a batch that got lost is not carried out after a change: an order that was told *sold out* meanwhile takes nothing. The
/// change is part of the watermark.
#[tokio::test]
async fn a_change_makes_late_batches_stale() {
    let (inventory, mut raw) = fresh().await;
    inventory.start(&ITEM, Some(token(1)), named("s", 1, Terms::default())).await.unwrap();
    let batch =
        async |id: &str, under| reduce(&inventory, Some(token(under)), &[order(id, 1)]).await;
    accepted(&batch("first", 4).await.unwrap()[0]);
    assert_eq!(batch("late", 4).await.unwrap(), [Outcome::SoldOut { remaining: 0 }]);
    change(&inventory, "k", r#"{"add":1}"#).await;
    let late = batch("late", 4).await.unwrap_err();
    assert!(matches!(late, InventoryError::StaleToken { .. }), "{late}");
    accepted(&batch("next", 6).await.unwrap()[0]);

    // after a refused change, an earlier attempt is stale, too
    let refused = call("m", "s", r#"{"add":-9}"#);
    let told = inventory.change_sale(&ITEM, Some(token(7)), "8080", &refused).await.unwrap_err();
    assert_eq!(word(&told), "0 are left");
    let late = inventory.change_sale(&ITEM, Some(token(6)), "8080", &refused).await.unwrap_err();
    assert!(matches!(late, InventoryError::StaleToken { .. }), "{late}");

    let late = call("l", "s", r#"{"paused":true}"#);
    inventory.change_sale(&ITEM, Some(token(7)), "8080", &late).await.unwrap();
    raw.run::<()>("RPOP ledger").await;
    raw.run_with::<()>("HDEL changes", "\n\tl").await;
    let error = inventory.stock(&ITEM).await.unwrap_err();
    let InventoryError::RolledBack { what } = &error else { panic!("{error}") };
    assert_eq!(what, "change l is not in its ledger any more");
}

/// Goal: an event that a later version writes is passed on. A text that looks like an entry of this version and is none is
/// damage.
#[tokio::test]
async fn entries_of_later_versions_are_passed_on() {
    let (inventory, mut raw) = fresh().await;
    inventory.start(&ITEM, Some(token(1)), named("s", 1, Terms::default())).await.unwrap();
    let (head, time) = ("1\t2\t7\tcafe 3\tb#0000002a@c", "1800000000000000");
    for (entry, fields) in [
        (format!("\nraffled\t{head}\t{time}\tann\tx"), r#""order":"x","quantity":2,"user":"ann""#),
        (format!("\nmoved\t{head}\t{time}\t{{\"to\":\"tea\"}}"), r#""to":"tea""#),
        (format!("\nchanged\t{head}\t{time}\tx"), ""),
        (format!("\nconfirmed\t{head}\t{time}"), ""),
        (format!("\nraffled\t{head}\t{time}"), ""),
    ] {
        raw.run_with::<()>("RPUSH ledger", &entry).await;
        match inventory.ledger(&ITEM, 0, 1).await {
            Ok(page) => {
                assert!(matches!(page.entries[0], Entry::Other(_)));
                let shown = serde_json::to_string(&page.entries[0]).unwrap();
                assert!(!fields.is_empty() && shown.contains(fields), "{shown}");
                assert!(shown.contains(r#""holder":"c""#), "{shown}");
            }
            Err(error) => assert!(fields.is_empty(), "{error}"),
        }
        raw.run::<()>("DEL ledger").await;
    }
}
