//! Many orders under one tenure.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fenced_lock::{MemoryBackend, Session, SessionKeeper, SessionOptions, Token};
use flash_sale::config::Config;
use flash_sale::inventory::{Action, Item, NewSale, Order, Outcome, Replaces, Terms};
use flash_sale::sale::{Sale, SaleError, lock_name};
use testkit::shared::fresh_database;
use testkit::wait::{eventually, within};
use testkit::{Direction, Proxy};
use tokio::task::{JoinHandle, JoinSet, yield_now};

use super::{accepted, begun, buy, ledger, patient, settle};
use crate::shop::{Shop, ShopOptions};
use crate::support::etcd::session;
use crate::support::store::{connect, order};

/// An instance beside `other` that is cut off from the store, and its order, which is on its way.
async fn cut_off(other: &Shop) -> (Shop, Proxy, JoinHandle<Result<Outcome, SaleError>>) {
    let (shop, proxy) = other.behind_proxy("cut-off").await;
    settle(&shop).await;
    proxy.freeze();
    let sale = shop.sale.clone();
    let stuck = tokio::spawn(async move { sale.reduce(order("stuck", 1)).await });
    eventually("its batch is under way", async || proxy.has_held_data()).await;
    (shop, proxy, stuck)
}

/// Goal: two instances sell exactly what there is, each order once, in the order of their tokens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_instances_sell_exactly_the_stock() {
    let shop = Shop::selling(300, patient()).await;
    let instances = [shop.beside("a"), shop.beside("b")];
    let mut buyers = JoinSet::new();
    for number in 0..500 {
        let sale = instances[number % 2].sale.clone();
        buyers.spawn(async move { sale.reduce(order(&format!("order-{number}"), 1)).await });
    }
    let outcomes = within("all are answered", buyers.join_all()).await;
    let reserved = outcomes.iter().filter(|o| matches!(o, Ok(Outcome::Reserved(_)))).count();
    let sold_out = outcomes.iter().filter(|o| matches!(o, Ok(Outcome::SoldOut { .. }))).count();
    assert_eq!((reserved, sold_out), (300, 200));
    let ledger = ledger(&shop).await;
    assert_eq!(ledger.len(), 300);
    assert!(ledger.is_sorted_by_key(|order| order.token.unwrap().revision()));
    let tokens: HashSet<_> = ledger.iter().map(|order| order.token.unwrap()).collect();
    assert!(tokens.len() < 100, "{} tenures for 300 orders", tokens.len());
}

/// Goal: an order gets the units of expired holds even if it needs more of them than many batches end. Method: thousands of
/// holds.
#[tokio::test]
async fn an_order_gets_the_units_of_many_holds() {
    let shop = Shop::empty(patient()).await;
    let inventory = connect(&shop.redis).await;
    let terms = Terms { hold_seconds: Some(1), ..Terms::default() };
    inventory.start(&Item::DEFAULT, None, NewSale { terms, ..NewSale::from(4000) }).await.unwrap();
    for chunk in 0..4 {
        let batch: Vec<_> = (0..1000).map(|n| order(&format!("{chunk}-{n}"), 1)).collect();
        inventory.reduce(&Item::DEFAULT, None, "8080", &batch).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(1)).await; // the holds, by a clock that is not ours
    let outcome = within("all are ended", shop.sale.reduce(order("all", 4000))).await.unwrap();
    assert_eq!(accepted(&outcome).remaining, 0);
}

/// Goal: an instance that is alone keeps the lock: a batch costs etcd nothing. Method: the token stays
/// the same from order to order, and so does etcd's revision.
#[tokio::test]
async fn alone_it_keeps_the_lock() {
    let shop = Shop::selling(100, patient()).await;
    let first = settle(&shop).await;
    for number in 0..20 {
        assert_eq!(buy(&shop, &number.to_string()).await.token, first.token);
    }
    let entries = shop.sale.queue(&Item::DEFAULT).await.unwrap();
    assert_eq!(entries.len(), 1, "its claim is still there");
    assert_eq!(entries[0].token, first.token);
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
    let held = shop.sale.stock(&Item::DEFAULT).await.unwrap();
    let fence = Token::new(turn.token().cluster(), held.fence.unwrap().revision());
    assert!(fence < turn.token(), "nobody sells under a later token than the holder's");
    turn.unlock().await.unwrap();
    let sold = next.load(Ordering::Relaxed);
    eventually("the sale goes on", async || next.load(Ordering::Relaxed) > sold + 100).await;
    buyers.abort_all();
    while buyers.join_next().await.is_some() {}
}

