//! Redlock: how the contract has it, and what is particular to it: its nodes, its peers, and what it does not promise.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fenced_lock::{
    Backend, BackendErrorKind, Guard, LostReason, RedisOptions, RedlockBackend, Session,
    SessionOptions, Unfenced,
};
use futures_util::future::{join_all, try_join_all};
use rslock::LockManager;
use testkit::shared::Raw;
use testkit::wait::{eventually, within};
use testkit::{Direction, PrivateRedis, Proxy, RedisOptions as ServerOptions};
use tokio::sync::OnceCell;
use tokio::task::JoinSet;

use super::lab::{
    FoundLab, HOUR, LONG, Lab, TTL, assert_refused, kind_of, queue_length, queue_of,
    server_that_says, unseen_waiter, with,
};
use super::redis::volatile;

/// Three Redis servers that know nothing of each other.
pub(crate) struct RedlockLab {
    urls: Vec<String>,
}

impl RedlockLab {
    /// A database of its own at each of three nodes that the tests of this process share.
    pub(crate) async fn shared() -> Self {
        static NODES: OnceCell<Vec<PrivateRedis>> = OnceCell::const_new();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let options = ServerOptions { databases: Some(256), volatile: true, ..Default::default() };
        let start = async || {
            let start = || PrivateRedis::start(options.clone());
            let nodes = tokio::try_join!(start(), start(), start()).unwrap();
            <[_; 3]>::from(nodes).into()
        };
        let nodes = NODES.get_or_init(start).await;
        let database = NEXT.fetch_add(1, Ordering::Relaxed);
        Self::new(nodes.iter().map(|node| format!("{}/{database}", node.url())))
    }

    pub(crate) fn of(nodes: &[PrivateRedis]) -> Self {
        Self::new(nodes.iter().map(PrivateRedis::url))
    }

    pub(crate) fn new(urls: impl IntoIterator<Item = String>) -> Self {
        Self { urls: urls.into_iter().collect() }
    }

    pub(crate) fn urls(&self) -> &[String] {
        &self.urls
    }
}

impl Lab for RedlockLab {
    type Token = Unfenced;

    fn backend(&self) -> Arc<dyn Backend<Token = Unfenced>> {
        Arc::new(RedlockBackend::new(self.urls.iter().map(RedisOptions::new)).unwrap())
    }

    /// The nodes know of no leases; an operator deletes the claims of one.
    async fn revoke(&self, _lease: i64) {
        for url in &self.urls {
            Raw::connect(url).await.run::<()>("FLUSHDB").await;
        }
    }

    async fn delete(&self, key: &str) {
        let (name, _) = key.rsplit_once('/').unwrap();
        for url in &self.urls {
            Raw::connect(url).await.run_with::<()>("DEL", name).await;
        }
    }
}

impl FoundLab for RedlockLab {
    fn address(&self) -> String {
        self.urls.join(" ")
    }

    fn at(address: &str) -> Self {
        Self::new(address.split(' ').map(str::to_owned))
    }
}

async fn nodes(count: usize) -> Vec<PrivateRedis> {
    join_all((0..count).map(|_| volatile())).await
}

async fn proxies(nodes: &[PrivateRedis]) -> Vec<Proxy> {
    try_join_all(nodes.iter().map(|node| Proxy::to(node.port()))).await.unwrap()
}

fn through(proxy: &Proxy) -> String {
    format!("redis://127.0.0.1:{}", proxy.port())
}

/// A backend whose requests may take so long.
fn backend_at(urls: &[String], request_timeout: Duration) -> Arc<RedlockBackend> {
    let of = |options: &mut RedisOptions| options.request_timeout = request_timeout;
    let nodes = urls.iter().map(|url| with(RedisOptions::new(url), of));
    Arc::new(RedlockBackend::new(nodes).unwrap())
}

/// At how many nodes the key has a value.
async fn count(nodes: &[PrivateRedis], key: &str) -> usize {
    let mut count = 0;
    for node in nodes {
        count += node.run::<usize>(&format!("EXISTS {key}")).await.unwrap_or_default();
    }
    count
}

/// Goal: the crate `rslock` and this library exclude each other on the same keys, in both directions.
#[tokio::test]
async fn rslock_is_excluded_and_excludes() {
    let lab = RedlockLab::shared().await;
    let mutex = lab.session_for(LONG).await.mutex("stock-lock").unwrap();
    let mut peer = LockManager::new(lab.urls().to_vec());
    peer.set_retry(1, Duration::ZERO);

    let guard = mutex.lock().await.unwrap();
    peer.lock("stock-lock", LONG).await.unwrap_err();
    guard.unlock().await.unwrap();
    let theirs = peer.lock("stock-lock", LONG).await.unwrap();
    assert!(mutex.try_lock().await.unwrap().is_none());
    assert_eq!(queue_of(&mutex).await, ["stock-lock"], "it is seen");
    let waiter = unseen_waiter(&mutex);
    peer.extend(&theirs, LONG).await.unwrap();
    assert!(!waiter.is_finished());
    peer.unlock(&theirs).await;
    let guard = within("the waiter is granted", waiter).await.unwrap().unwrap();
    peer.lock("stock-lock", LONG).await.unwrap_err();
    drop(guard);
}

