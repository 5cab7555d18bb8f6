//! Orders that go to the holder of the lock: instances with peers, over a real etcd and a real Redis.

use std::collections::HashSet;
use std::ops::Deref;
use std::sync::Arc;

use flash_sale::inventory::{Item, NewSale, OrderId, Outcome, Replaces};
use flash_sale::peers::{self, Credentials, Doorkeeper, HttpLink, Peers};
use flash_sale::sale::SaleError;
use flash_sale::sale::metrics::Fates;
use flash_sale::secret::{Secret, SecretSource};
use futures_util::future::join_all;
use testkit::Proxy;
use testkit::wait::{eventually, within};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{buy, ledger, patient};
use crate::shop::Shop;
use crate::support::store::order;

/// An instance with peers.
struct Instance {
    name: &'static str,
    shop: Shop,
    /// The proxy through which others reach its door.
    proxy: Proxy,
    stop: CancellationToken,
}

impl Deref for Instance {
    type Target = Shop;

    fn deref(&self) -> &Shop {
        &self.shop
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Starts an instance of this sale that shows its peers this token.
async fn start(of: &Shop, name: &'static str, token: &str) -> Instance {
    let token = Some(SecretSource::Text(Secret::from(token)));
    let credentials = Credentials { token, tls: None };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::to(listener.local_addr().unwrap().port()).await.unwrap();
    let address = format!("127.0.0.1:{}", proxy.port());
    let peers = Arc::new(Peers::new(&address, Arc::new(HttpLink::new(credentials.clone()))));
    let shop = of.with_peers(name, peers);
    let serving = Doorkeeper { door: shop.sale.door().unwrap(), credentials };
    let until = CancellationToken::new();
    tokio::spawn(peers::serve(listener, serving, until.clone()));
    Instance { name, shop, proxy, stop: until }
}

/// Sells until one of these instances holds the lock, and the others send it their orders. Puts it first.
async fn settle(instances: &mut [Instance]) {
    let mut number = 0;
    eventually("one holds the lock for all", async || {
        let mut tokens = HashSet::new();
        for instance in instances.iter().chain(instances.iter()) {
            number += 1;
            let id = format!("settle-{number}-{}", OrderId::random().as_str());
            tokens.insert(buy(instance, &id).await.token);
        }
        tokens.len() == 1
    })
    .await;
    let queue = instances[0].sale.queue(&Item::DEFAULT).await.unwrap();
    let holder = instances.iter().position(|one| queue[0].label.as_deref() == Some(one.name));
    instances.swap(0, holder.unwrap());
}

/// Instances with a sale of so many units. The first one holds the lock.
async fn selling<const N: usize>(units: u64) -> [Instance; N] {
    let shop = Shop::empty(patient()).await;
    let names: [_; N] = std::array::from_fn(|number| ["a", "b", "c"][number]);
    let started = join_all(names.map(|name| start(&shop, name, "one"))).await;
    let Ok(mut instances): Result<[Instance; N], _> = started.try_into() else { unreachable!() };
    instances[0].sale.start(&Item::DEFAULT, units).await.unwrap();
    settle(&mut instances).await;
    instances
}

fn final_orders(fates: &Fates) -> u64 {
    fates.each().find(|(fate, _)| *fate == "final").unwrap().1
}

/// Goal: orders at any instance are carried out by the one that holds the lock, in one tenure, with the instance that each came
/// from; exactly the stock is sold, and a new sale takes a tenure of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_go_to_the_holder() {
    let [a, b, c] = selling(1000).await;
    let before = ledger(&a).await;
    let mut buyers = JoinSet::new();
    for number in 0..300 {
        let sale = [&a, &b, &c][number % 3].sale.clone();
        buyers.spawn(async move { sale.reduce(order(&format!("order-{number}"), 1)).await });
    }
    let outcomes = within("all are answered", buyers.join_all()).await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(Outcome::Reserved(_)))));
    let sold = ledger(&a).await.split_off(before.len());
    assert_eq!(sold.len(), 300);
    let tokens: HashSet<_> = sold.iter().map(|entry| entry.token).collect();
    assert_eq!(tokens, HashSet::from([before.last().unwrap().token]), "in one tenure");
    for name in [a.name, b.name, c.name] {
        let of_it = sold.iter().filter(|entry| entry.instance == name);
        let holders: Vec<_> = of_it.map(|entry| entry.holder.as_deref()).collect();
        assert_eq!(holders, [(name != a.name).then_some(a.name); 100], "{name}");
    }
    let repeated = c.sale.reduce(order("order-0", 1)).await.unwrap();
    assert!(matches!(repeated, Outcome::Repeated(_)), "{repeated:?}");
    let conflict = b.sale.reduce(order("order-0", 2)).await.unwrap();
    assert!(matches!(conflict, Outcome::Conflict), "{conflict:?}");
    assert!(final_orders(&a.sale.metrics().received) >= 200);
    assert!(final_orders(&b.sale.metrics().forwarded) >= 100);

    let queue = a.sale.queue(&Item::DEFAULT).await.unwrap();
    let addresses: Vec<_> = queue.iter().map(|claim| claim.note.clone().unwrap()).collect();
    assert_eq!(addresses[0], format!("127.0.0.1:{}", a.proxy.port()));
    assert_eq!(queue.len(), 3, "each stands by");

    let last = sold.last().unwrap().token.unwrap();
    let new = NewSale { replaces: Replaces::Any, ..NewSale::from(2) };
    let started = within("the others let it pass", b.sale.start(&Item::DEFAULT, new)).await;
    assert!(started.unwrap().stock.fence.unwrap() > last);
    let mut left = Vec::new();
    for (number, of) in [&a, &b, &c].into_iter().enumerate() {
        left.push(of.sale.reduce(order(&format!("new-{number}"), 1)).await.unwrap());
    }
    assert!(matches!(left[..], [Outcome::Reserved(_), Outcome::Reserved(_), _]), "{left:?}");
    assert!(matches!(left[2], Outcome::SoldOut { remaining: 0 }), "{left:?}");
}

