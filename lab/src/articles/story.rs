//! A story: two or three clients of a lock, one unit, and an accident. The same code runs it under the article's lock
//! and under ours.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use fenced_lock::{Session, SessionOptions, Token};
use flash_sale::inventory::{Inventory, InventoryOptions};
use testkit::server::START_TIMEOUT;
use testkit::wait::until;
use testkit::{LOCK_NAME, PrivateRedis, Proxy, RedisOptions, ReplicatedRedis};
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::redis::connect;
use super::shop::{Ending, Shop};
use super::{Article, Part, Role, database};
use crate::clients::{Client, clients_of, proxies_to};
use crate::locks::{AnyLock, LockMode, Servers};

/// How long to wait for a buyer who may never get the lock: several TTLs.
const PATIENCE: Duration = Duration::from_secs(5);

/// The TTL of our sessions that end during a story. etcd raises it to 2 s.
pub(super) const TTL: Duration = Duration::from_secs(1);

/// A TTL that outlasts a story.
pub(super) const LONG: Duration = Duration::from_secs(30);

/// When an outage begins after the grant of a lease, and how long it lasts at least. It ends before the lease does.
const OUTAGE_AFTER: Duration = Duration::from_millis(1300);
const OUTAGE: Duration = Duration::from_millis(400);

/// The accident. It happens while the first client has the lock. "It" means the first client, unless another one is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accident {
    TimePasses,
    /// Its process is paused.
    Freeze,
    /// Its connections die.
    Cut,
    /// It cannot reach the servers for a moment, when a third of its lease is over.
    Outage,
    /// The second client cannot reach the servers at all.
    Unreachable,
    /// Its row expires, and the article's sweeper deletes the row.
    Sweep,
    /// An earlier holder, which was paused until it lost the lock, releases it.
    LateRelease,
    /// A replica without its grant takes over.
    FailOver,
    /// The clock of the node that both majorities share is set forward.
    ClockJump,
    /// The node of [`Self::ClockJump`] restarts without its data.
    Restart,
    /// A waiter between the two dies.
    WaiterDies,
    /// It dies while it has the lock, and the second client wants to buy.
    HolderDies,
    /// While it waits, its process is paused until its lease is over.
    WaiterLosesLease,
}

/// A client and its connections to the servers. Its process counts as paused while its proxies hold everything up.
struct Actor {
    client: Arc<Mutex<Box<dyn Client>>>,
    /// The answer of the lock, if the client has asked for it already.
    granted: Option<AbortOnDropHandle<Result<Option<Token>>>>,
    proxies: Vec<Proxy>,
}

impl Actor {
    /// Asks for the lock, and waits until this many claims are in the queue.
    async fn ask(&mut self, looking: &Self, queue: usize) -> Result<()> {
        let client = Arc::clone(&self.client);
        let granted = tokio::spawn(async move { client.lock().await.lock().await });
        self.granted = Some(AbortOnDropHandle::new(granted));
        looking.sees(queue).await
    }

    /// Waits until this many claims are in the queue.
    async fn sees(&self, claims: usize) -> Result<()> {
        let is_so = async || Ok(self.client.lock().await.queue_length().await? == claims);
        until("the queue is as long as it should be", START_TIMEOUT, is_so).await
    }

    async fn lock(&mut self) -> Result<Option<Token>> {
        match self.granted.take() {
            Some(granted) => granted.await?,
            None => self.client.lock().await.lock().await,
        }
    }

    async fn unlock(&self) -> Result<()> {
        self.client.lock().await.unlock().await
    }

    /// Applies this change to all connections of the client.
    fn connections(&self, change: fn(&Proxy)) {
        self.proxies.iter().for_each(change);
    }
}

/// Runs one story with these servers of a lock and this store of the stock, under the article's lock if there is one, else
/// under ours.
pub(super) async fn run(
    servers: &mut Servers,
    stock: &PrivateRedis,
    accident: Accident,
    article: Option<Article>,
) -> Result<Ending> {
    // one of three units is sold before the failover, so that the fence knows the tokens' cluster
    let (units, pair) = match accident {
        Accident::FailOver => {
            let options = RedisOptions { volatile: true, ..RedisOptions::default() };
            (3, Some(ReplicatedRedis::start_in(&servers.dir, options).await?))
        }
        _ => (1, None),
    };
    let shop = Shop::open(stock, units).await?;
    Box::pin(Story { servers, stock, accident, article, shop, pair }.run()).await
}

struct Story<'a> {
    servers: &'a mut Servers,
    stock: &'a PrivateRedis,
    accident: Accident,
    /// The article's lock; `None` for ours.
    article: Option<Article>,
    shop: Shop,
    /// The servers that replace the lock's in a failover.
    pair: Option<ReplicatedRedis>,
}

