//! The locks on etcd.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use etcd_client::{
    Client, EventType, GetOptions, LockOptions, PutOptions, SortOrder, SortTarget, WatchOptions,
};
use fenced_lock::{EtcdBackend, EtcdOptions, LockError, Token};
use testkit::{EtcdOptions as Server, PrivateEtcd, PrivateRedis, Proxy, RedisOptions};
use tokio::time::{interval, sleep};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::story::{Buyer, Ending, Ours, Shop, Waiting, no_accident, proxy_to, two_buy, until};
use super::{Flaw, Floor};
use crate::error::LabError;

/// The TTL of all leases, in seconds. The articles have 10 to 30.
const TTL_SECONDS: i64 = 2;
const TTL: Duration = Duration::from_secs(2);

/// When the outage in the life of a lease begins, and how long it lasts: it is over before the lease is.
const OUTAGE_AFTER: Duration = Duration::from_millis(1300);
const OUTAGE: Duration = Duration::from_millis(400);

/// A lease and etcd's own `Lock` call: "etcd：一款比Redis更骚的分布式锁的实现方式！" (a lock "cooler than Redis"), a flash sale of 300
/// units with a Redis stock under jetcd, and its many copies. The lease is renewed with one request every 80 % of its TTL,
/// whatever becomes of it; and what fails in `lock` is written to the log, so that it returns as if it had the lock.
struct LockCall {
    client: Box<Client>,
    name: String,
    held: Option<Held>,
    failed_renewals: Arc<AtomicU32>,
}

struct Held {
    lease: i64,
    key: Vec<u8>,
    _renewal: AbortOnDropHandle<()>,
}

impl LockCall {
    async fn new(endpoint: &str, name: &str) -> Result<Self, LabError> {
        let client = connect(endpoint).await?;
        let (name, failed_renewals) = (name.to_owned(), Arc::default());
        Ok(Self { client, name, held: None, failed_renewals })
    }

