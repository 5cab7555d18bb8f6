//! The fence: a stale token writes nothing.

use flash_sale::inventory::InventoryError;

use super::{ITEM, accepted, fresh, order, reduce, sell, token};

/// Goal: a batch and a start under a smaller token are refused with the fence, and nothing is written. The same token again is
/// accepted.
#[tokio::test]
async fn a_stale_token_is_refused() {
    let (inventory, mut raw) = fresh().await;
    inventory.start(&ITEM, Some(token(9)), 10).await.unwrap();
    // 10 is larger than 9, although its text sorts before
    sell(&inventory, Some(token(10)), "a").await.unwrap();
    let before = raw.dump().await;
    let orders = [order("a", 1), order("b", 1)];
    let refused = [
        reduce(&inventory, Some(token(9)), &orders).await.map(drop),
        inventory.start(&ITEM, Some(token(9)), 500).await.map(drop),
        inventory.recover_cluster(&ITEM, token(9)).await.map(drop),
    ];
    for result in refused {
        let error = result.unwrap_err();
        assert!(error.nothing_written() && !error.is_retryable());
        let InventoryError::StaleToken { fence, .. } = error else { panic!("{error}") };
        assert_eq!(fence, token(10));
    }
    assert_eq!(raw.dump().await, before);
    sell(&inventory, Some(token(10)), "b").await.unwrap();
}

/// Goal: revisions are compared exactly, even those that a double cannot represent.
#[tokio::test]
async fn revisions_are_compared_exactly() {
    let (inventory, _) = fresh().await;
    inventory.start(&ITEM, Some(token(i64::MAX - 1)), 10).await.unwrap();
    let sell = async |revision, id| sell(&inventory, Some(token(revision)), id).await;
    assert!(matches!(sell(i64::MAX - 2, "a").await, Err(InventoryError::StaleToken { .. })));
    sell(i64::MAX, "a").await.unwrap();
    assert!(matches!(sell(i64::MAX - 1, "b").await, Err(InventoryError::StaleToken { .. })));
    assert!(matches!(sell(0, "b").await.unwrap_err(), InventoryError::InvalidArgument(_)));
}

/// Goal: a new sale forgets the orders and keeps the fence, with or without a token. A batch that sells nothing raises the fence,
/// too. An item without a sale cannot be recovered, so a mistyped name creates no fence.
#[tokio::test]
async fn a_fresh_start_keeps_the_fence() {
    let (inventory, mut raw) = fresh().await;
    let error = inventory.recover_cluster(&ITEM, token(1)).await.unwrap_err();
    assert!(matches!(error, InventoryError::UnknownItem), "{error}");
    assert_eq!(raw.dump().await, []);
    let first = inventory.start(&ITEM, None, 3).await.unwrap();
    assert_eq!(first.stock.fence, None);
    reduce(&inventory, Some(token(7)), &[order("a", 2)]).await.unwrap();
    let second = inventory.start(&ITEM, None, 5).await.unwrap().stock;
    assert_eq!(second, inventory.stock(&ITEM).await.unwrap());
    assert_eq!((second.stock, second.lucky, second.initial, second.orders), (5, 0, 5, 0));
    assert_eq!(second.fence, Some(token(7)));
    assert_eq!(inventory.ledger(&ITEM, 0, 10).await.unwrap().entries, []);
    let raised = inventory.start(&ITEM, Some(token(8)), 5).await.unwrap();
    assert_eq!(raised.stock.fence, Some(token(8)));
    let outcomes = reduce(&inventory, Some(token(8)), &[order("a", 4)]).await.unwrap();
    assert_eq!(accepted(&outcomes[0]).position, 1);
    reduce(&inventory, Some(token(9)), &[order("b", 4)]).await.unwrap();
    assert_eq!(inventory.stock(&ITEM).await.unwrap().fence, Some(token(9)));
}
