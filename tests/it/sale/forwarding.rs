//! Orders that go to the holder of the lock: instances with peers, over a real etcd and a real Redis.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::Permission;
use fenced_lock::{EtcdBackend, EtcdUser};
use flash_sale::config;
use flash_sale::inventory::{
    Accepted, Entry, Inventory, Item, NewSale, OrderId, Outcome, Replaces,
};
use flash_sale::peers::{self, Credentials, Doorkeeper, HttpLink, Peers};
use flash_sale::sale::metrics::Fates;
use flash_sale::sale::{Sale, SaleError, SaleOptions};
use flash_sale::secret::{Secret, SecretSource};
use futures_util::future::join_all;
use testkit::shared::{Raw, fresh_database, fresh_lock_name, shared_endpoint};
use testkit::wait::{eventually, within};
use testkit::{AuthTokens, EtcdOptions, LOCK_NAME, PrivateEtcd, Proxy};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use redis::Value;

use crate::support::etcd::{backend, sessions};
use crate::support::store::{accepted, both, order};

/// What the instances of a sale share.
struct Servers {
    etcd: String,
    redis: String,
    /// Where the instance of this name reaches it.
    redis_of_a: String,
    /// How long it may take.
    patience: Duration,
    lock_name: String,
}

/// One instance.
struct Instance {
    name: &'static str,
    sale: Sale,
    /// What others reach its door through.
    proxy: Proxy,
    stop: CancellationToken,
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Servers {
    async fn shared() -> Self {
        let (etcd, redis) = (shared_endpoint().await, fresh_database().await);
        let (redis_of_a, patience) = (redis.clone(), Duration::from_secs(2));
        Self { etcd, redis, redis_of_a, patience, lock_name: fresh_lock_name() }
    }

    /// An instance with peers that shows them this token.
    async fn start(&self, name: &'static str, token: &str) -> Instance {
        self.start_with(name, token, backend(&self.etcd)).await
    }

    /// The same with this lock service.
    async fn start_with(
        &self,
        name: &'static str,
        token: &str,
        locks: Arc<EtcdBackend>,
    ) -> Instance {
        let token = Some(SecretSource::Text(Secret::from(token)));
        let credentials = Credentials { token, tls: None };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::to(listener.local_addr().unwrap().port()).await.unwrap();
        let address = format!("127.0.0.1:{}", proxy.port());
        let peers = Arc::new(Peers::new(&address, Arc::new(HttpLink::new(credentials.clone()))));
        let sale = self.sale(name, Some(peers), locks);
        let keeper = Doorkeeper { door: sale.door().unwrap(), credentials };
        let stop = CancellationToken::new();
        tokio::spawn(peers::serve(listener, keeper, stop.clone()));
        Instance { name, sale, proxy, stop }
    }

    fn sale(&self, name: &str, peers: Option<Arc<Peers>>, locks: Arc<EtcdBackend>) -> Sale {
        let redis = if name == "a" { &self.redis_of_a } else { &self.redis };
        let inventory = Inventory::new(redis.as_str(), both(self.patience)).unwrap();
        let options = SaleOptions {
            lock_name: self.lock_name.clone(),
            instance: name.into(),
            queue_length: 1000,
            batch_size: 100,
            tenure: Duration::from_millis(5),
            wait_timeout: Duration::from_secs(30),
            etcd: Some(Arc::clone(&locks)),
            peers,
        };
        Sale::guarded(inventory, sessions(locks, name), options)
    }
}

async fn buy(sale: &Sale, id: &str) -> Accepted {
    accepted(&sale.reduce(order(id, 1)).await.unwrap()).clone()
}

/// Sells until one of these instances holds the lock, and the others send it their orders. Puts it first.
async fn settle(instances: &mut [Instance]) {
    let mut number = 0;
    eventually("one holds the lock for all", async || {
        let mut tokens = HashSet::new();
        for instance in instances.iter().chain(instances.iter()) {
            number += 1;
            let id = format!("settle-{number}-{}", OrderId::random().as_str());
            tokens.insert(buy(&instance.sale, &id).await.token);
        }
        tokens.len() == 1
    })
    .await;
    let queue = instances[0].sale.queue(&Item::DEFAULT).await.unwrap();
    let holder = instances.iter().position(|one| queue[0].label.as_deref() == Some(one.name));
    instances.swap(0, holder.unwrap());
}

/// Instances with a sale of so many units. The first one holds the lock.
async fn selling<const N: usize>(servers: &Servers, units: u64) -> [Instance; N] {
    let names: [_; N] = std::array::from_fn(|number| ["a", "b", "c"][number]);
    let started = join_all(names.map(|name| servers.start(name, "one"))).await;
    let Ok(mut instances): Result<[Instance; N], _> = started.try_into() else { unreachable!() };
    instances[0].sale.start(&Item::DEFAULT, units).await.unwrap();
    settle(&mut instances).await;
    instances
}

fn final_orders(fates: &Fates) -> u64 {
    fates.each().find(|(fate, _)| *fate == "final").unwrap().1
}

async fn ledger(sale: &Sale) -> Vec<Accepted> {
    let page = sale.inventory().ledger(&Item::DEFAULT, 0, 1000).await.unwrap();
    page.entries.into_iter().filter_map(Entry::order).collect()
}

/// Goal: orders at any instance are carried out by the one that holds the lock, in one tenure, with the instance that each came
/// from; exactly the stock is sold, and a new sale takes a tenure of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_go_to_the_holder() {
    let servers = Servers::shared().await;
    let [a, b, c] = selling(&servers, 1000).await;
    let before = ledger(&a.sale).await;
    let mut buyers = JoinSet::new();
    for number in 0..300 {
        let sale = [&a, &b, &c][number % 3].sale.clone();
        buyers.spawn(async move { sale.reduce(order(&format!("order-{number}"), 1)).await });
    }
    let outcomes = within("all are answered", buyers.join_all()).await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(Outcome::Reserved(_)))));
    let sold = ledger(&a.sale).await.split_off(before.len());
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
    let servers = Servers::shared().await;
    let mut instances: [_; 2] = selling(&servers, 1000).await;
    let [a, b] = &instances;
    let first = buy(&b.sale, "first").await;
    a.proxy.lose_answers(1);
    let lost = within("it is answered", b.sale.reduce(order("lost", 1))).await.unwrap();
    let Outcome::Reserved(lost) = lost else { panic!("its own first answer, not {lost:?}") };
    assert_eq!(lost.token, first.token, "the holder had carried it out");
    let next = buy(&b.sale, "next").await;
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
    let entries = ledger(&a.sale).await;
    assert!(entries.is_sorted_by_key(|entry| entry.token.unwrap().revision()));
    for id in ["lost", "held"] {
        let count = entries.iter().filter(|entry| entry.order.as_str() == id).count();
        assert_eq!(count, 1, "{id}");
    }
    assert!(entries.contains(&held));
}