/// Goal: a minority of the nodes may be gone, stopped or empty: the lock is taken, kept and released, and a node that
/// comes back empty gets the key again. With more than half of them gone nothing is granted, and the holder is told.
#[tokio::test]
async fn a_minority_may_fail() {
    // at the same time, since both wait for TTLs
    let test = async |size: usize| {
        let mut nodes = nodes(size).await;
        let minority = size / 2;
        let lab = RedlockLab::of(&nodes);
        let session = lab.session_for(Duration::from_secs(6)).await;
        let mutex = session.mutex("a").unwrap();
        let guard = mutex.lock().await.unwrap();
        for node in &mut nodes[..minority] {
            node.kill().await.unwrap();
            node.restart().await.unwrap();
        }
        eventually("the key is back", async || count(&nodes, "a").await == size).await;
        nodes[0].child().pause().unwrap();
        for node in &mut nodes[1..minority] {
            node.kill().await.unwrap();
        }
        let other = lab.session_for(LONG).await.mutex("a").unwrap();
        assert!(other.try_lock().await.unwrap().is_none());
        within("the release", guard.unlock()).await.unwrap();
        let guard = within("a grant", mutex.lock()).await.unwrap();
        tokio::time::sleep(Duration::from_secs(7)).await;
        assert!(!guard.is_lost(), "a node that hangs holds no renewal up");

        for node in &mut nodes[minority..=minority] {
            node.kill().await.unwrap();
        }
        assert_eq!(kind_of(mutex.try_lock().await), BackendErrorKind::Transient);
        within("the holder is told", guard.lost()).await;
        assert_eq!(session.lost_reason(), Some(LostReason::Expired));
        nodes[0].child().resume().unwrap();
    };
    tokio::join!(test(3), test(5));
}

/// Goal: a slow renewal does not put back a key that was released meanwhile. Method: one node has lost the key, and another one's
/// answer to the renewal comes after the release. By the time of the next renewals, all that the slow one sends has arrived.
#[tokio::test]
async fn a_late_renewal_puts_nothing_back() {
    let nodes = nodes(3).await;
    let proxy = Proxy::to(nodes[0].port()).await.unwrap();
    let slow = through(&proxy);
    let lab = RedlockLab::new([slow, nodes[1].url(), nodes[2].url()]);
    let session = lab.session_for(Duration::from_secs(9)).await;
    let guard = session.mutex("a").unwrap().lock().await.unwrap();
    let other = session.mutex("b").unwrap().lock().await.unwrap();
    eventually("all nodes have it", async || count(&nodes, "a").await == 3).await;
    nodes[2].run::<()>("DEL a").await.unwrap();
    proxy.hold(Direction::ToClient);
    eventually("a renewal is under way", async || proxy.has_held_data()).await;
    let release = tokio::spawn(guard.unlock());
    eventually("it is released", async || count(&nodes, "a").await == 0).await;
    proxy.release();
    within("the release", release).await.unwrap().unwrap();
    for _ in 0..2 {
        let valid_until = other.valid_until();
        eventually("a renewal", async || other.valid_until() > valid_until).await;
    }
    assert_eq!(count(&nodes, "a").await, 0);
}

/// Goal: a key that reaches a slow node after its release is deleted there. Method: the node gets nothing until the client gives
/// its connection up; what was sent on that connection still reaches the node.
#[tokio::test]
async fn a_key_that_comes_late_is_deleted() {
    let nodes = nodes(3).await;
    let proxy = Proxy::to(nodes[0].port()).await.unwrap();
    let urls = [through(&proxy), nodes[1].url(), nodes[2].url()];
    let backend = backend_at(&urls, Duration::from_millis(200));
    let session = Session::open(backend, SessionOptions::new(HOUR)).await.unwrap();
    proxy.hold(Direction::ToServer);
    let guard = within("a grant", session.mutex("a").unwrap().lock()).await.unwrap();
    let other = session.mutex("b").unwrap();
    let give_up_connections = async |count: u64| {
        let before = proxy.connections();
        eventually("connections are given up", async || {
            other.lock().await.unwrap().unlock().await.unwrap();
            proxy.connections() >= before + count
        })
        .await;
    };
    give_up_connections(1).await;
    within("the release", guard.unlock()).await.unwrap();
    give_up_connections(2).await;
    proxy.release();
    eventually("the key comes late", async || proxy.late_chunks() > 0).await;
    eventually("nothing is left", async || {
        count(&nodes, "a").await == 0 && nodes[0].run::<u64>("DBSIZE").await.unwrap() == 0
    })
    .await;
}

