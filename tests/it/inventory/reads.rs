//! The ledger, page by page.

use flash_sale::inventory::{Inventory, InventoryError, LedgerPosition, Order, SaleUpdate, User};

use super::{ITEM, accepted, fresh, order, reduce, token};

/// Goal: pages of any size add up to the orders in the order of acceptance, with their first answers.
#[tokio::test]
async fn the_ledger_is_read_page_by_page() {
    let (inventory, _) = fresh().await;
    inventory.start(&ITEM, None, 5000).await.unwrap();
    let mut answers = Vec::new();
    for chunk in 0..3 {
        let batch: Vec<Order> = (0..411).map(|i| order(&format!("{chunk}-{i}"), 2)).collect();
        let outcomes = reduce(&inventory, Some(token(chunk + 1)), &batch).await.unwrap();
        answers.extend(outcomes.iter().map(|outcome| accepted(outcome).clone()));
    }
    let mut read = Vec::new();
    loop {
        let page = inventory.ledger(&ITEM, read.len() as u64, 100).await.unwrap().entries;
        if page.is_empty() {
            break;
        }
        read.extend(page);
    }
    assert_eq!(read, answers);
    let all = inventory.ledger(&ITEM, 0, u32::MAX).await.unwrap().entries;
    assert_eq!(all, answers[..Inventory::MAX_PAGE as usize]);
    assert_eq!(inventory.ledger(&ITEM, 1230, 10).await.unwrap().entries, answers[1230..]);
    assert_eq!(inventory.ledger(&ITEM, 1233, 10).await.unwrap().entries, []);
    for after in [1234, i64::MAX as u64, u64::MAX] {
        let error = inventory.ledger(&ITEM, after, 10).await.unwrap_err();
        let InventoryError::SaleRefused { why, .. } = error else { panic!("{error}") };
        assert_eq!(why, "sale-replaced");
    }
    let found = inventory.order(&ITEM, &answers[700].order, &User::default()).await.unwrap();
    assert_eq!(found.1.as_ref(), Some(&answers[700]));
    assert_eq!(
        inventory.order(&ITEM, &order("nobody", 1).id, &User::default()).await.unwrap().1,
        None
    );
}

/// Goal: a poll returns all new orders, or an even part of them with the newest, and says whether the
/// ledger is still that of the cursor.
#[tokio::test]
async fn a_sale_is_followed_at_a_bounded_cost() {
    let (inventory, _) = fresh().await;
    inventory.start(&ITEM, None, 100).await.unwrap();
    let batch: Vec<Order> = (1..=10).map(|i| order(&format!("o{i}"), 1)).collect();
    reduce(&inventory, Some(token(1)), &batch).await.unwrap();
    let positions =
        |update: &SaleUpdate| update.entries.iter().map(|o| o.position).collect::<Vec<_>>();
    let first = inventory.poll_since(&ITEM, None, 4).await.unwrap();
    let at = |after: u64| LedgerPosition { of: Some(first.name.clone()), ..after.into() };
    assert_eq!((positions(&first), first.step), (vec![7, 8, 9, 10], 1));
    assert_eq!(first.stock, inventory.stock(&ITEM).await.unwrap());
    let rest = inventory.poll_since(&ITEM, Some(&at(6)), 4).await.unwrap();
    assert_eq!((positions(&rest), rest.step, rest.is_same_ledger), (vec![7, 8, 9, 10], 1, true));
    let thinned = inventory.poll_since(&ITEM, Some(&at(0)), 3).await.unwrap();
    assert_eq!((positions(&thinned), thinned.step), (vec![2, 6, 10], 4));
    let nothing = inventory.poll_since(&ITEM, Some(&at(10)), 3).await.unwrap();
    assert_eq!((positions(&nothing), nothing.is_same_ledger), (vec![], true));

    inventory.start(&ITEM, Some(token(2)), 100).await.unwrap();
    let batch: Vec<Order> = (1..=12).map(|i| order(&format!("p{i}"), 1)).collect();
    reduce(&inventory, Some(token(2)), &batch).await.unwrap();
    let other = inventory.poll_since(&ITEM, Some(&at(10)), 100).await.unwrap();
    assert_eq!((other.entries.len(), other.is_same_ledger), (12, false));
    let shorter = inventory.poll_since(&ITEM, Some(&at(50)), 100).await.unwrap();
    assert_eq!((shorter.entries.len(), shorter.is_same_ledger), (12, false));
}
