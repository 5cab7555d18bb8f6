//! The fence: a stale token writes nothing.

use fenced_lock::{ClusterId, Token};
use flash_sale::inventory::{Fence, InventoryError, Item};

use super::{Raw, accepted, connect, fresh_database, order, token};

/// Goal: a batch and a start under a smaller token are refused with the fence, and nothing is written; the
/// same token again is accepted.
#[tokio::test]
async fn a_stale_token_is_refused() {
    let url = fresh_database().await;
    let (inventory, mut raw) = (connect(&url).await, Raw::connect(&url).await);
    inventory.start(&Item::DEFAULT, Some(token(9)), 10).await.unwrap();
    // 10 is larger than 9, although its text sorts before
    inventory.reduce(&Item::DEFAULT, Some(token(10)), "8080", &[order("a", 1)]).await.unwrap();
    let before = raw.dump().await;
    let orders = [order("a", 1), order("b", 1)];
    let refused = [
        inventory.reduce(&Item::DEFAULT, Some(token(9)), "8090", &orders).await.map(drop),
        inventory.start(&Item::DEFAULT, Some(token(9)), 500).await.map(drop),
        inventory.recover_cluster(&Item::DEFAULT, token(9)).await.map(drop),
    ];
    for result in refused {
        let error = result.unwrap_err();
        assert!(error.nothing_written() && !error.is_retryable());
        assert!(
            matches!(error, InventoryError::StaleToken { fence, .. } if fence == token(10).into()),
            "{error}"
        );
    }
    assert_eq!(raw.dump().await, before);
    inventory.reduce(&Item::DEFAULT, Some(token(10)), "8080", &[order("b", 1)]).await.unwrap();
}

/// Goal: revisions are compared exactly, also those that a double cannot represent.
#[tokio::test]
async fn revisions_are_compared_exactly() {
    let inventory = connect(&fresh_database().await).await;
    inventory.start(&Item::DEFAULT, Some(token(i64::MAX - 1)), 10).await.unwrap();
    let sell = async |revision, id| {
        let batch = [order(id, 1)];
        inventory.reduce(&Item::DEFAULT, Some(token(revision)), "8080", &batch).await
    };
    assert!(matches!(
        sell(i64::MAX - 2, "a").await.unwrap_err(),
        InventoryError::StaleToken { .. }
    ));
    sell(i64::MAX, "a").await.unwrap();
    assert!(matches!(
        sell(i64::MAX - 1, "b").await.unwrap_err(),
        InventoryError::StaleToken { .. }
    ));
    assert!(matches!(sell(0, "b").await.unwrap_err(), InventoryError::InvalidArgument(_)));
}

/// Goal: a token of another cluster is refused, however large, until an operator accepts its cluster; then
/// the old cluster is refused.
#[tokio::test]
async fn another_cluster_is_refused_until_accepted() {
    let url = fresh_database().await;
    let (inventory, mut raw) = (connect(&url).await, Raw::connect(&url).await);
    inventory.start(&Item::DEFAULT, Some(token(100)), 10).await.unwrap();
    let other = |revision| Token::new(ClusterId(0xbeef), revision);
    let before = raw.dump().await;
    let error = inventory
        .reduce(&Item::DEFAULT, Some(other(1000)), "8080", &[order("a", 1)])
        .await
        .unwrap_err();
    let InventoryError::ForeignFence { fence, token: refused } = error else { panic!("{error}") };
    assert_eq!((fence, refused), (token(100).into(), other(1000)));
    assert!(inventory.start(&Item::DEFAULT, Some(other(1000)), 10).await.is_err());
    assert_eq!(raw.dump().await, before);

    let old = inventory.recover_cluster(&Item::DEFAULT, other(3)).await.unwrap();
    assert_eq!(old, Some(token(100).into()));
    let outcomes =
        inventory.reduce(&Item::DEFAULT, Some(other(3)), "8080", &[order("a", 1)]).await.unwrap();
    assert_eq!(accepted(&outcomes[0]).token, Some(other(3)));
    let error = inventory
        .reduce(&Item::DEFAULT, Some(token(101)), "8080", &[order("b", 1)])
        .await
        .unwrap_err();
    assert!(matches!(error, InventoryError::ForeignFence { .. }), "{error}");
}

/// Goal: an item without a sale cannot be recovered, so a mistyped name creates no fence.
#[tokio::test]
async fn an_unknown_item_is_not_recovered() {
    let url = fresh_database().await;
    let (inventory, mut raw) = (connect(&url).await, Raw::connect(&url).await);
    let error = inventory.recover_cluster(&Item::DEFAULT, token(1)).await.unwrap_err();
    assert!(matches!(error, InventoryError::UnknownItem), "{error}");
    assert_eq!(raw.dump().await, []);
    raw.run::<()>("SET stock 3").await;
    assert_eq!(inventory.recover_cluster(&Item::DEFAULT, token(1)).await.unwrap(), None);
}

/// Goal: a new sale forgets the orders and keeps the fence, with or without a token.
#[tokio::test]
async fn a_fresh_start_keeps_the_fence() {
    let inventory = connect(&fresh_database().await).await;
    let first = inventory.start(&Item::DEFAULT, None, 3).await.unwrap();
    assert_eq!(first.fence, None);
    inventory.reduce(&Item::DEFAULT, Some(token(7)), "8080", &[order("a", 2)]).await.unwrap();
    let fresh = inventory.start(&Item::DEFAULT, None, 5).await.unwrap();
    assert_eq!(fresh, inventory.stock(&Item::DEFAULT).await.unwrap());
    assert_eq!((fresh.stock, fresh.lucky, fresh.initial, fresh.orders), (5, 0, 5, 0));
    assert_eq!(fresh.fence, Some(token(7).into()));
    assert_eq!(inventory.ledger(&Item::DEFAULT, 0, 10).await.unwrap(), []);
    let raised = inventory.start(&Item::DEFAULT, Some(token(8)), 5).await.unwrap();
    assert_eq!(raised.fence, Some(Fence { cluster: ClusterId(0xcafe), revision: 8 }));
    let error = inventory
        .reduce(&Item::DEFAULT, Some(token(7)), "8080", &[order("a", 2)])
        .await
        .unwrap_err();
    assert!(matches!(error, InventoryError::StaleToken { .. }), "{error}");
    let outcomes =
        inventory.reduce(&Item::DEFAULT, Some(token(8)), "8080", &[order("a", 4)]).await.unwrap();
    assert_eq!(accepted(&outcomes[0]).position, 1);
}

/// Goal: a batch that sells nothing raises the fence as well.
#[tokio::test]
async fn a_sold_out_batch_raises_the_fence() {
    let inventory = connect(&fresh_database().await).await;
    inventory.start(&Item::DEFAULT, Some(token(1)), 0).await.unwrap();
    inventory.reduce(&Item::DEFAULT, Some(token(4)), "8080", &[order("a", 1)]).await.unwrap();
    let stock = inventory.stock(&Item::DEFAULT).await.unwrap();
    assert_eq!(stock.fence, Some(token(4).into()));
}