/// Goal: when an attempt is taken back, that deletes no later attempt's key, however late it reaches a node. Method: the first
/// attempt fails, since others hold the lock at the other nodes, and reaches its node after the second one: it is held on a
/// connection that was given up, while later connections go another way.
#[tokio::test]
async fn a_late_deletion_takes_no_later_attempt() {
    let nodes = nodes(3).await;
    let held = Proxy::to(nodes[0].port()).await.unwrap();
    let proxy = Proxy::to(held.port()).await.unwrap();
    let urls = [through(&proxy), nodes[1].url(), nodes[2].url()];
    let backend = backend_at(&urls, Duration::from_secs(1));
    let session = Session::open(backend, SessionOptions::new(HOUR)).await.unwrap();
    for node in &nodes[1..] {
        node.run::<()>("SET a another").await.unwrap();
    }
    let scripts = async || {
        let stats: String = nodes[0].run("INFO commandstats").await.unwrap();
        let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        calls.map_or(0, |calls| calls.split_once(',').unwrap().0.parse::<u64>().unwrap())
    };
    held.hold(Direction::ToServer);
    proxy.redirect_to(nodes[0].port());
    let waiter = unseen_waiter(&session.mutex("a").unwrap());
    let other = session.mutex("b").unwrap();
    eventually("the node takes part again", async || {
        let guard = other.lock().await.unwrap();
        let all = count(&nodes, "b").await;
        guard.unlock().await.unwrap();
        all == 3
    })
    .await;
    for node in &nodes[1..] {
        node.run::<()>("DEL a").await.unwrap();
    }
    let guard = within("a grant", waiter).await.unwrap().unwrap();
    eventually("all nodes have it", async || count(&nodes, "a").await == 3).await;
    let before = scripts().await;
    held.release();
    eventually("the first attempt comes late", async || scripts().await >= before + 2).await;
    assert_eq!(count(&nodes, "a").await, 3);
    guard.unlock().await.unwrap();
}

/// Goal: when some nodes have done a release and others refuse it for now, its repetition says that it is done, not that the lock
/// was lost. Method: two nodes refuse to write, one after the other, as without a replica that they need.
#[tokio::test]
async fn a_release_in_parts_is_no_loss() {
    let nodes = nodes(3).await;
    let session = RedlockLab::of(&nodes).session_for(LONG).await;
    let guard = session.mutex("a").unwrap().lock().await.unwrap();
    eventually("all nodes have it", async || count(&nodes, "a").await == 3).await;
    for node in &nodes[1..] {
        node.run::<()>("CONFIG SET min-replicas-to-write 1").await.unwrap();
    }
    let release = tokio::spawn(guard.unlock());
    for (left, node) in [(2, &nodes[1]), (1, &nodes[2])] {
        eventually("a node has done it", async || count(&nodes, "a").await == left).await;
        node.run::<()>("CONFIG SET min-replicas-to-write 0").await.unwrap();
    }
    within("the release", release).await.unwrap().unwrap();
    assert!(!session.is_lost());
}

/// Goal: while nodes forget the scripts, again and again, no request fails, and no release is reported as a loss.
#[tokio::test]
async fn forgotten_scripts_fail_no_request() {
    let nodes = nodes(3).await;
    let mutex = RedlockLab::of(&nodes).session_for(LONG).await.mutex("a").unwrap();
    let mut forgetting = JoinSet::<()>::new();
    for node in &nodes {
        let mut operator = Raw::connect(&node.url()).await;
        forgetting.spawn(async move {
            loop {
                operator.run::<()>("SCRIPT FLUSH").await;
            }
        });
    }
    for _ in 0..100 {
        let guard = within("a grant", mutex.lock()).await.unwrap();
        within("a release", guard.unlock()).await.unwrap();
    }
}

