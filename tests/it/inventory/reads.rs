//! The ledger, page by page.

use flash_sale::inventory::{Inventory, InventoryError, Order, User};

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

/// Goal: with the state come as many of the latest entries as are asked for, and the name of their ledger.
#[tokio::test]
async fn the_latest_entries_come_with_the_state() {
    let (inventory, _) = fresh().await;
    inventory.start(&ITEM, None, 100).await.unwrap();
    let batch: Vec<Order> = (1..=10).map(|i| order(&format!("o{i}"), 1)).collect();
    reduce(&inventory, Some(token(1)), &batch).await.unwrap();
    let all = inventory.ledger(&ITEM, 0, 10).await.unwrap();
    for (most, first) in [(0, 10), (4, 6), (100, 0)] {
        let latest = inventory.latest(&ITEM, most).await.unwrap();
        assert_eq!((latest.ledger, &latest.entries[..]), (all.name.clone(), &all.entries[first..]));
        assert_eq!((latest.stock.orders, latest.stock.stock), (10, 90));
    }
}
