//! The start of a sale: a repeated, late or crossing start deletes nothing.

use flash_sale::inventory::{
    Inventory, InventoryError, LedgerPosition, NewSale, Replaces, SaleId, Terms,
};

use super::{ITEM, Raw, fresh, sell, token};

/// A named sale, as the service starts it.
fn named(id: &str, units: u64, replaces: Replaces) -> NewSale {
    NewSale { id: id.parse().unwrap(), is_named: true, replaces, ..NewSale::from(units) }
}

async fn refused(inventory: &Inventory, sale: NewSale) -> (&'static str, Option<String>) {
    match inventory.start(&ITEM, Some(token(9)), sale).await.unwrap_err() {
        InventoryError::SaleRefused { why, running } => (why, running),
        other => panic!("{other}"),
    }
}

/// Goal: a start that is repeated or refused changes nothing. Ids are compared as a whole. A replaced sale does not start
/// again, even if it had no orders.
#[tokio::test]
async fn a_start_can_be_repeated() {
    use Replaces::{Any, WithoutOrders};
    let (inventory, mut raw) = fresh().await;
    let start = async |sale: NewSale| inventory.start(&ITEM, Some(token(9)), sale).await.unwrap();
    let first = start(named("first", 5, WithoutOrders)).await;
    sell(&inventory, Some(token(9)), "a").await.unwrap();
    // another version may write the same terms in this form
    raw.run_with::<()>("SET terms", r#"{"initial":5,"named":true,"id":"first"}"#).await;
    let dump = raw.dump().await;
    let again = start(named("first", 5, WithoutOrders)).await;
    assert_eq!((&again.stock, again.is_repeated), (&first.stock, true));
    let running = |id: &str| Some(id.to_owned());
    let limited = Terms { per_order: Some(1), ..Terms::default() };
    let ids = ["other", "irst", "firs"].map(|id| id.parse().unwrap());
    for (sale, why) in [
        (NewSale { terms: limited, ..named("first", 5, Any) }, "sale-conflict"),
        (NewSale { replaces: WithoutOrders, ..NewSale::from(5) }, "sale-running"),
        (named("second", 5, Replaces::AnyOf(ids.into())), "sale-mismatch"),
    ] {
        assert_eq!(refused(&inventory, sale).await, (why, running("first")));
    }
    assert_eq!(raw.dump().await, dump);
    start(named("second", 1, Any)).await;
    start(named("third", 1, WithoutOrders)).await;
    for id in ["first", "second"] {
        let late = refused(&inventory, named(id, 1, Any)).await;
        assert_eq!(late, ("sale-replaced", running("third")));
    }
}

/// Goal: a sale whose end is in the past, by Redis' clock, is refused. The start of a sale that has ended since then gets its
/// first answer again.
#[tokio::test]
async fn a_sale_does_not_start_after_its_end() {
    let (inventory, mut raw) = fresh().await;
    let ending = |id, at: &str| {
        let ends_at = Some(at.parse().unwrap());
        let terms = Terms { ends_at, ..Terms::default() };
        NewSale { terms, ..named(id, 5, Replaces::Any) }
    };
    let late = ending("late", "2020-01-01T00:00:00Z");
    assert_eq!(refused(&inventory, late).await, ("already-ended", None));
    inventory.start(&ITEM, Some(token(9)), ending("first", "2100-01-01T00:00:00Z")).await.unwrap();
    // the end of the sale passes
    let terms: String = raw.run("GET terms").await;
    let terms = terms.replace("4102444800000000", "1577836800000000").replace("2100", "2020");
    raw.run_with::<()>("SET terms", &terms).await;
    let repeated = ending("first", "2020-01-01T00:00:00Z");
    assert!(inventory.start(&ITEM, Some(token(9)), repeated).await.unwrap().is_repeated);
    let late = ending("late", "2020-01-01T00:00:00Z");
    assert_eq!(refused(&inventory, late).await, ("already-ended", Some("first".to_owned())));
}

/// Goal: a replaced sale is kept with its numbers and its ledger, and can be deleted completely. A sale without a name, as in a
/// demo, leaves nothing when another one replaces it.
#[tokio::test]
async fn a_replaced_sale_is_kept() {
    let (inventory, mut raw) = fresh().await;
    let start = async |sale: NewSale| inventory.start(&ITEM, Some(token(9)), sale).await.unwrap();
    for id in ["first", "second"] {
        start(named(id, 5, Replaces::Any)).await;
        sell(&inventory, Some(token(9)), id).await.unwrap();
    }
    let first: SaleId = "first".parse().unwrap();
    for (of, is_found) in [("first", true), ("second", false)] {
        let (sale, of) = (Some(first.clone()), Some(of.to_owned()));
        let page = inventory.ledger(&ITEM, LedgerPosition { sale, of, after: 0 }, 9).await;
        let order = page.ok().and_then(|page| page.entries[0].clone().order());
        assert_eq!(order.is_some_and(|order| order.order.as_str() == "first"), is_found);
    }
    let sales = inventory.sales(&ITEM).await.unwrap();
    let [kept] = &sales.kept[..] else { panic!("{sales:?}") };
    let numbers = ["id", "stock", "lucky"].map(|name| kept[name].to_string());
    assert_eq!(numbers, ["\"first\"", "4", "1"]);
    inventory.forget(&ITEM, &first).await.unwrap();
    let keys: Vec<String> = raw.run("KEYS *@*").await;
    assert!(keys.is_empty(), "{keys:?}");
    // its start, repeated late, replaces nothing
    let late = refused(&inventory, named("first", 5, Replaces::Any)).await;
    assert_eq!(late, ("sale-replaced", Some("second".to_owned())));
    assert!(inventory.sales(&ITEM).await.unwrap().kept.is_empty());
    let of = LedgerPosition { sale: Some(first.clone()), ..LedgerPosition::default() };
    for error in [
        inventory.forget(&ITEM, &first).await.unwrap_err(),
        inventory.ledger(&ITEM, of, 9).await.unwrap_err(),
    ] {
        let is_unknown = matches!(error, InventoryError::SaleRefused { why: "unknown-sale", .. });
        assert!(is_unknown, "{error}");
    }
    // an older copy of the data is noticed even after one of its sales was deleted
    let older: String = raw.run("GET sale").await;
    start(named("third", 5, Replaces::Any)).await;
    let newer: String = raw.run("GET sale").await;
    raw.run_with::<()>("SET sale", &older).await;
    inventory.forget(&ITEM, &"second".parse().unwrap()).await.unwrap();
    let error = inventory.stock(&ITEM).await.unwrap_err();
    assert!(matches!(error, InventoryError::RolledBack { .. }), "{error}");
    raw.run_with::<()>("SET sale", &newer).await;
    raw.run::<()>("DEL doubt").await;

    start(NewSale { replaces: Replaces::Any, ..NewSale::from(5) }).await;
    sell(&inventory, Some(token(9)), "e").await.unwrap();
    start(NewSale::from(5)).await;
    assert_eq!(inventory.sales(&ITEM).await.unwrap().kept.len(), 1);
}

/// Goal: the number of kept sales is limited: beyond the limit, the next start is refused, and loses nothing. Deleted sales do
/// not count, and the earliest deleted sale is forgotten.
#[tokio::test]
async fn only_so_many_sales_are_kept() {
    let (inventory, mut raw) = fresh().await;
    inventory.start(&ITEM, Some(token(9)), named("last", 5, Replaces::Any)).await.unwrap();
    let fields: Vec<String> = (0..1000).map(|n| format!("sale-{n} {{}}")).collect();
    raw.run::<()>(&format!("HSET sales {}", fields.join(" "))).await;
    let refusal = refused(&inventory, named("next", 5, Replaces::Any)).await;
    assert_eq!(refusal, ("too-many-sales", Some("last".to_owned())));
    let id: SaleId = "sale-0".parse().unwrap();
    inventory.forget(&ITEM, &id).await.unwrap();
    for n in (0..9_999).step_by(1000) {
        let deleted = (n..n + 1000).filter(|n| *n < 9_999).map(|n| {
            format!(r#"old-{n} {{"id":"old-{n}","began":1,"ended":2,"deleted":{}}}"#, n + 3)
        });
        raw.run::<()>(&format!("HSET sales {}", deleted.collect::<Vec<_>>().join(" "))).await;
    }
    inventory.forget(&ITEM, &"sale-1".parse().unwrap()).await.unwrap();
    let entries =
        async |raw: &mut Raw, id: &str| raw.run::<bool>(&format!("HEXISTS sales {id}")).await;
    for (id, is_there) in [("old-0", false), ("old-1", true), ("sale-0", true), ("sale-1", true)] {
        assert_eq!(entries(&mut raw, id).await, is_there, "{id}");
    }
    inventory.start(&ITEM, Some(token(9)), named("next", 5, Replaces::Any)).await.unwrap();
}