/// Goal: opening a session names a node that can never take part, although the others would suffice: else nobody would notice it
/// until another node fails. A node that is away or hangs delays nothing, however long a request may take.
#[tokio::test]
async fn a_wrong_node_is_named() {
    let mut nodes = nodes(3).await;
    let mut urls: Vec<_> = nodes.iter().map(PrivateRedis::url).collect();
    let open = async |urls: &[String]| {
        let backend = backend_at(urls, Duration::from_mins(1));
        within("an end", Session::open(backend, SessionOptions::new(LONG))).await
    };
    let refused = async |urls: &[String], node: usize, said: &str| {
        let opened = open(urls).await;
        assert!(format!("{:#}", opened.as_ref().unwrap_err()).contains(&urls[node]));
        assert_refused(opened, said);
    };
    nodes[0].run::<()>("CONFIG SET maxmemory 100mb maxmemory-policy allkeys-lru").await.unwrap();
    refused(&urls, 0, "evicts keys").await;
    let answer = "-ERR unknown command 'HELLO'\r\n";
    urls[0] = format!("redis://{}", server_that_says(answer).await);
    refused(&urls, 0, "HELLO").await;
    urls[0] = nodes[0].url();
    nodes[0].child().pause().unwrap();
    drop(open(&urls).await.unwrap());
    nodes[0].kill().await.unwrap();
    drop(open(&urls).await.unwrap());
    urls[1] = format!("redis://{}", server_that_says(answer).await);
    refused(&urls, 1, "HELLO").await;
}

/// Goal: as documented, one who came later may overtake a waiter, whose next question is still on its way.
#[tokio::test]
async fn a_waiter_is_overtaken() {
    let nodes = nodes(3).await;
    let proxies = proxies(&nodes).await;
    let far = RedlockLab::new(proxies.iter().map(through)).mutex("a").await;
    let near = RedlockLab::of(&nodes).mutex("a").await;
    let guard = near.lock().await.unwrap();
    let waiter = unseen_waiter(&far);
    tokio::task::yield_now().await;
    // its question was on the same connections before this one: it was answered in vain, and asks again later
    assert!(far.try_lock().await.unwrap().is_none());
    for proxy in &proxies {
        proxy.hold(Direction::ToServer);
    }
    eventually("it asks", async || proxies.iter().all(Proxy::has_held_data)).await;
    guard.unlock().await.unwrap();
    let late = near.try_lock().await.unwrap().expect("it overtakes the one who waits");
    proxies.iter().for_each(Proxy::release);
    late.unlock().await.unwrap();
    drop(within("a grant", waiter).await.unwrap().unwrap());
}

/// Goal: answers and requests that get lost at a minority, and at all nodes, leave no claim behind.
#[tokio::test]
async fn lost_answers_leave_no_claim() {
    let nodes = nodes(3).await;
    let proxies = proxies(&nodes).await;
    let urls = proxies.iter().map(through);
    // what a node did whose answer was lost ends with the TTL
    let session = RedlockLab::new(urls).session_for(Duration::from_secs(6)).await;
    let mutex = session.mutex("a").unwrap();
    for failing in [1, 3] {
        let swallow = || proxies[..failing].iter().for_each(|proxy| proxy.lose_answers(1));
        swallow();
        let guard: Guard<Unfenced> = within("a grant", mutex.lock()).await.unwrap();
        swallow();
        let guard = within("a hand-over", guard.requeue()).await.unwrap();
        swallow();
        within("a release", guard.unlock()).await.unwrap();
        eventually("nothing is left", async || count(&nodes, "a").await == 0).await;
        proxies.iter().for_each(Proxy::cut);
    }
    assert!(!session.is_lost());
}

/// Goal: a node that refuses its user says so; with the documented rights the lock is taken, renewed and released.
#[tokio::test]
async fn rights() {
    let nodes = nodes(3).await;
    let rights = "~a +info +evalsha +eval +get +set +del +pexpire";
    let setuser = format!("ACL SETUSER locker on >secret {rights}");
    let urls: Vec<_> =
        nodes.iter().map(|node| node.url().replace("://", "://locker:secret@")).collect();
    let open = async || {
        let backend = RedlockBackend::new(urls.iter().map(RedisOptions::new)).unwrap();
        Session::open(Arc::new(backend), SessionOptions::new(TTL)).await
    };
    let error = open().await.unwrap_err();
    assert!(!format!("{error:#} {error:?}").contains("secret"), "{error:?}");
    assert_eq!(kind_of::<()>(Err(error)), BackendErrorKind::Permanent);
    for node in &nodes {
        node.run::<()>(&setuser).await.unwrap();
    }
    let session = open().await.unwrap();
    let guard = session.mutex("a").unwrap().lock().await.unwrap();
    assert_eq!(queue_of(&session.mutex("a").unwrap()).await, [guard.key()]);
    let valid_until = guard.valid_until();
    eventually("a renewal", async || guard.valid_until() > valid_until).await;
    guard.unlock().await.unwrap();
    queue_length(&session.mutex("a").unwrap(), 0).await;
    assert!(session.mutex("b").unwrap().lock().await.is_err(), "no right to this key");
    let few = ["redis://127.0.0.1:1", "redis://127.0.0.1:2"].map(RedisOptions::new);
    assert!(format!("{:#}", RedlockBackend::new(few).unwrap_err()).contains("three nodes"));
}
