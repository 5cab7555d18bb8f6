//! The naive way does go wrong, and in the way that is claimed.

use demo::baselines::naive;
use flash_sale::inventory::{Accepted, Item, Outcome};
use testkit::shared::fresh_database;

use crate::support::store::{connect, order};

fn accepted(outcome: &Outcome) -> &Accepted {
    match outcome {
        Outcome::Reserved(accepted) => accepted,
        other => panic!("reserved was expected, not {other:?}"),
    }
}

/// Both look before either writes: one unit is sold twice, and the counters no longer add up.
#[tokio::test]
async fn two_that_look_before_either_writes_oversell() {
    let inventory = connect(&fresh_database().await).await;
    inventory.start(&Item::DEFAULT, None, 1).await.unwrap();
    let (a, b) = (order("a", 1), order("b", 1));
    let seen_by_a = naive::look(&inventory, &a).await.unwrap();
    let seen_by_b = naive::look(&inventory, &b).await.unwrap();
    let outcome_a = naive::take(&inventory, &a, "8080", seen_by_a).await.unwrap();
    let outcome_b = naive::take(&inventory, &b, "8090", seen_by_b).await.unwrap();
    assert_eq!((accepted(&outcome_a).remaining, accepted(&outcome_b).remaining), (0, 0));
    let stock = inventory.stock(&Item::DEFAULT).await.unwrap();
    assert_eq!((stock.stock, stock.lucky, stock.initial), (0, 2, 1));
    assert!(!stock.is_balanced());
}

/// One after the other, it is correct: that is what makes it tempting.
#[tokio::test]
async fn one_at_a_time_is_correct() {
    let inventory = connect(&fresh_database().await).await;
    inventory.start(&Item::DEFAULT, None, 3).await.unwrap();
    let first = naive::reduce(&inventory, &order("a", 2), "8080").await.unwrap();
    assert_eq!((accepted(&first).position, accepted(&first).remaining), (0, 1));
    let second = naive::reduce(&inventory, &order("b", 2), "8080").await.unwrap();
    assert_eq!(second, Outcome::SoldOut { remaining: 1 });
    let stock = inventory.stock(&Item::DEFAULT).await.unwrap();
    assert_eq!((stock.stock, stock.lucky, stock.orders), (1, 2, 0));
    assert!(stock.is_balanced());
}