impl Story<'_> {
    async fn run(mut self) -> Result<Ending> {
        let mut early = None;
        if matches!(self.accident, Accident::LateRelease | Accident::WaiterLosesLease) {
            early.insert(self.actor(Role::Early).await?).lock().await?;
        }
        let (mut first, mut second) =
            (self.actor(Role::First).await?, self.actor(Role::Second).await?);
        let mut middle = None;
        match (self.accident, &early) {
            (Accident::LateRelease, Some(early)) => {
                early.connections(Proxy::freeze);
                self.sweep().await?;
            }
            (Accident::Unreachable, _) => second.connections(Proxy::refuse),
            (Accident::FailOver, _) => {
                let token = first.lock().await?;
                self.shop.buy(token).await?;
                first.unlock().await?;
            }
            (Accident::WaiterDies, _) => {
                let looking = self.actor(Role::Middle).await?;
                first.ask(&looking, 1).await?;
                middle.insert(self.actor(Role::Middle).await?).ask(&looking, 2).await?;
                second.ask(&looking, 3).await?;
            }
            (Accident::WaiterLosesLease, Some(early)) => {
                first.ask(early, 2).await?;
                first.connections(Proxy::freeze);
                early.sees(1).await?;
                second.ask(early, 2).await?;
                first.connections(Proxy::release);
                early.unlock().await?;
            }
            _ => {}
        }
        if let Some(pair) = &self.pair {
            pair.hold_writes_back().await?;
        }
        // a buyer without the lock does not buy
        let held = first.lock().await;
        if self.accident == Accident::HolderDies {
            held?;
            first.connections(Proxy::freeze);
            // if the second client is not granted the lock, the servers must show the flaw of the story; otherwise this is an
            // error
            match timeout(self.patience(), second.lock()).await {
                Ok(token) => self.shop.buy(token?).await?,
                Err(_) => {
                    self.shop.ending.stuck = Some(second.client.lock().await.why_locked().await?);
                }
            }
            return Ok(self.shop.ending);
        }
        let seen = self.shop.read().await?;
        drop(middle);
        self.cause_accident(&first, early).await?;
        let mut waiting = pin!(second.lock());
        let mut granted = timeout(self.patience(), &mut waiting).await;
        if let Ok(Ok(token)) = granted {
            self.shop.ending.two_held = held.is_ok();
            self.shop.buy(token).await?;
        }
        if let Ok(token) = held {
            self.shop.write(seen, token).await?;
        }
        if granted.is_err() {
            // an error means that the first client never had the lock
            drop(first.unlock().await);
            granted = timeout(START_TIMEOUT, waiting).await;
        }
        if let Ok(Ok(token)) = granted {
            self.shop.buy(token).await?;
        }
        Ok(self.shop.ending)
    }

    /// Causes the accident while the first client has the lock.
    async fn cause_accident(&mut self, first: &Actor, early: Option<Actor>) -> Result<()> {
        match self.accident {
            Accident::Freeze => first.connections(Proxy::freeze),
            Accident::Cut => first.connections(Proxy::cut),
            Accident::Outage => {
                sleep(OUTAGE_AFTER).await;
                first.connections(Proxy::refuse);
                sleep(OUTAGE).await;
                let fails = async || anyhow::Ok(first.client.lock().await.has_noticed_outage());
                until("a renewal fails", START_TIMEOUT, fails).await?;
                first.connections(Proxy::accept);
            }
            Accident::Sweep => self.sweep().await?,
            Accident::LateRelease => {
                if let Some(early) = early {
                    early.connections(Proxy::release);
                    // an error means that the lock was lost
                    drop(early.unlock().await);
                }
            }
            Accident::FailOver => {
                if let Some(pair) = &self.pair {
                    pair.fail_over().await?;
                }
            }
            // expire the key at once, which is the only effect of setting the clock forward
            Accident::ClockJump => {
                let node = &self.servers.addresses()[1];
                let mut redis = connect(node).await?;
                let mut expire = redis::cmd("PEXPIREAT");
                expire.arg(&self.shop.lock).arg(1).query_async::<()>(&mut redis).await?;
            }
            Accident::Restart => {
                let node = &mut self.servers.members[1];
                let mut redis = connect(&node.address()).await?;
                redis::cmd("FLUSHALL").query_async::<()>(&mut redis).await?;
                node.restart().await?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Waits until the row of the article's lock has expired, and deletes it, as a scheduler does sooner or later.
    async fn sweep(&self) -> Result<()> {
        if self.article.is_some() && self.servers.lock == LockMode::Postgres {
            database::sweep(&self.servers.addresses()[0], &self.shop.lock).await?;
        }
        Ok(())
    }

    /// A client in this role, with a proxy to each server.
    async fn actor(&self, role: Role) -> Result<Actor> {
        let at = match &self.pair {
            None => self.servers.addresses(),
            // this client connects to the replica, once the replica is the primary
            Some(pair) if self.article.is_some() && role == Role::Second => {
                vec![pair.replica.url()]
            }
            Some(pair) => vec![pair.url()],
        };
        let (proxies, at) = proxies_to(&at).await?;
        if role == Role::First && self.servers.lock == LockMode::Redlock {
            // the other two nodes are its majority
            proxies[2].refuse();
        }
        let (accident, lock) = (self.accident, &*self.shop.lock);
        let client = match self.article {
            Some(article) => Part { article, role, accident, at, lock }.open().await?,
            None => self.ours(&at, role).await?,
        };
        Ok(Actor { client: Arc::new(Mutex::new(client)), granted: None, proxies })
    }

    /// How long to wait for the second client: long if the first one's lease ends and the lock is granted again.
    fn patience(&self) -> Duration {
        match (self.accident, self.article) {
            (Accident::Freeze, _) | (Accident::HolderDies, None) => START_TIMEOUT,
            _ => PATIENCE,
        }
    }

    /// A client of `fenced-lock`. A lock without tokens gets those of the stock.
    async fn ours(&self, at: &[String], role: Role) -> Result<Box<dyn Client>> {
        let url = self.stock.url();
        let stock = Inventory::new(&*url, InventoryOptions::default())?;
        let backend = AnyLock::at(self.servers.lock, at)?.fenced_by(None, &stock, LOCK_NAME)?;
        // no other lease may end, even on a busy machine
        let ends = match self.accident {
            Accident::Freeze
            | Accident::HolderDies
            | Accident::Outage
            | Accident::WaiterLosesLease => role == Role::First,
            Accident::LateRelease => role == Role::Early,
            Accident::WaiterDies => role == Role::Middle,
            _ => false,
        };
        let options = SessionOptions::new(if ends { TTL } else { LONG });
        clients_of(Session::open(backend, options).await?)(&self.shop.lock)
    }
}