    async fn try_lock(&mut self) -> Result<Held, etcd_client::Error> {
        let lease = self.client.lease_grant(TTL_SECONDS, None).await?.id();
        let (mut client, failed) = (self.client.clone(), Arc::clone(&self.failed_renewals));
        let renewal = tokio::spawn(async move {
            let mut ticks = interval(TTL.mul_f64(0.8));
            loop {
                ticks.tick().await;
                if keep_alive_once(&mut client, lease).await.is_err() {
                    failed.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let renewal = AbortOnDropHandle::new(renewal);
        let options = LockOptions::new().with_lease(lease);
        let locked = self.client.lock(&*self.name, Some(options)).await?;
        Ok(Held { lease, key: locked.key().to_vec(), _renewal: renewal })
    }
}

impl Buyer for LockCall {
    async fn lock(&mut self) -> Result<Option<Token>, LabError> {
        match self.try_lock().await {
            Ok(held) => self.held = Some(held),
            Err(error) => tracing::debug!(%error, "lock failed"),
        }
        Ok(None)
    }

    async fn unlock(&mut self) -> Result<(), LabError> {
        if let Some(held) = self.held.take() {
            self.client.unlock(held.key).await?;
            self.client.lease_revoke(held.lease).await?;
        }
        Ok(())
    }
}

async fn keep_alive_once(client: &mut Client, lease: i64) -> Result<(), etcd_client::Error> {
    let (mut keeper, mut answers) = client.lease_keep_alive(lease).await?;
    keeper.keep_alive().await?;
    answers.message().await.map(drop)
}

/// A key for each client, in the order of their revisions; each one watches its predecessor: the flow that the same article
/// describes before it takes the `Lock` call, and the first way of "基于 Etcd 的分布式锁实现原理及方案" (how locks on etcd work). When
/// the predecessor goes, the lock counts as acquired, though the own key may have gone meanwhile. That was also etcd#11456
/// in the server, "Locks return without checking whether the lease is still held".
struct OwnKey {
    client: Box<Client>,
    name: String,
    key: String,
    lease: i64,
}

impl OwnKey {
    async fn new(endpoint: &str, name: &str) -> Result<Self, LabError> {
        let mut client = connect(endpoint).await?;
        // no heartbeat is needed in a story that is shorter
        let lease = client.lease_grant(60, None).await?.id();
        let key = format!("{name}/{}", Uuid::new_v4());
        Ok(Self { client, name: name.to_owned(), key, lease })
    }
}

impl Buyer for OwnKey {
    async fn lock(&mut self) -> Result<Option<Token>, LabError> {
        let lease = PutOptions::new().with_lease(self.lease);
        self.client.put(&*self.key, "", Some(lease)).await?;
        let by_age =
            GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend);
        let queue = self.client.get(format!("{}/", self.name), Some(by_age)).await?;
        let before = queue.kvs().iter().take_while(|kv| kv.key() != self.key.as_bytes()).last();
        if let Some(before) = before {
            let next = queue.header().map_or(0, |header| header.revision() + 1);
            let from = WatchOptions::new().with_start_revision(next);
            let mut watch = self.client.watch(before.key(), Some(from)).await?;
            while let Some(change) = watch.message().await? {
                if change.events().iter().any(|event| event.event_type() == EventType::Delete) {
                    break;
                }
            }
        }
        Ok(None)
    }

    async fn unlock(&mut self) -> Result<(), LabError> {
        self.client.delete(&*self.key, None).await?;
        Ok(())
    }
}

/// A client of one buyer, boxed, as it is large.
async fn connect(endpoint: &str) -> Result<Box<Client>, LabError> {
    Ok(Box::new(Box::pin(Client::connect([endpoint], None)).await?))
}

/// The servers: etcd, and the stock's Redis.
pub(super) struct EtcdFloor {
    shop: PrivateRedis,
    lock: PrivateEtcd,
    client: Box<Client>,
}

impl Floor for EtcdFloor {
    const NAME: &str = "etcd";

    const FLAWS: &[Flaw<Self>] = &[
        Flaw {
            lock: "etcd-lock-call",
            what: "one renewal at 80 % of the TTL: if it is lost, so is the lease, and the holder is not told",
            story: |floor| Box::pin(renewal_lost(floor)),
        },
        Flaw {
            lock: "etcd-lock-call",
            what: "lock() swallows its errors: who does not reach etcd sells without the lock",
            story: |floor| Box::pin(error_swallowed(floor)),
        },
        Flaw {
            lock: "etcd-own-key",
            what: "a waiter's lease ends, and nobody checks it after the wait",
            story: |floor| Box::pin(unchecked(floor)),
        },
    ];

    fn is_installed() -> bool {
        true
    }

    async fn start() -> Result<Self, LabError> {
        let volatile = RedisOptions { volatile: true, ..RedisOptions::default() };
        let shop = PrivateRedis::start(volatile).await?;
        // a lease lives for one and a half election timeouts at least
        let flags = ["--heartbeat-interval=50", "--election-timeout=500"].map(ToOwned::to_owned);
        let options = Server { flags: flags.to_vec(), ..Server::default() };
        let lock = PrivateEtcd::start(options).await?;
        let client = connect(&lock.endpoint()).await?;
        Ok(Self { shop, lock, client })
    }

    async fn stop(self) -> std::io::Result<()> {
        self.shop.stop().await?;
        self.lock.stop().await
    }
}

impl EtcdFloor {
    async fn shop(&self) -> Result<Shop, LabError> {
        Shop::open(&self.shop, 1).await
    }

    async fn lock_call(&self, shop: &Shop) -> Result<LockCall, LabError> {
        LockCall::new(&self.lock.endpoint(), &shop.lock).await
    }

    async fn own_key(&self, shop: &Shop) -> Result<OwnKey, LabError> {
        OwnKey::new(&self.lock.endpoint(), &shop.lock).await
    }

    async fn ours(&self, shop: &Shop, endpoint: String) -> Result<Ours, LabError> {
        let backend = EtcdBackend::new(EtcdOptions::new([endpoint])).map_err(LockError::from)?;
        Ours::open(backend, &shop.lock, TTL).await
    }

    async fn direct(&self, shop: &Shop) -> Result<Ours, LabError> {
        self.ours(shop, self.lock.endpoint()).await
    }

    /// A way to etcd that can be closed.
    async fn way(&self) -> Result<Proxy, LabError> {
        Ok(proxy_to(self.lock.port()).await?)
    }

    /// How many claims are in the queue.
    async fn count(&self, lock: &str) -> Result<i64, LabError> {
        let all = GetOptions::new().with_prefix().with_count_only();
        Ok(self.client.kv_client().get(format!("{lock}/"), Some(all)).await?.count())
    }

    /// Ends a lease, as the loss of its heartbeats does.
    async fn end(&self, lease: i64) -> Result<(), LabError> {
        self.client.lease_client().revoke(lease).await?;
        Ok(())
    }
}

async fn renewal_lost(floor: &EtcdFloor) -> Result<[Ending; 2], LabError> {
    let shop = floor.shop().await?;
    let way = floor.way().await?;
    let first = LockCall::new(&way.url(), &shop.lock).await?;
    let second = floor.lock_call(&shop).await?;
    let failed = Arc::clone(&first.failed_renewals);
    let outage = async || {
        sleep(OUTAGE_AFTER).await;
        way.refuse();
        until("a renewal fails", async || Ok(failed.load(Ordering::Relaxed) > 0)).await?;
        way.admit();
        Ok(())
    };
    let article = two_buy(shop, first, second, outage).await?;

    let shop = floor.shop().await?;
    let way = floor.way().await?;
    let (first, second) = (floor.ours(&shop, way.url()).await?, floor.direct(&shop).await?);
    let outage = async || {
        sleep(OUTAGE_AFTER).await;
        way.refuse();
        sleep(OUTAGE).await;
        way.admit();
        Ok(())
    };
    Ok([article, two_buy(shop, first, second, outage).await?])
}

async fn error_swallowed(floor: &EtcdFloor) -> Result<[Ending; 2], LabError> {
    let shop = floor.shop().await?;
    let way = floor.way().await?;
    let first = floor.lock_call(&shop).await?;
    let second = LockCall::new(&way.url(), &shop.lock).await?;
    way.refuse();
    let article = no_accident(shop, first, second).await?;

    let shop = floor.shop().await?;
    let way = floor.way().await?;
    let (first, second) = (floor.direct(&shop).await?, floor.ours(&shop, way.url()).await?);
    way.refuse();
    Ok([article, no_accident(shop, first, second).await?])
}

async fn unchecked(floor: &EtcdFloor) -> Result<[Ending; 2], LabError> {
    let shop = floor.shop().await?;
    let holder = floor.own_key(&shop).await?;
    let (first, second) = (floor.own_key(&shop).await?, floor.own_key(&shop).await?);
    let lease = first.lease;
    let article = with_a_lost_lease(floor, shop, [holder, first, second], lease).await?;

    let shop = floor.shop().await?;
    let holder = floor.direct(&shop).await?;
    let (first, second) = (floor.direct(&shop).await?, floor.direct(&shop).await?);
    let lease = first.lease;
    let ours = with_a_lost_lease(floor, shop, [holder, first, second], lease).await?;
    Ok([article, ours])
}

/// Two wait behind a holder that buys nothing, and the first of them loses its lease.
async fn with_a_lost_lease<B: Buyer + 'static>(
    floor: &EtcdFloor,
    shop: Shop,
    [mut holder, first, second]: [B; 3],
    lease: i64,
) -> Result<Ending, LabError> {
    let lock = shop.lock.clone();
    holder.lock().await?;
    let first = Waiting::start(first);
    until("the first one waits", async || Ok(floor.count(&lock).await? == 2)).await?;
    floor.end(lease).await?;
    let second = Waiting::start(second);
    until("the second one waits", async || Ok(floor.count(&lock).await? == 2)).await?;
    holder.unlock().await?;
    no_accident(shop, first, second).await
}
