//! The lock on ZooKeeper.

use std::time::Duration;

use fenced_lock::{LockError, Token, ZooKeeperBackend, ZooKeeperOptions};
use testkit::zookeeper::ZooKeeperOptions as Server;
use testkit::{PrivateRedis, PrivateZooKeeper, Proxy, RedisOptions};
use zookeeper_client::{Acls, Client, CreateMode};

use super::story::{Buyer, Ending, Ours, Shop, TTL, Waiting, proxy_to, two_buy, until};
use super::{Flaw, Floor};
use crate::error::LabError;

/// How long a silent session lives; the articles have 5 to 30 s.
const SESSION: Duration = Duration::from_millis(600);

/// The prefix of the nodes in a lock's node.
const PREFIX: &str = "lock-";

/// One ephemeral sequential node for each client; the first one has the lock, and each other one watches its predecessor:
/// "ZK实现分布式锁过程" (the course of a lock on `ZooKeeper`), whose clients have the lock when they are notified, and "Zookeeper
/// 实现分布式锁" with its `CountDownLatch`. Nobody looks at the state of the session.
struct SequentialNode {
    client: Client,
    dir: String,
    node: Option<String>,
}

impl SequentialNode {
    async fn new(address: &str, lock: &str) -> Result<Self, LabError> {
        let client = Client::connector().with_session_timeout(SESSION).connect(address).await?;
        let dir = dir(lock);
        client.mkdir(&dir, &CreateMode::Persistent.with_acls(Acls::anyone_all())).await?;
        Ok(Self { client, dir, node: None })
    }
}

impl Buyer for SequentialNode {
    async fn lock(&mut self) -> Result<Option<Token>, LabError> {
        let ephemeral = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let path = format!("{}/{PREFIX}", self.dir);
        let (_, sequence) = self.client.create(&path, b"", &ephemeral).await?;
        let node = format!("{PREFIX}{sequence}");
        self.node = Some(node.clone());
        let mut nodes = self.client.list_children(&self.dir).await?;
        nodes.sort();
        let before = nodes.into_iter().rfind(|other| *other < node);
        if let Some(before) = before {
            let before = format!("{}/{before}", self.dir);
            let (stat, watcher) = self.client.check_and_watch_stat(&before).await?;
            if stat.is_some() {
                watcher.changed().await;
            }
        }
        Ok(None)
    }

    async fn unlock(&mut self) -> Result<(), LabError> {
        if let Some(node) = self.node.take() {
            self.client.delete(&format!("{}/{node}", self.dir), None).await?;
        }
        Ok(())
    }
}

/// The node of a lock.
fn dir(lock: &str) -> String {
    format!("/articles/{lock}")
}

/// The servers: ZooKeeper, and the stock's Redis.
pub(super) struct ZooKeeperFloor {
    shop: PrivateRedis,
    lock: PrivateZooKeeper,
}

impl Floor for ZooKeeperFloor {
    const NAME: &str = "ZooKeeper";

    const FLAWS: &[Flaw<Self>] = &[
        Flaw {
            lock: "zookeeper",
            what: "a waiter dies: the one behind it is notified, and counts that as the lock",
            story: |floor| Box::pin(waiter_died(floor)),
        },
        Flaw {
            lock: "zookeeper",
            what: "the session is lost, and the holder is not told",
            story: |floor| Box::pin(session_lost(floor)),
        },
    ];

    fn is_installed() -> bool {
        PrivateZooKeeper::is_installed()
    }

    async fn start() -> Result<Self, LabError> {
        let volatile = RedisOptions { volatile: true, ..RedisOptions::default() };
        let shop = PrivateRedis::start(volatile).await?;
        Ok(Self { shop, lock: PrivateZooKeeper::start(Server::default()).await? })
    }

    async fn stop(self) -> std::io::Result<()> {
        self.shop.stop().await?;
        self.lock.stop().await
    }
}

impl ZooKeeperFloor {
    async fn shop(&self) -> Result<Shop, LabError> {
        Shop::open(&self.shop, 1).await
    }

    async fn article(&self, shop: &Shop) -> Result<SequentialNode, LabError> {
        SequentialNode::new(&self.lock.address(), &shop.lock).await
    }

    async fn ours(&self, shop: &Shop, address: &str) -> Result<Ours, LabError> {
        let options = ZooKeeperOptions::new(address);
        let backend = ZooKeeperBackend::new(options).map_err(LockError::from)?;
        Ours::open(backend, &shop.lock, TTL).await
    }

    async fn direct(&self, shop: &Shop) -> Result<Ours, LabError> {
        self.ours(shop, &self.lock.address()).await
    }

    /// The way of a client whose process can be paused, and its address.
    async fn way(&self) -> Result<(Proxy, String), LabError> {
        let proxy = proxy_to(self.lock.port()).await?;
        let address = format!("127.0.0.1:{}", proxy.port());
        Ok((proxy, address))
    }
}

async fn waiter_died(floor: &ZooKeeperFloor) -> Result<[Ending; 2], LabError> {
    let shop = floor.shop().await?;
    let first = floor.article(&shop).await?;
    let (middle, last) = (floor.article(&shop).await?, floor.article(&shop).await?);
    let looking = floor.article(&shop).await?;
    let dir = dir(&shop.lock);
    let count = async || Ok(looking.client.list_children(&dir).await?.len());
    let article = with_a_dying_waiter(shop, [first, middle, last], count).await?;

    let shop = floor.shop().await?;
    let first = floor.direct(&shop).await?;
    let (middle, last) = (floor.direct(&shop).await?, floor.direct(&shop).await?);
    let looking = floor.direct(&shop).await?;
    let count = async || looking.queue_length().await;
    Ok([article, with_a_dying_waiter(shop, [first, middle, last], count).await?])
}

/// Two buy, of whom the second waits behind a waiter that dies.
async fn with_a_dying_waiter<B: Buyer + 'static>(
    shop: Shop,
    [first, middle, last]: [B; 3],
    count: impl AsyncFn() -> Result<usize, LabError>,
) -> Result<Ending, LabError> {
    let first = Waiting::start(first);
    until("the first one is there", async || Ok(count().await? == 1)).await?;
    let middle = Waiting::start(middle);
    until("the second one waits", async || Ok(count().await? == 2)).await?;
    let last = Waiting::start(last);
    until("the third one waits", async || Ok(count().await? == 3)).await?;
    let die = async || {
        middle.end().await;
        Ok(())
    };
    two_buy(shop, first, last, die).await
}

async fn session_lost(floor: &ZooKeeperFloor) -> Result<[Ending; 2], LabError> {
    let shop = floor.shop().await?;
    let (proxy, address) = floor.way().await?;
    let first = SequentialNode::new(&address, &shop.lock).await?;
    let second = floor.article(&shop).await?;
    let freeze = async || {
        proxy.freeze();
        Ok(())
    };
    let article = two_buy(shop, first, second, freeze).await?;

    let shop = floor.shop().await?;
    let (proxy, address) = floor.way().await?;
    let (first, second) = (floor.ours(&shop, &address).await?, floor.direct(&shop).await?);
    let freeze = async || {
        proxy.freeze();
        Ok(())
    };
    Ok([article, two_buy(shop, first, second, freeze).await?])
}
