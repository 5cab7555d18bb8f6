//! Selling: each unit once, each order once.

use flash_sale::inventory::{
    Action, Attempt, Inventory, InventoryError, NewSale, Order, Outcome, Terms, User,
};

use super::{ITEM, Raw, accepted, connect, fresh, fresh_database, order, reduce, sell, token};

/// Goal: the largest batch is accepted. A batch with one order more is refused, and so is a batch of two items.
#[tokio::test]
async fn a_batch_is_bounded() {
    let (inventory, _) = fresh().await;
    inventory.start(&ITEM, None, 10_000).await.unwrap();
    let mut orders: Vec<Order> =
        (0..Inventory::MAX_BATCH).map(|i| order(&format!("{i:0128}"), 2)).collect();
    for order in &mut orders {
        order.user = User::new(&"ü".repeat(64)).unwrap();
    }
    let outcomes = reduce(&inventory, None, &orders).await.unwrap();
    assert_eq!(accepted(outcomes.last().unwrap()).remaining, 8_000);
    assert_eq!(accepted(outcomes.last().unwrap()).user, orders[0].user);
    orders.push(order("one-more", 1));
    let error = reduce(&inventory, None, &orders).await.unwrap_err();
    assert!(matches!(error, InventoryError::InvalidArgument(_)), "{error}");
    let mixed = [Order { item: "cup".parse().unwrap(), ..order("a", 1) }, order("b", 1)];
    let error = reduce(&inventory, None, &mixed).await.unwrap_err();
    assert!(matches!(error, InventoryError::InvalidArgument(_)), "{error}");
}

/// Goal: the same id twice in one batch is one order; with another quantity the second is a conflict. An order for more units
/// than are left hears *sold out* and how many remain. Smaller orders behind it are served, and the same id may retry for fewer
/// units.
#[tokio::test]
async fn each_order_of_a_batch_gets_its_answer() {
    let (inventory, _) = fresh().await;
    inventory.start(&ITEM, None, 5).await.unwrap();
    let batch = [order("a", 3), order("a", 3), order("a", 4), order("b", 3), order("c", 1)];
    let outcomes = reduce(&inventory, None, &batch).await.unwrap();
    assert_eq!(accepted(&outcomes[0]), accepted(&outcomes[1]));
    assert_eq!(outcomes[2..4], [Outcome::Conflict, Outcome::SoldOut { remaining: 2 }]);
    assert_eq!((accepted(&outcomes[4]).position, accepted(&outcomes[4]).remaining), (2, 1));
    let found = inventory.look_up(&ITEM, &[order("b", 1).key()]).await.unwrap();
    assert!(matches!(found.orders[..], [Ok(None)]));
    assert_eq!(sell(&inventory, None, "b").await.unwrap().remaining, 0);
    let stock = inventory.stock(&ITEM).await.unwrap();
    assert_eq!((stock.stock, stock.lucky, stock.orders), (0, 5, 3));
}

/// Goal: a stock set with `redis-cli`, and nothing else, is a sale.
#[tokio::test]
async fn a_stock_set_by_hand_is_sold() {
    let (inventory, mut raw) = fresh().await;
    raw.run::<()>("MSET stock 300 lucky 5").await;
    let before = inventory.stock(&ITEM).await.unwrap();
    assert_eq!((before.stock, before.lucky, before.initial), (300, 5, 305));
    reduce(&inventory, Some(token(2)), &[order("a", 2)]).await.unwrap();
    // an order that was sent before the first batch found the sale is carried out, too
    let sent = order("b", 1);
    let sent = Attempt {
        order: &sent,
        instance: "8080",
        holder: None,
        request: None,
        sent_under: Some(token(1)),
    };
    inventory.reduce_attempts(&ITEM, Some(token(3)), &[sent]).await.unwrap();
    let after = inventory.stock(&ITEM).await.unwrap();
    assert_eq!((after.stock, after.lucky, after.initial), (297, 8, 305));
}

/// Goal: of equal orders, the one whose request made the entry gets a first answer, also when it is sent again, and also as a
/// confirmation. An order that may have been accepted in the sale before is refused, without harm to the others in its batch.
#[tokio::test]
async fn an_order_that_is_sent_again_is_known_by_its_request() {
    let (inventory, _) = fresh().await;
    let terms = Terms { hold_seconds: Some(600), ..Terms::default() };
    inventory.start(&ITEM, Some(token(3)), NewSale { terms, ..NewSale::from(5) }).await.unwrap();
    let reserve = order("a", 1);
    let confirm = Order { action: Action::Confirm, ..order("a", 1) };
    for (order, token_, request, sent_under, is_first) in [
        (&reserve, 3, Some(7), None, Some(true)),
        (&reserve, 3, Some(7), Some(3), Some(true)),
        (&reserve, 4, Some(8), Some(3), Some(false)),
        (&reserve, 4, None, None, Some(false)),
        (&confirm, 4, Some(8), None, Some(true)),
        (&confirm, 5, Some(8), Some(4), Some(true)),
        (&confirm, 5, Some(7), None, Some(false)),
        (&reserve, 5, Some(7), Some(2), None),
    ] {
        let sent_under = sent_under.map(token);
        let attempt = Attempt { order, instance: "80\t80", holder: None, request, sent_under };
        let other = super::order(&format!("{token_}-{request:?}-{is_first:?}"), 9);
        let beside = Attempt { order: &other, sent_under: None, ..attempt };
        let batch = [attempt, beside];
        let answers = inventory.reduce_attempts(&ITEM, Some(token(token_)), &batch).await.unwrap();
        assert_eq!(answers[1].0, Outcome::SoldOut { remaining: 4 });
        let (found, first) = match &answers[0].0 {
            Outcome::Reserved(found) => (found, Some(true)),
            Outcome::Repeated(found) => (found, Some(false)),
            Outcome::Changed { change, is_repeated } => (change, Some(!is_repeated)),
            other => {
                assert_eq!((other, is_first), (&Outcome::SaleReplaced, None));
                continue;
            }
        };
        assert_eq!((first, &*found.instance), (is_first, "80?80"), "{attempt:?}: {found:?}");
    }
}

/// Goal: the largest sale is counted exactly.
#[tokio::test]
async fn large_numbers_stay_exact() {
    let url = fresh_database().await;
    let (inventory, mut raw) = (connect(&url).await, Raw::connect(&url).await);
    inventory.start(&ITEM, None, Inventory::MAX_UNITS).await.unwrap();
    assert_eq!(sell(&inventory, None, "a").await.unwrap().remaining, 999_999_999_999);
    let error = inventory.start(&ITEM, None, Inventory::MAX_UNITS + 1).await.unwrap_err();
    assert!(matches!(error, InventoryError::InvalidArgument(_)), "{error}");
    raw.run::<()>("DEL initial lucky orders ledger sale terms").await;
    // a new inventory: the first one would miss its order
    let inventory = connect(&url).await;
    raw.run::<()>("SET stock 9007199254740991").await;
    assert_eq!(sell(&inventory, None, "a").await.unwrap().remaining, 9_007_199_254_740_990);
}
