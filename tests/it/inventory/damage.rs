//! Goal: a key that is missing, or has foreign content, is an error that names the key, and nothing is written.

use flash_sale::inventory::{
    Action, Event, Inventory, InventoryError, NewSale, Order, Outcome, Terms, Timestamp, User,
};
use serde_json::{Value, json};
use testkit::shared::fresh_database;

use super::{ITEM, Raw, accepted, connect, fresh, order, reduce, sell, token};

/// Values that no number of a sale has: no number, below zero, not whole, too large to be exact, or a number only to `strtod`.
const NONSENSE: [&str; 9] = ["", "x", "-1", "1.5", "nan", "inf", "1e3", "0x10", "9007199254740992"];

fn by(user: &str, id: &str, action: Action) -> Order {
    Order { user: User::new(user).unwrap(), action, ..order(id, 1) }
}

/// A database, an instance that starts sales in it, and an instance without a watermark, as after a start with a partial copy of
/// the data.
async fn instances() -> (Inventory, Inventory, Raw) {
    let url = fresh_database().await;
    (connect(&url).await, connect(&url).await, Raw::connect(&url).await)
}

/// Starts a sale of nine units that uses every key of a sale: `a` holds a unit, and `b` has paid for one.
async fn start_with_everything(starter: &Inventory, raw: &mut Raw) {
    raw.run::<()>("FLUSHDB").await;
    let at = |text: &str| Some(text.parse().unwrap());
    let terms = Terms {
        per_order: Some(5),
        per_user: Some(5),
        hold_seconds: Some(600),
        starts_at: at("2020-01-01T00:00:00Z"),
        ends_at: at("2100-01-01T00:00:00Z"),
    };
    let sale = NewSale { terms, ..NewSale::from(9) };
    starter.start(&ITEM, Some(token(1)), sale).await.unwrap();
    let orders = [
        by("a", "held", Action::Reserve),
        by("b", "paid", Action::Reserve),
        by("b", "paid", Action::Confirm),
    ];
    reduce(starter, Some(token(1)), &orders).await.unwrap();
}

/// Ways to damage the sale as a whole: the key, some commands, and a last one with its last argument.
fn damages(terms: &Value) -> Vec<(&'static str, Vec<String>, String, String)> {
    let mut all = Vec::new();
    let mut add = |key, before: &[String], command: String, last: &str| {
        all.push((key, before.to_vec(), command, last.to_owned()));
    };
    for key in ["stock", "lucky", "initial", "sale", "terms", "fence", "doubt"] {
        add(key, &[format!("DEL {key}")], format!("RPUSH {key}"), "3");
    }
    for key in ["orders", "ledger", "changes", "holds", "buyers"] {
        add(key, &[], format!("SET {key}"), "x");
    }
    // a missing stock means no sale, and a missing fence is the repair of a damaged one
    for key in
        ["lucky", "initial", "sale", "terms", "orders", "ledger", "changes", "holds", "buyers"]
    {
        add(key, &[], "DEL".to_owned(), key);
    }
    add("orders", &[], "UNLINK ledger changes".to_owned(), "orders");
    for key in ["stock", "lucky", "initial", "sale", "terms", "fence"] {
        for value in NONSENSE {
            add(key, &[], format!("SET {key}"), value);
        }
    }
    add("stock", &[], "SET stock".to_owned(), "9007199254740991"); // with lucky it is too large
    for value in ["started -1", "started nan", "started 9007199254740992", "started 1e3"] {
        add("sale", &[], "SET sale".to_owned(), value);
    }
    for value in ["12", "cafe -1", "cafe 0", "cafe nan", "cafe 9223372036854775808"] {
        add("fence", &[], "SET fence".to_owned(), value);
    }
    add("ledger", &[], "RPUSH ledger".to_owned(), "x");
    add("changes", &[], "HSET changes sold".to_owned(), "x");
    let values = [
        json!(null),
        json!({}),
        json!([1]),
        json!(""),
        json!("1"),
        json!(-1),
        json!(1.5),
        json!(1e300),
        json!(253_402_300_800_000_000_u64),
    ];
    for field in terms.as_object().unwrap().keys() {
        // a time that cannot be shown does not fit either
        let fits = |value: &Value| match &**field {
            "id" => *value == json!("1"),
            "opens" | "closes" => *value == json!(253_402_300_800_000_000_u64),
            _ => false,
        };
        let is_optional = field.starts_with("per_") || field == "hold_seconds";
        let values = values.iter().filter(|value| !fits(value)).cloned().map(Some);
        for value in values.chain((!is_optional).then_some(None)) {
            let mut terms = terms.clone();
            match value {
                Some(value) => terms[field] = value,
                None => drop(terms.as_object_mut().unwrap().remove(field)),
            }
            add("terms", &[], "SET terms".to_owned(), &terms.to_string());
        }
    }
    all
}

