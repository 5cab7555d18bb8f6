//! The ledger, page by page.

use flash_sale::inventory::{Entry, Inventory, InventoryError, Order};

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
        read.extend(page.into_iter().filter_map(Entry::order));
    }
    assert_eq!(read, answers);
    let all = inventory.ledger(&ITEM, 0, u32::MAX).await.unwrap().entries;
    let all: Vec<_> = all.into_iter().filter_map(Entry::order).collect();
    assert_eq!(all, answers[..Inventory::MAX_PAGE as usize]);
    for after in [1234, i64::MAX as u64, u64::MAX] {
        let error = inventory.ledger(&ITEM, after, 10).await.unwrap_err();
        let InventoryError::SaleRefused { why, .. } = error else { panic!("{error}") };
        assert_eq!(why, "sale-replaced");
    }
}
