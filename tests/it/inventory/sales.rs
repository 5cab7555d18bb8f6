//! Starting a sale: a repeated, late or crossing start deletes nothing.

use flash_sale::inventory::{
    Inventory, InventoryError, LedgerPosition, NewSale, Refusal, Replaces, SaleId, Terms,
};

use super::{ITEM, fresh, sell, token};

/// A sale with a name, as the service starts it.
fn named(id: &str, units: u64, replaces: Replaces) -> NewSale {
    NewSale { id: id.parse().unwrap(), is_named: true, replaces, ..NewSale::from(units) }
}

fn any_of(ids: &[&str]) -> Replaces {
    Replaces::AnyOf(ids.iter().map(|id| id.parse().unwrap()).collect())
}

async fn refused(inventory: &Inventory, sale: NewSale) -> (Refusal, Option<String>) {
    match inventory.start(&ITEM, Some(token(9)), sale).await.unwrap_err() {
        InventoryError::SaleRefused { refusal, running } => (refusal, running),
        other => panic!("{other}"),
    }
}

/// Goal: the start of a sale that runs changes nothing and is answered as the first time; another one has to name the sale
/// that it replaces once that has orders; one that was replaced is not started again.
#[tokio::test]
async fn a_start_can_be_repeated() {
    use Replaces::{Any, WithoutOrders};
    let (inventory, mut raw) = fresh().await;
    let start = async |sale: NewSale| inventory.start(&ITEM, Some(token(9)), sale).await.unwrap();
    let first = start(named("first", 5, WithoutOrders)).await;
    assert!(!first.is_repeated);
    sell(&inventory, Some(token(9)), "a").await.unwrap();
    let again = start(named("first", 5, WithoutOrders)).await;
    assert_eq!((&again.stock, again.is_repeated), (&first.stock, true));
    // as another version may write the same terms
    raw.run_with::<()>("SET terms", r#"{"initial":5,"named":true,"id":"first"}"#).await;
    let dump = raw.dump().await;
    assert!(start(named("first", 5, WithoutOrders)).await.is_repeated);
    let running = |id: &str| Some(id.to_owned());
    let limited = Terms { per_order: Some(1), ..Terms::default() };
    for (sale, refusal) in [
        (named("first", 6, WithoutOrders), Refusal::Conflict),
        (NewSale { terms: limited, ..named("first", 5, Any) }, Refusal::Conflict),
        (named("second", 5, WithoutOrders), Refusal::Running),
        (NewSale { replaces: WithoutOrders, ..NewSale::from(5) }, Refusal::Running),
        (named("second", 5, any_of(&["other", "irst", "firs"])), Refusal::Mismatch),
    ] {
        assert_eq!(refused(&inventory, sale).await, (refusal, running("first")));
    }
    assert_eq!(raw.dump().await, dump);

    start(named("second", 7, any_of(&["other", "first"]))).await;
    sell(&inventory, Some(token(9)), "b").await.unwrap();
    start(named("second", 7, any_of(&["first"]))).await;
    for replaces in [WithoutOrders, Any, any_of(&["second"])] {
        let late = refused(&inventory, named("first", 5, replaces)).await;
        assert_eq!(late, (Refusal::Replaced, running("second")));
    }
    // without orders it gives way, and is remembered by its name
    start(named("third", 1, Any)).await;
    start(named("fourth", 1, WithoutOrders)).await;
    let late = refused(&inventory, named("third", 1, WithoutOrders)).await;
    assert_eq!(late, (Refusal::Replaced, running("fourth")));
}

/// Goal: the ledger of a sale that was replaced can be read until it is deleted by its name, and only there; a position is
/// never taken for one of another sale.
#[tokio::test]
async fn a_replaced_ledger_is_kept() {
    let (inventory, mut raw) = fresh().await;
    for (id, orders) in [("first", ["a", "b"]), ("second", ["c", "d"])] {
        let sale = named(id, 5, Replaces::Any);
        inventory.start(&ITEM, Some(token(9)), sale).await.unwrap();
        for order in orders {
            sell(&inventory, Some(token(9)), order).await.unwrap();
        }
    }
    let id = |id: &str| id.parse::<SaleId>().unwrap();
    let at = |sale: Option<&str>, of: Option<&str>, after| LedgerPosition {
        sale: sale.map(id),
        of: of.map(str::to_owned),
        after,
    };
    for (from, found) in [
        (at(None, None, 1), Ok(("second", "d"))),
        (at(None, Some("second"), 1), Ok(("second", "d"))),
        (at(Some("second"), None, 0), Ok(("second", "c"))),
        (at(Some("first"), Some("first"), 1), Ok(("first", "b"))),
        (at(None, Some("first"), 1), Err(Refusal::Replaced)),
        (at(Some("first"), Some("second"), 1), Err(Refusal::Replaced)),
        (at(None, None, 3), Err(Refusal::Replaced)),
        (at(Some("other"), None, 0), Err(Refusal::Unknown)),
    ] {
        let page = inventory.ledger(&ITEM, from.clone(), 10).await;
        match (page, found) {
            (Ok(page), Ok((sale, order))) => {
                assert_eq!((page.sale.as_str(), page.entries[0].order.as_str()), (sale, order));
            }
            (Err(InventoryError::SaleRefused { refusal, running }), Err(expected)) => {
                assert_eq!((refusal, running.as_deref()), (expected, Some("second")));
            }
            other => panic!("{from:?}: {other:?}"),
        }
    }
    let sales = inventory.sales(&ITEM).await.unwrap();
    let [kept] = &sales.kept[..] else { panic!("{sales:?}") };
    assert_eq!(
        (&kept["id"], &kept["stock"], &kept["lucky"]),
        (&"first".into(), &3.into(), &2.into())
    );
    assert_eq!(sales.running.unwrap().id.as_deref(), Some("second"));

    let error = inventory.forget(&ITEM, &id("second")).await.unwrap_err();
    assert!(error.to_string().contains("NotReplaced"), "{error}");
    inventory.forget(&ITEM, &id("first")).await.unwrap();
    assert!(inventory.forget(&ITEM, &id("first")).await.is_err(), "it is gone");
    let keys: Vec<String> = raw.run("KEYS *@*").await;
    assert!(keys.is_empty(), "{keys:?}");
    // a sale that nobody can name later, replaced by another such one, leaves nothing: as in a demo
    inventory.start(&ITEM, Some(token(9)), named("third", 1, Replaces::Any)).await.unwrap();
    inventory.start(&ITEM, Some(token(9)), 5).await.unwrap();
    sell(&inventory, Some(token(9)), "e").await.unwrap();
    inventory.start(&ITEM, Some(token(9)), 5).await.unwrap();
    assert_eq!(inventory.sales(&ITEM).await.unwrap().kept.len(), 2);
}

/// Goal: so many replaced sales are kept, and no more: the next start is refused, and loses nothing.
#[tokio::test]
async fn only_so_many_sales_are_kept() {
    let (inventory, mut raw) = fresh().await;
    inventory.start(&ITEM, Some(token(9)), named("last", 5, Replaces::Any)).await.unwrap();
    let fields: Vec<String> = (0..1000).map(|n| format!("sale-{n} {{}}")).collect();
    raw.run::<()>(&format!("HSET sales {}", fields.join(" "))).await;
    let refusal = refused(&inventory, named("next", 5, Replaces::Any)).await;
    assert_eq!(refusal, (Refusal::TooMany, Some("last".to_owned())));
}
