//! Goal: a key with foreign content is an error that names the key, and nothing is written.

use flash_sale::inventory::{InventoryError, NewSale, Order, Outcome, Terms, User};

use super::{ITEM, accepted, fresh, order, reduce, sell, token};

/// Goal: each kind of damage is refused, also to who reads the state, and not a byte changes. Method: a sale of three units with one sold.
#[tokio::test]
async fn damaged_keys_are_refused_and_nothing_is_written() {
    let (inventory, mut raw) = fresh().await;
    let damages: &[(&str, &[&str])] = &[
        ("stock", &["SET stock many"]),
        ("stock", &["SET stock -1"]),
        ("stock", &["SET stock 1.5"]),
        ("stock", &["SET stock 9007199254740992"]),
        ("stock", &["SET stock 9007199254740991"]), // with lucky it is too large
        ("stock", &["DEL stock", "RPUSH stock 3"]),
        ("lucky", &["SET lucky x"]),
        ("lucky", &["SET lucky -1"]),
        ("lucky", &["DEL lucky", "HSET lucky a 1"]),
        ("initial", &["SET initial x"]),
        ("initial", &["DEL initial", "SADD initial 3"]),
        ("orders", &["SET orders x"]),
        ("orders", &["DEL orders"]), // while the ledger is there
        ("ledger", &["SET ledger x"]),
        ("ledger", &["RPUSH ledger x"]),
        ("fence", &["SET fence x"]),
        ("fence", &["SET fence 12"]),
        ("fence", &["DEL fence", "RPUSH fence 12"]),
        ("sale", &["SET sale x"]),
        ("sale", &["DEL sale", "RPUSH sale x"]),
        ("terms", &["SET terms x"]),
        ("terms", &["DEL terms", "RPUSH terms x"]),
        ("changes", &["SET changes x"]),
        ("changes", &["HSET changes sold x"]),
        ("holds", &["DEL holds", "SET holds x"]),
        ("buyers", &["DEL buyers", "SET buyers x"]),
    ];
    for (key, damage) in damages {
        raw.run::<()>("FLUSHDB").await;
        let terms = Terms { hold_seconds: Some(60), per_user: Some(5), ..Terms::default() };
        let sale = NewSale { terms, ..NewSale::from(3) };
        inventory.start(&ITEM, Some(token(1)), sale).await.unwrap();
        let by = |id| Order { user: User::new("a").unwrap(), ..order(id, 1) };
        reduce(&inventory, Some(token(1)), &[by("sold")]).await.unwrap();
        for command in *damage {
            raw.run::<redis::Value>(command).await;
        }
        let before = raw.dump().await;
        let orders = [by("new"), by("sold")];
        let error = reduce(&inventory, Some(token(2)), &orders).await.unwrap_err();
        let InventoryError::Damaged { what } = &error else { panic!("{damage:?}: {error}") };
        assert!(what.contains(key), "{damage:?}: {what}");
        assert!(error.nothing_written() && !error.is_retryable());
        // what the state is made of
        if !["orders", "ledger", "changes", "buyers"].contains(key) {
            let error = inventory.stock(&ITEM).await.unwrap_err();
            assert!(matches!(error, InventoryError::Damaged { .. }), "{damage:?}: {error}");
        }
        assert_eq!(raw.dump().await, before, "{damage:?}");
    }
}

/// Goal: a damaged record concerns its own order: the others of the batch are sold.
#[tokio::test]
async fn a_damaged_record_does_not_spoil_its_batch() {
    let (inventory, mut raw) = fresh().await;
    inventory.start(&ITEM, Some(token(1)), 9).await.unwrap();
    let first = [order("bad", 1), order("good", 1)];
    reduce(&inventory, Some(token(1)), &first).await.unwrap();
    // of the latest order that was acknowledged as well: damage is no roll-back
    let without_token = "2\t1\t1\t8\tnone\t8080\t1000000\t\t";
    for (bad, record) in [("bad", "nonsense"), ("good", "nonsense"), ("bad", without_token)] {
        raw.run_with::<()>(&format!("HSET orders {bad}"), record).await;
        let batch = [order("before", 1), order(bad, 1), order("behind", 1)];
        let outcomes = reduce(&inventory, Some(token(2)), &batch).await.unwrap();
        assert_eq!((accepted(&outcomes[0]).position, accepted(&outcomes[2]).position), (3, 4));
        let Outcome::Damaged { what } = &outcomes[1] else { panic!("{outcomes:?}") };
        assert!(what.contains(bad), "{what}");
    }
    assert_eq!(inventory.stock(&ITEM).await.unwrap().lucky, 4);
}

/// Goal: a new sale repairs any damage but that of the fence.
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