/// Goal: a batch whose answer is lost is sent again under a larger token alone, and its orders keep their first answers. What is
/// lost on the way to the holder, or comes late, is carried out once at the most.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_is_asked_for_under_a_larger_token() {
    let mut instances: [_; 2] = selling(1000).await;
    let [a, b] = &instances;
    let first = buy(b, "first").await;
    a.proxy.lose_answers(1);
    let lost = within("it is answered", b.sale.reduce(order("lost", 1))).await.unwrap();
    let Outcome::Reserved(lost) = lost else { panic!("its own first answer, not {lost:?}") };
    assert_eq!(lost.token, first.token, "the holder had carried it out");
    let next = buy(b, "next").await;
    assert!(next.token > first.token, "nothing more went to the silent holder");
    let unknown = b.sale.metrics().forwarded.each().find(|(fate, _)| *fate == "unknown");
    assert_eq!(unknown, Some(("unknown", 1)));

    // the frame is held up, and comes when the tenure is over
    settle(&mut instances).await;
    let [a, b] = &instances;
    a.proxy.freeze();
    let held = within("another way", b.sale.reduce(order("held", 1))).await.unwrap();
    let Outcome::Reserved(held) = held else { panic!("{held:?}") };
    a.proxy.release();
    settle(&mut instances).await;
    let [a, _] = &instances;
    let entries = ledger(a).await;
    assert!(entries.is_sorted_by_key(|entry| entry.token.unwrap().revision()));
    for id in ["lost", "held"] {
        let count = entries.iter().filter(|entry| entry.order.as_str() == id).count();
        assert_eq!(count, 1, "{id}");
    }
    assert!(entries.contains(&held));
}

/// Goal: an instance that its peers do not let in, or do not reach, takes turns with them, and so does one without peers. They sell
/// exactly what there is, each order once, in the order of their tokens, and many orders in a turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_cannot_forward_takes_turns() {
    let alone = Shop::empty(patient()).await;
    let with = |name, token| start(&alone, name, token);
    let (a, b, c) = tokio::join!(with("a", "one"), with("b", "other"), with("c", "one"));
    a.proxy.refuse();
    a.sale.start(&Item::DEFAULT, 200).await.unwrap();
    let mut buyers = JoinSet::new();
    for number in 0..300 {
        let sale = [&a.sale, &b.sale, &c.sale, &alone.sale][number % 4].clone();
        buyers.spawn(async move { sale.reduce(order(&format!("order-{number}"), 1)).await });
    }
    let outcomes = within("all are answered", buyers.join_all()).await;
    let reserved = outcomes.iter().filter(|o| matches!(o, Ok(Outcome::Reserved(_)))).count();
    let sold_out = outcomes.iter().filter(|o| matches!(o, Ok(Outcome::SoldOut { .. }))).count();
    assert_eq!((reserved, sold_out), (200, 100), "{outcomes:?}");
    let ledger = ledger(&a).await;
    assert_eq!(ledger.len(), 200);
    assert!(ledger.is_sorted_by_key(|entry| entry.token.unwrap().revision()));
    let tokens: HashSet<_> = ledger.iter().map(|entry| entry.token).collect();
    assert!(tokens.len() < 100, "{} tenures for 200 orders", tokens.len());
    assert_eq!(final_orders(&a.sale.metrics().received), 0, "nobody reaches it");
    assert_eq!(final_orders(&b.sale.metrics().forwarded), 0, "nobody lets it in");
}

/// Goal: an instance that stops answers what it sent to the holder, and a holder that stops passes its orders on, however many
/// come: no order fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_loses_no_order() {
    let [a, b, c] = selling(100_000).await;
    let mut buyers = JoinSet::new();
    let done = CancellationToken::new();
    for buyer in 0..30 {
        let sales = [&b, &c].map(|instance| instance.sale.clone());
        let done = done.clone();
        buyers.spawn(async move {
            let (mut sold, mut stopped) = (0, false);
            while !done.is_cancelled() {
                let id = format!("{buyer}-{sold}");
                let sale = &sales[usize::from(stopped)];
                match sale.reduce(order(&id, 1)).await {
                    Ok(Outcome::Reserved(_)) => sold += 1,
                    Err(SaleError::Stopping) if !stopped => stopped = true,
                    other => panic!("{id}: {other:?}"),
                }
            }
            sold
        });
    }
    let so_far = ledger(&a).await.len();
    eventually("the sale is under way", async || ledger(&a).await.len() > so_far + 100).await;
    // the holder, and one that sends to it
    within("the holder stops", a.sale.close()).await;
    within("another one stops", b.sale.close()).await;
    done.cancel();
    let sold: usize = within("all are answered", buyers.join_all()).await.into_iter().sum();
    let stock = c.sale.reads().stock(&Item::DEFAULT).await.unwrap();
    assert!(stock.is_balanced());
    assert!(stock.lucky >= i64::try_from(sold).unwrap());
}
