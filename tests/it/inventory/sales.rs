//! Starting a sale: a repeated, late or crossing start deletes nothing.

use flash_sale::inventory::{
    Inventory, InventoryError, LedgerPosition, NewSale, Replaces, SaleId, Terms,
};

use super::{ITEM, fresh, sell, token};

/// A sale with a name, as the service starts it.
fn named(id: &str, units: u64, replaces: Replaces) -> NewSale {
    NewSale { id: id.parse().unwrap(), is_named: true, replaces, ..NewSale::from(units) }
}

async fn refused(inventory: &Inventory, sale: NewSale) -> (&'static str, Option<String>) {
    match inventory.start(&ITEM, Some(token(9)), sale).await.unwrap_err() {
        InventoryError::SaleRefused { why, running } => (why, running),
        other => panic!("{other}"),
    }
}

/// Goal: a start that is repeated or refused changes nothing; names are compared as a whole. A sale that was replaced is not
/// started again, also if it had no orders.
#[tokio::test]
async fn a_start_can_be_repeated() {
    use Replaces::{Any, WithoutOrders};
    let (inventory, mut raw) = fresh().await;
    let start = async |sale: NewSale| inventory.start(&ITEM, Some(token(9)), sale).await.unwrap();
    let first = start(named("first", 5, WithoutOrders)).await;
    sell(&inventory, Some(token(9)), "a").await.unwrap();
    // as another version may write the same terms
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

/// Goal: a sale that was replaced is kept with its numbers and its ledger, and deleted without a trace. One that nobody can
/// name leaves nothing when another such one replaces it, as in a demo.
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
        assert_eq!(page.is_ok_and(|page| page.entries[0].order.as_str() == "first"), is_found);
    }
    let sales = inventory.sales(&ITEM).await.unwrap();
    let [kept] = &sales.kept[..] else { panic!("{sales:?}") };
    let numbers = ["id", "stock", "lucky"].map(|name| kept[name].to_string());
    assert_eq!(numbers, ["\"first\"", "4", "1"]);
    inventory.forget(&ITEM, &first).await.unwrap();
    let keys: Vec<String> = raw.run("KEYS *@*").await;
    assert!(keys.is_empty(), "{keys:?}");
    start(NewSale { replaces: Replaces::Any, ..NewSale::from(5) }).await;
    sell(&inventory, Some(token(9)), "e").await.unwrap();
    start(NewSale::from(5)).await;
    assert_eq!(inventory.sales(&ITEM).await.unwrap().kept.len(), 1);
}

/// Goal: so many replaced sales are kept, and no more: the next start is refused, and loses nothing.
#[tokio::test]
async fn only_so_many_sales_are_kept() {
    let (inventory, mut raw) = fresh().await;
    inventory.start(&ITEM, Some(token(9)), named("last", 5, Replaces::Any)).await.unwrap();
    let fields: Vec<String> = (0..1000).map(|n| format!("sale-{n} {{}}")).collect();
    raw.run::<()>(&format!("HSET sales {}", fields.join(" "))).await;
    let refusal = refused(&inventory, named("next", 5, Replaces::Any)).await;
    assert_eq!(refusal, ("too-many-sales", Some("last".to_owned())));
}