/// Goal: an instance that its peers do not let in, or do not reach, takes turns with them, and so does one without peers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_cannot_forward_takes_turns() {
    let servers = Servers::shared().await;
    let (a, b, c) = tokio::join!(
        servers.start("a", "one"),
        servers.start("b", "other"),
        servers.start("c", "one")
    );
    let alone = servers.sale("d", None, backend(&servers.etcd));
    a.proxy.refuse();
    a.sale.start(&Item::DEFAULT, 200).await.unwrap();
    let mut buyers = JoinSet::new();
    for number in 0..300 {
        let sale = [&a.sale, &b.sale, &c.sale, &alone][number % 4].clone();
        buyers.spawn(async move { sale.reduce(order(&format!("order-{number}"), 1)).await });
    }
    let outcomes = within("all are answered", buyers.join_all()).await;
    let reserved = outcomes.iter().filter(|o| matches!(o, Ok(Outcome::Reserved(_)))).count();
    let sold_out = outcomes.iter().filter(|o| matches!(o, Ok(Outcome::SoldOut { .. }))).count();
    assert_eq!((reserved, sold_out), (200, 100), "{outcomes:?}");
    assert!(ledger(&a.sale).await.is_sorted_by_key(|entry| entry.token.unwrap().revision()));
    assert_eq!(final_orders(&a.sale.metrics().received), 0, "nobody reaches it");
    assert_eq!(final_orders(&b.sale.metrics().forwarded), 0, "nobody lets it in");
}

/// Goal: an instance whose orders another one carried out remembers them as its own: when the store has lost them, and that
/// holder is gone, the next holder notices with the first order that comes from there, though it has sold as much as was lost, and
/// more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_sent_an_order_remembers_it() {
    let servers = Servers::shared().await;
    let [a, b, c] = selling(&servers, 1000).await;
    let label = async |place: usize| {
        let queue = b.sale.queue(&Item::DEFAULT).await.unwrap();
        queue.get(place).and_then(|claim| claim.label.clone())
    };
    let next = label(1).await.unwrap();
    let [heir, other] = if next == b.name { [&b, &c] } else { [&c, &b] };
    let last = buy(&other.sale, "last").await;
    a.sale.close().await;
    eventually("the next one holds", async || label(0).await.as_ref() == Some(&next)).await;
    let mut raw = Raw::connect(&servers.redis).await;
    let (stock, lucky) = (last.remaining + 1, 1000 - last.remaining - 1);
    for command in [
        "HDEL orders last".to_owned(),
        "RPOP ledger".to_owned(),
        format!("MSET stock {stock} lucky {lucky}"),
    ] {
        let _: Value = raw.run(&command).await;
    }
    for id in ["instead", "more"] {
        buy(&heir.sale, id).await;
    }
    let before = final_orders(&heir.sale.metrics().received);
    let refused = other.sale.reduce(order("another", 1)).await.unwrap_err();
    assert_eq!(refused.word(), "store-rolled-back", "{refused:?}");
    assert_eq!(final_orders(&heir.sale.metrics().received), before + 1);
}