/// Goal: if a key of a started sale, or a field of its terms, is missing or damaged, the first order fails and the instance is
/// not ready, even without a watermark of the sale; and not a byte changes.
#[tokio::test]
async fn damaged_keys_are_refused_and_nothing_is_written() {
    let (starter, inventory, mut raw) = instances().await;
    start_with_everything(&starter, &mut raw).await;
    let terms: String = raw.run("GET terms").await;
    for (key, before, command, last) in damages(&serde_json::from_str(&terms).unwrap()) {
        start_with_everything(&starter, &mut raw).await;
        for command in before {
            raw.run::<redis::Value>(&command).await;
        }
        raw.run_with::<redis::Value>(&command, &last).await;
        let (before, case) = (raw.dump().await, format!("{command} {last:?}"));
        let orders = [by("a", "new", Action::Reserve), by("a", "held", Action::Confirm)];
        let error = reduce(&inventory, Some(token(2)), &orders).await.expect_err(&case);
        let InventoryError::Damaged { what } = &error else { panic!("{case}: {error}") };
        assert!(what.contains(key), "{case}: {what}");
        assert!(error.nothing_written() && !error.is_retryable());
        let (_, error) = inventory.check(Some(token(2))).await.expect_err(&case);
        assert!(matches!(error, InventoryError::Damaged { .. }), "{case}: {error}");
        // the parts of the state
        if ["stock", "lucky", "initial", "terms", "fence", "doubt"].contains(&key) {
            let error = inventory.stock(&ITEM).await.expect_err(&case);
            assert!(matches!(error, InventoryError::Damaged { .. }), "{case}: {error}");
        }
        assert_eq!(raw.dump().await, before, "{case}");
    }
}

