//! Many orders under one tenure.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fenced_lock::Token;
use flash_sale::inventory::{Action, Event, Item, NewSale, Order, Outcome, Replaces, Terms};
use flash_sale::sale::{SaleError, lock_name};
use testkit::Direction;
use testkit::wait::{eventually, within};
use tokio::task::JoinSet;

use super::{accepted, begun, buy, ledger, patient, settle};
use crate::shop::{Shop, ShopOptions};
use crate::support::etcd::session;
use crate::support::store::{connect, order};

/// Goal: holds end by Redis' clock, a bounded number of them in one batch. A confirmation whose hold is due and not ended yet is
/// refused all the same. An order gets the units of such holds even if it needs more of them than many batches end, and nothing is
/// lost. Method: thousands of holds.
#[tokio::test]
async fn an_order_gets_the_units_of_many_holds() {
    let shop = Shop::empty(patient()).await;
    let inventory = connect(&shop.redis).await;
    let reduce = async |orders: &[Order]| {
        inventory.reduce(&Item::DEFAULT, None, "8080", orders).await.unwrap()
    };
    let terms = Terms { hold_seconds: Some(1), ..Terms::default() };
    inventory.start(&Item::DEFAULT, None, NewSale { terms, ..NewSale::from(4000) }).await.unwrap();
    for chunk in 0..4 {
        let batch: Vec<_> = (0..1000).map(|n| order(&format!("{chunk}-{n}"), 1)).collect();
        reduce(&batch).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await; // the holds, by a clock that is not ours
    assert!(inventory.look_up(&Item::DEFAULT, &["3-999".into()]).await.unwrap().available.is_due);
    let late = reduce(&[Order { action: Action::Confirm, ..order("3-999", 1) }]).await;
    assert!(matches!(late[..], [Outcome::Over { event: Event::Expired, .. }]), "{late:?}");
    let stock = inventory.stock(&Item::DEFAULT).await.unwrap();
    assert_eq!((stock.stock, stock.lucky, stock.held), (501, 3499, 3499));
    // it is not told that too few are left
    assert_eq!(reduce(&[order("large", 4000)]).await, [Outcome::HoldsDue]);
    let outcome = within("all are ended", shop.sale.reduce(order("all", 4000))).await.unwrap();
    assert_eq!(accepted(&outcome).remaining, 0);
    assert_eq!(inventory.stock(&Item::DEFAULT).await.unwrap().entries, 8001);
}

/// Goal: the holds of every item end, though nobody asks for any, and however many items there are.
#[tokio::test]
async fn the_holds_of_many_items_end() {
    let shop = Shop::empty(patient()).await;
    let inventory = shop.sale.inventory();
    let items: Vec<Item> =
        (0..300).map(|number| format!("item-{number}").parse().unwrap()).collect();
    for item in &items {
        let terms = Terms { hold_seconds: Some(1), ..Terms::default() };
        inventory.start(item, None, NewSale { terms, ..NewSale::from(1) }).await.unwrap();
        let order = Order { item: item.clone(), ..order("a", 1) };
        accepted(&inventory.reduce(item, None, "8080", &[order]).await.unwrap()[0]);
    }
    for item in &items {
        let is_back = async || inventory.stock(item).await.unwrap().stock == 1;
        eventually("the unit is on sale", is_back).await;
    }
}

/// Goal: another client of the lock gets its turn, whether the instance is idle or has more orders than it can serve; and sales
/// go on afterwards under a later token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_client_gets_its_turn() {
    let shop = Shop::selling(1_000_000, patient()).await;
    let other = session(&shop.etcd, "other").await.mutex(&shop.lock_name).unwrap();

    let before = buy(&shop, "before").await;
    let turn = within("a turn while the instance is idle", other.lock()).await.unwrap();
    assert!(turn.token() > before.token.unwrap());
    turn.unlock().await.unwrap();

    let next = Arc::new(AtomicU32::new(0));
    let mut buyers = JoinSet::new();
    for _ in 0..20 {
        let (sale, next) = (shop.sale.clone(), Arc::clone(&next));
        buyers.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                accepted(&sale.reduce(order(&format!("busy-{number}"), 1)).await.unwrap());
            }
        });
    }
    eventually("the sale is under way", async || next.load(Ordering::Relaxed) > 100).await;
    let turn = within("a turn while the instance is busy", other.lock()).await.unwrap();
    let held = shop.sale.reads().stock(&Item::DEFAULT).await.unwrap();
    let fence = Token::new(turn.token().cluster(), held.fence.unwrap().revision());
    assert!(fence < turn.token(), "nobody sells under a later token than the holder's");
    turn.unlock().await.unwrap();
    let sold = next.load(Ordering::Relaxed);
    eventually("the sale goes on", async || next.load(Ordering::Relaxed) > sold + 100).await;
    buyers.abort_all();
    while buyers.join_next().await.is_some() {}
}