/// Goal: a holder that gets no answer from its store gives the lock up, though another one only stands by for it, and sends its
/// orders there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_without_a_store_gives_way() {
    let mut servers = Servers::shared().await;
    let (_, address) = servers.redis.split_once("//").unwrap();
    let (address, database) = address.split_once('/').unwrap();
    let proxy = Proxy::to(address.parse::<SocketAddr>().unwrap().port()).await.unwrap();
    servers.redis_of_a = format!("redis://127.0.0.1:{}/{database}", proxy.port());
    servers.patience = Duration::from_millis(500);
    let a = servers.start("a", "one").await;
    a.sale.start(&Item::DEFAULT, 1000).await.unwrap();
    let first = buy(&a.sale, "first").await;
    let b = servers.start("b", "one").await;
    eventually("it sells for both", async || {
        let [of_b, of_a] = [&b, &a].map(async |it| buy(&it.sale, OrderId::random().as_str()).await);
        let (of_b, of_a) = (of_b.await, of_a.await);
        of_b.token == of_a.token && of_a.holder.is_none()
    })
    .await;
    proxy.freeze();
    let sold = within("another one sells", buy(&a.sale, "held")).await;
    assert_eq!(sold.holder.as_deref(), Some(b.name));
    assert!(sold.token > first.token);
}

/// Goal: an instance that stops answers what it sent to the holder, and a holder that stops passes its orders on, however many
/// come: no order fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_loses_no_order() {
    let servers = Servers::shared().await;
    let [a, b, c] = selling(&servers, 100_000).await;
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
    let so_far = ledger(&a.sale).await.len();
    eventually("the sale is under way", async || ledger(&a.sale).await.len() > so_far + 100).await;
    // the holder, and one that sends to it
    within("the holder stops", a.sale.close()).await;
    within("another one stops", b.sale.close()).await;
    done.cancel();
    let sold: usize = within("all are answered", buyers.join_all()).await.into_iter().sum();
    let stock = c.sale.stock(&Item::DEFAULT).await.unwrap();
    assert!(stock.is_balanced());
    assert!(stock.lucky >= i64::try_from(sold).unwrap());
}

/// Goal: an instance to which the lock service refuses its claims for good sends its orders to the holder, and is refused only where
/// no holder takes them. Method: its user in etcd may only look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_lock_sends_its_orders() {
    let secured = Some(AuthTokens::Simple(300));
    let etcd = PrivateEtcd::start(EtcdOptions { secured, ..EtcdOptions::default() }).await.unwrap();
    let mut root = etcd.root().await.unwrap();
    root.user_add("reader", "word", None).await.unwrap();
    root.role_add("reader").await.unwrap();
    root.user_grant_role("reader", "reader").await.unwrap();
    let claims = Permission::read(format!("{LOCK_NAME}/")).with_prefix();
    root.role_grant_permission("reader", claims).await.unwrap();
    let flags = [vec!["--etcd".to_owned(), etcd.endpoint()], etcd.flags()].concat();
    let locks = |user: Option<EtcdUser>| {
        let mut options =
            testkit::flags::parse::<config::Servers>(&flags).unwrap().etcd_options().unwrap();
        options.user = user.or(options.user);
        Arc::new(EtcdBackend::new(options).unwrap())
    };
    let servers = Servers { lock_name: LOCK_NAME.into(), ..Servers::shared().await };
    let a = servers.start_with("a", "one", locks(None)).await;
    let reader = EtcdUser::with_password_from("reader", || Ok("word".to_owned()));
    let b = servers.start_with("b", "one", locks(Some(reader))).await;
    a.sale.start(&Item::DEFAULT, 1000).await.unwrap();
    let first = buy(&a.sale, "first").await;
    // at first it does not see the queue yet
    eventually("it sends", async || b.sale.reduce(order("a", 1)).await.is_ok()).await;
    let buys = (0..20).map(async |buyer| {
        for number in 0..20 {
            let sold = buy(&b.sale, &format!("{buyer}-{number}")).await;
            assert_eq!(sold.holder.as_deref(), Some("a"));
        }
    });
    within("the holder takes all", join_all(buys)).await;
    assert_eq!(buy(&a.sale, "last").await.token, first.token);
    a.sale.close().await;
    let refused = within("nobody takes it", b.sale.reduce(order("e", 1))).await.unwrap_err();
    assert_eq!(refused.word(), "lock-refused", "{refused:?}");
}