/// Goal: a complete sale does not count as damaged: before its first order, when nothing is held any more, and when another
/// version wrote fields of its own.
#[tokio::test]
async fn what_a_sale_may_lack_is_no_damage() {
    let (inventory, stranger, mut raw) = instances().await;
    start_with_everything(&inventory, &mut raw).await;
    let cancel = [by("a", "held", Action::Cancel)];
    reduce(&inventory, Some(token(2)), &cancel).await.unwrap();
    let terms: String = raw.run("GET terms").await;
    let newer = terms.replacen('{', r#"{"added":[{"by":null}],"#, 1);
    raw.run_with::<()>("SET terms", &newer).await;
    // an operator deletes a damaged fence
    raw.run::<()>("DEL fence holds doubt sales").await;
    stranger.check(Some(token(2))).await.unwrap();
    let outcome = reduce(&stranger, Some(token(2)), &[by("a", "new", Action::Reserve)]).await;
    accepted(&outcome.unwrap()[0]);
    inventory.start(&ITEM, Some(token(3)), NewSale::from(3)).await.unwrap();
    stranger.check(Some(token(3))).await.unwrap();
}

/// Goal: a sale of an earlier version that ends at the last moment of the year 9999, the "never" of .NET and Python, sells on. A
/// start with that end gets a refusal that says so. Lua cannot represent these microseconds, and rounds them to the next year.
#[tokio::test]
async fn an_end_that_never_comes_is_no_damage() {
    let (inventory, stranger, mut raw) = instances().await;
    start_with_everything(&inventory, &mut raw).await;
    let never = "9999-12-31T23:59:59.999999Z";
    let mut terms = json!({"id": "old", "named": true, "initial": 9});
    for (micros, text) in [("closes", "ends_at"), ("opens", "starts_at")] {
        terms[micros] = json!(253_402_300_799_999_999_u64);
        terms[text] = json!(never);
        raw.run_with::<()>("SET terms", &terms.to_string()).await;
        stranger.check(Some(token(2))).await.unwrap();
        let stock = stranger.stock(&ITEM).await.unwrap();
        assert_eq!(stock.terms.ends_at.unwrap().to_string(), never);
        let outcome = reduce(&stranger, Some(token(2)), &[by("a", text, Action::Reserve)]).await;
        match &outcome.unwrap()[0] {
            Outcome::NotStarted { at, .. } if micros == "opens" => {
                assert_eq!(at.to_string(), never);
            }
            outcome => assert!(micros == "closes" && accepted(outcome).position > 0),
        }
    }
}

/// Goal: a damaged entry concerns its own order or user: the other orders of the batch are sold, also when its hold is due. The
/// damaged entry stays as it is.
#[tokio::test]
async fn a_damaged_entry_does_not_spoil_its_batch() {
    let (starter, inventory, mut raw) = instances().await;
    let at = "1000000\t1000000\ta"; // time, end of the hold, user
    let mut records = vec!["nonsense".to_owned(), String::new()];
    records.push("2\t1\t1\t8\tnone\t8080\t1000000\t\ta".to_owned()); // no token, no hold
    for value in NONSENSE {
        records.push(format!("2\t1\t{value}\t8\tcafe 1\t8080\t{at}"));
        records.push(format!("2\t{value}\t1\t8\tcafe 1\t8080\t{at}"));
        if !value.is_empty() {
            records.push(format!("2\t1\t1\t8\tcafe 1\t8080\t1\t{value}\ta"));
        }
    }
    for record in records {
        start_with_everything(&starter, &mut raw).await;
        raw.run_with::<()>("HSET orders a\theld", &record).await;
        raw.run_with::<()>("ZADD holds 1", "a\theld").await; // its time is over
        let batch = [
            by("c", "before", Action::Reserve),
            by("a", "held", Action::Confirm),
            by("a", "held", Action::Reserve),
            by("c", "behind", Action::Reserve),
        ];
        for _ in 0..2 {
            let outcomes = reduce(&inventory, Some(token(2)), &batch).await.expect(&record);
            let of = |n: usize| accepted(&outcomes[n]).remaining;
            assert_eq!((of(0), of(3)), (6, 5), "{record:?}: {outcomes:?}");
            for outcome in &outcomes[1..=2] {
                let Outcome::Damaged { what } = outcome else { panic!("{record:?}: {outcome:?}") };
                assert!(what.contains("held"), "{record:?}: {what}");
            }
        }
        let left: String = raw.run_with("HGET orders", "a\theld").await;
        assert_eq!(left, record);
    }
    for count in NONSENSE {
        start_with_everything(&starter, &mut raw).await;
        raw.run_with::<()>("HSET buyers a", count).await;
        let batch = [
            by("a", "new", Action::Reserve),
            by("b", "new", Action::Reserve),
            by("a", "held", Action::Reserve),
            by("a", "held", Action::Cancel),
        ];
        let outcomes = reduce(&inventory, Some(token(2)), &batch).await.expect(count);
        let Outcome::Damaged { what } = &outcomes[0] else { panic!("{count:?}: {outcomes:?}") };
        assert!(what.contains("buyers"), "{count:?}: {what}");
        assert_eq!(accepted(&outcomes[1]).remaining, 6, "{count:?}");
        accepted(&outcomes[2]);
        assert!(matches!(outcomes[3], Outcome::Changed { .. }), "{count:?}: {outcomes:?}");
        assert_eq!(raw.run::<String>("HGET buyers a").await, count);
    }
}

/// Goal: the record of an order decides when its hold ends: a damaged end in the set of holds gives no unit back early, and no
/// unit of a paid order at all. The set is repaired.
#[tokio::test]
async fn a_damaged_end_of_a_hold_gives_nothing_back() {
    let (starter, inventory, mut raw) = instances().await;
    for score in ["-1", "-inf", "0"] {
        start_with_everything(&starter, &mut raw).await;
        let before: f64 = raw.run_with("ZSCORE holds", "a\theld").await;
        for key in ["a\theld", "b\tpaid", "nobody"] {
            raw.run_with::<()>(&format!("ZADD holds {score}"), key).await;
        }
        reduce(&inventory, Some(token(2)), &[by("c", "new", Action::Expire)]).await.unwrap();
        let after: f64 = raw.run_with("ZSCORE holds", "a\theld").await;
        let stock = inventory.stock(&ITEM).await.unwrap();
        assert_eq!((stock.stock, stock.held, after), (7, 1, before), "{score}");
    }
    // if the end in the set never comes, the next call about the order ends its hold
    start_with_everything(&starter, &mut raw).await;
    let record: String = raw.run_with("HGET orders", "a\theld").await;
    let mut fields: Vec<&str> = record.split('\t').collect();
    fields[7] = "1000000";
    raw.run_with::<()>("HSET orders a\theld", &fields.join("\t")).await;
    raw.run_with::<()>("ZADD holds inf", "a\theld").await;
    let outcomes = reduce(&inventory, Some(token(2)), &[by("a", "held", Action::Confirm)]).await;
    let time = Timestamp::new(1_000_000).unwrap();
    assert_eq!(outcomes.unwrap(), [Outcome::Over { event: Event::Expired, time }]);
}

/// Goal: a new sale repairs any damage except a damaged fence.
#[tokio::test]
async fn a_fresh_start_repairs_everything_but_the_fence() {
    let (inventory, mut raw) = fresh().await;
    for key in [
        "stock", "lucky", "initial", "orders", "ledger", "sale", "terms", "changes", "holds",
        "buyers",
    ] {
        raw.run::<()>(&format!("SADD {key} x")).await;
    }
    inventory.start(&ITEM, Some(token(1)), 3).await.unwrap();
    sell(&inventory, Some(token(1)), "a").await.unwrap();
    for (command, value) in [
        ("SET fence", "x"),
        ("SET fence", "cafe 9223372036854775808"), // more than a revision can be
        ("LPUSH fence", "x"),
    ] {
        raw.run::<()>("DEL fence").await;
        raw.run_with::<()>(command, value).await;
        let before = raw.dump().await;
        for token in [None, Some(token(2))] {
            let error = inventory.start(&ITEM, token, 3).await.unwrap_err();
            assert!(matches!(error, InventoryError::Damaged { .. }), "{error}");
        }
        assert!(inventory.recover_cluster(&ITEM, token(2)).await.is_err());
        assert_eq!(raw.dump().await, before);
    }
}