/// Goal: an instance that lost the lock without knowing sells nothing under its old token, and serves its orders under a new one.
/// Method: its claim is deleted and a later holder writes, before the instance's watch can have told it.
#[tokio::test]
async fn a_lost_tenure_puts_its_orders_back() {
    let shop = Shop::selling(100, patient()).await;
    let first = settle(&shop).await;
    let mut client = etcd_client::Client::connect([&shop.etcd], None).await.unwrap();
    let entry = shop.sale.queue(&Item::DEFAULT).await.unwrap().remove(0);
    // later than any token that the instance can have by now, and earlier than its next one
    let ahead = client.put("elsewhere", "", None).await.unwrap();
    let ahead = ahead.header().unwrap().revision();
    let cluster = first.token.unwrap().cluster();
    let later = Token::new(cluster, ahead);
    let inventory = connect(&shop.redis).await;
    inventory.reduce(&Item::DEFAULT, Some(later), "b", &[order("b", 1)]).await.unwrap();
    let (second, _) = tokio::join!(buy(&shop, "second"), client.delete(entry.key, None));
    assert!(second.token.unwrap() > later, "sold under {:?}", second.token);
    let ledger = ledger(&shop).await;
    let ids: Vec<_> = ledger.iter().map(|order| order.order.as_str()).collect();
    assert_eq!(ids[ids.len() - 2..], ["b", "second"]);
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
        let running = other.sale.stock(&item).await.unwrap();
        if is_named {
            let started = stuck.unwrap();
            assert!((started.stock.initial, started.is_repeated) == (5, false), "{started:?}");
            assert_eq!(running.fence, started.stock.fence);
        } else {
            assert!(matches!(stuck, Err(SaleError::StartUnknown { .. })), "{stuck:?}");
            assert_eq!(running.initial, 7);
        }
    }
}

/// Goal: once a store that was silent answers again, an order that cannot get the lock is told that. Method: another client takes
/// the lock while the store is silent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silence_that_is_over_is_no_longer_the_reason() {
    let options = ShopOptions { wait_timeout: Duration::from_secs(3), ..ShopOptions::default() };
    let other = Shop::selling(100, options).await;
    let (shop, proxy, stuck) = cut_off(&other).await;
    let session = session(&shop.etcd, "foreign").await;
    let lock = session.mutex(&shop.lock_name).unwrap();
    let _held = within("the lock is given up", lock.lock()).await.unwrap();
    proxy.release();
    let stuck = within("it is given up", stuck).await.unwrap();
    assert!(matches!(stuck, Err(SaleError::OutcomeUnknown { .. })), "{stuck:?}");
    let late = within("so is another one", shop.sale.reduce(order("late", 1))).await;
    assert!(matches!(late, Err(SaleError::WaitTooLong { .. })), "{late:?}");
}

/// Goal: an instance whose tenure got no answer from the store leaves the lock to others and makes no claim, however long its
/// orders wait, until the store answers; then it carries them out. Method: its attempts to connect show that it keeps trying, and
/// the other instance keeps its tenure, which any claim would end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_answer_of_the_store_no_claim_is_made() {
    let other = Shop::selling(100, ShopOptions::default()).await;
    let (_shop, proxy, stuck) = cut_off(&other).await;
    let token = settle(&other).await.token;
    let before = proxy.connections();
    eventually("it asks the store", async || proxy.connections() > before + 2).await;
    assert_eq!(buy(&other, "later").await.token, token);
    assert!(!stuck.is_finished());
    proxy.release();
    let sold = within("it is answered", stuck).await.unwrap().unwrap();
    assert!(accepted(&sold).token > token, "{sold:?}");
}

