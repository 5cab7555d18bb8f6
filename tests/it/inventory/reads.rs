//! The ledger, page by page.

use flash_sale::inventory::{Inventory, Item, Order};

use super::{accepted, connect, fresh_database, order, token};

/// Pages of any size, put together, are the orders in the order of acceptance, with what was
/// answered then.
#[tokio::test]
async fn the_ledger_is_read_page_by_page() {
    let inventory = connect(&fresh_database().await).await;
    let item = Item::DEFAULT;
    inventory.start(&item, None, 5000).await.unwrap();
    let mut answers = Vec::new();
    for chunk in 0..3 {
        let batch: Vec<Order> = (0..411).map(|i| order(&format!("{chunk}-{i}"), 2)).collect();
        let outcomes =
            inventory.reduce(&item, Some(token(chunk + 1)), "8080", &batch).await.unwrap();
        answers.extend(outcomes.iter().map(|outcome| accepted(outcome).clone()));
    }
    let mut read = Vec::new();
    loop {
        let page = inventory.ledger(&item, read.len() as u64, 100).await.unwrap();
        if page.is_empty() {
            break;
        }
        read.extend(page);
    }
    assert_eq!(read, answers);
    let all = inventory.ledger(&item, 0, u32::MAX).await.unwrap();
    assert_eq!(all, answers[..Inventory::MAX_PAGE as usize]);
    assert_eq!(inventory.ledger(&item, 1230, 10).await.unwrap(), answers[1230..]);
    assert_eq!(inventory.ledger(&item, 5, 0).await.unwrap(), []);
    for after in [1233, i64::MAX as u64, u64::MAX] {
        assert_eq!(inventory.ledger(&item, after, 10).await.unwrap(), []);
    }
    let found = inventory.order(&item, &answers[700].order).await.unwrap();
    assert_eq!(found.as_ref(), Some(&answers[700]));
    assert_eq!(inventory.order(&item, &order("nobody", 1).id).await.unwrap(), None);
}