/// Goal: a start that the store does not answer does not keep the lock. It is sent again under a later token if the sale has an
/// id; without one, that could delete the orders of a sale that was started meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_without_an_answer_does_not_keep_the_lock() {
    let other = Shop::selling(100, ShopOptions::default()).await;
    let (cut_off, proxy) = other.behind_proxy("cut-off").await;
    settle(&cut_off).await;
    for (item, is_named) in [("tea", true), ("mint", false)] {
        let item = item.parse::<Item>().unwrap();
        proxy.freeze();
        let mut new = NewSale::from(5);
        if is_named {
            new = NewSale { is_named, replaces: Replaces::Any, ..new };
        }
        let (sale, of) = (cut_off.sale.clone(), item.clone());
        let stuck = tokio::spawn(async move { sale.start(&of, new).await });
        eventually("the start is under way", async || proxy.has_held_data()).await;
        let started = within("the other one starts a sale", other.sale.start(&item, 7)).await;
        assert_eq!(started.unwrap().stock.initial, 7);
        assert!(
            !is_named || !stuck.is_finished(),
            "the lock came only after the start was given up"
        );
        proxy.release();
        let stuck = within("it is answered", stuck).await.unwrap();
        let running = other.sale.reads().stock(&item).await.unwrap();
        if is_named {
            let started = stuck.unwrap();
            assert!((started.stock.initial, started.is_repeated) == (5, false), "{started:?}");
            assert_eq!(running.fence, started.stock.fence);
        } else {
            assert!(matches!(stuck, Err(SaleError::CallUnknown { .. })), "{stuck:?}");
            assert_eq!(running.initial, 7);
        }
    }
}

/// Goal: a batch that must wait for another tenure, since its unanswered attempt may arrive late, does not delay the answers of
/// the batch behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_answered_though_the_one_before_it_was_not() {
    let other = Shop::selling(100, patient()).await;
    let (shop, proxy) = other.behind_proxy("a").await;
    settle(&shop).await;
    proxy.hold(Direction::ToClient);
    let unknown = Order { action: Action::Confirm, ..order("nobody's", 1) };
    let sale = shop.sale.clone();
    let confirmed = tokio::spawn(async move { sale.reduce(unknown).await });
    eventually("its batch was run", async || proxy.has_held_data()).await;
    let sold = begun(shop.sale.reduce(order("sold", 1)));
    eventually("the order was run", async || {
        ledger(&other).await.iter().any(|entry| entry.order.as_str() == "sold")
    })
    .await;
    proxy.cut();
    proxy.release();
    assert!(matches!(within("it is answered", sold).await, Ok(Outcome::Reserved(_))));
    let confirmed = within("so is the first one", confirmed).await.unwrap();
    assert!(matches!(confirmed, Ok(Outcome::Unknown)), "{confirmed:?}");
}

/// Goal: an item whose lock is taken does not delay the end of other items' holds.
#[tokio::test]
async fn holds_end_beside_an_item_that_is_blocked() {
    let shop = Shop::empty(ShopOptions { wait_timeout: Duration::from_mins(2), ..patient() }).await;
    let session = session(&shop.etcd, "other").await;
    let mut blocked = Vec::new();
    for name in ["a", "b", "c", "free"] {
        shop.put(name, r#"{"stock":1,"hold_seconds":1}"#).await.json(200);
        shop.call(&format!("POST /stock/reduce?item={name}")).await.json(200);
        let lock = session.mutex(&lock_name(&shop.lock_name, &name.parse().unwrap())).unwrap();
        if name != "free" {
            blocked.push(lock.lock().await.unwrap());
        }
    }
    eventually("the hold ends", async || {
        shop.call("GET /stock?item=free").await.json(200)["stock"] == 1
    })
    .await;
}