/// Goal: an order whose attempt got no answer is not carried out in a sale that was started since, since the former sale may have
/// accepted it. An order that was not sent is carried out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_was_sent_stays_in_its_sale() {
    let other = Shop::selling(100, patient()).await;
    let (shop, proxy, sent) = cut_off(&other).await;
    let second = begun(shop.sale.reduce(order("second", 1)));
    eventually("so is another one", async || shop.sale.guard().waiting() == 0).await;
    let sale = shop.sale.clone();
    let waits = tokio::spawn(async move { sale.reduce(order("waits", 1)).await });
    eventually("a third one waits", async || shop.sale.guard().waiting() == 1).await;
    within("the new sale starts", other.start(5)).await;
    proxy.release();
    let sent = within("it is answered", sent).await.unwrap();
    assert!(matches!(sent, Err(SaleError::OutcomeUnknown { .. })), "{sent:?}");
    let second = within("so is the second one", second).await;
    assert!(matches!(second, Err(SaleError::OutcomeUnknown { .. })), "{second:?}");
    let waits = within("so is the third one", waits).await.unwrap().unwrap();
    assert_eq!(accepted(&waits).remaining, 4);
    assert_eq!(ledger(&shop).await.len(), 1);
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
        shop.put(name, r#"{"stock":1,"hold_seconds":2}"#).await.json(200);
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

/// Goal: a sale that ends does not wait for a store that does not answer: neither do orders that were sent, nor one that waits,
/// nor a start. What the store answers before the sale closes is carried out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_ends_sends_nothing_again() {
    let options = ShopOptions { wait_timeout: Duration::from_hours(1), ..patient() };
    let other = Shop::selling(100, options).await;
    other.sale.finish();
    buy(&other, "kept").await;
    for closes in [false, true] {
        let (shop, _proxy, sent) = cut_off(&other).await;
        let second = begun(shop.sale.reduce(order("second", 1)));
        eventually("so is another one", async || shop.sale.guard().waiting() == 0).await;
        let waits = begun(shop.sale.reduce(order("waits", 1)));
        let (tea, end) = ("tea".parse().unwrap(), async {
            if closes { shop.sale.close().await } else { shop.sale.finish() }
        });
        let all = async { tokio::join!(sent, second, waits, shop.sale.start(&tea, 1), end) };
        let (sent, second, waits, started, ()) = within("all are answered", all).await;
        let sent = sent.unwrap();
        assert!(matches!(sent, Err(SaleError::OutcomeUnknown { .. })), "{sent:?}");
        assert!(matches!(second, Err(SaleError::OutcomeUnknown { .. })), "{second:?}");
        assert!(matches!(waits, Err(SaleError::Stopping)), "{waits:?}");
        assert!(started.is_err(), "{started:?}");
        if closes {
            shop.order("late").await.problem(503, "stopping");
        }
    }
}

/// Goal: an order that loses the lock at any moment around its grant is answered in its time, and the sale closes; so is an order
/// of the last batch before a release, while another client holds the lock. Method: a lock service in memory and one thread. A
/// number of turns of the runtime decides when the claim is deleted, the last time never; from then on another client holds the
/// lock.
#[tokio::test]
async fn a_claim_lost_around_its_grant_does_not_wait_for_ever() {
    for turns in 0..=16 {
        let inventory = connect(&fresh_database().await).await;
        inventory.start(&Item::DEFAULT, None, 1).await.unwrap();
        let service = MemoryBackend::new();
        let lock = || Arc::new(service.clone());
        let options = SessionOptions::new(Duration::from_mins(1));
        let rival = Session::open(lock(), options.clone()).await.unwrap();
        let rival = rival.mutex("lock").unwrap();
        let before = rival.lock().await.unwrap();
        let sessions = SessionKeeper::start(lock(), options);
        let flags = ["--lock-name=lock", "--tenure=0ms", "--wait-timeout=200ms"];
        let config: Config = testkit::flags::parse(&flags).unwrap();
        let options = config.sale_options(8080);
        let sale = Sale::guarded(inventory.clone(), sessions, options);

        let sold = async {
            let sold = sale.reduce(order("a-1", 1)).await;
            sale.close().await;
            sold
        };
        let queued = async |claims| {
            while rival.queue().await.unwrap().len() < claims {
                yield_now().await;
            }
        };
        let lose = async {
            queued(2).await;
            let claim = rival.queue().await.unwrap().remove(1);
            let (after, ()) = tokio::join!(rival.lock(), async {
                queued(3).await;
                drop(before);
                while rival.queue().await.unwrap()[0].key != claim.key {
                    yield_now().await;
                }
                for _ in 0..turns {
                    yield_now().await;
                }
                if turns < 16 {
                    service.delete(&claim.key);
                }
            });
            after.unwrap()
        };
        let (sold, _after) =
            within("the order is answered", async { tokio::join!(sold, lose) }).await;
        let orders = inventory.ledger(&Item::DEFAULT, 0, 1000).await.unwrap().entries.len();
        match sold {
            Ok(Outcome::Reserved(_)) => assert_eq!(orders, 1),
            Err(SaleError::WaitTooLong { .. }) if turns < 16 => assert_eq!(orders, 0),
            other => panic!("after {turns} turns: {other:?}"),
        }
    }
}
