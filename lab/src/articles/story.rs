//! What happens at a lock: two or three buyers, one unit, and an accident.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fenced_lock::{Backend, Guard, Mutex, Session, SessionOptions, Token};
use flash_sale::inventory::{Item, Keys};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Script};
use serde::Serialize;
use testkit::server::START_TIMEOUT;
use testkit::{PrivateRedis, Proxy};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::error::LabError;
use crate::wait;
pub(super) use demo::locks::proxy_to;

/// The name of the default item's lock.
pub(super) const LOCK: &str = "stock-lock";

/// How often something is looked at that an article polls.
pub(super) const POLL: Duration = Duration::from_millis(10);

/// One process that buys under a lock.
pub(super) trait Buyer: Send {
    /// Takes the lock, waiting as long as another one has it. Returns the token of the grant, if it has one.
    fn lock(&mut self) -> impl Future<Output = Result<Option<Token>, LabError>> + Send;

    /// Gives the lock back, as far as this buyer knows.
    fn unlock(&mut self) -> impl Future<Output = Result<(), LabError>> + Send;
}

/// How long a buyer is awaited, whether it should be granted the lock or not: several TTLs.
const PATIENCE: Duration = Duration::from_secs(5);

/// The TTL of our sessions: they are renewed, on a busy machine as well.
pub(super) const TTL: Duration = Duration::from_secs(1);

/// How a story ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ending {
    /// How many units there were.
    pub stock: u64,
    /// How many were sold.
    pub sold: u64,
    /// How many stale writes the fence of the stock refused.
    pub refused: u64,
    /// Whether a second buyer was granted the lock before the first one gave it back.
    pub two_held: bool,
    /// Why nobody can buy any more.
    pub stuck: Option<&'static str>,
}

impl Ending {
    /// Whether the sale went wrong.
    pub fn is_wrong(&self) -> bool {
        self.sold > self.stock || self.stuck.is_some()
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} sold", self.sold, self.stock)?;
        if let Some(why) = self.stuck {
            return write!(f, ", and nobody can buy: {why}");
        }
        match (self.two_held, self.refused) {
            (false, 0) => Ok(()),
            (false, _) => f.write_str(", the stale write is refused"),
            (true, 0) => f.write_str(", two holders at once"),
            (true, _) => f.write_str(": two holders at once, and the fence refuses one"),
        }
    }
}

/// One item, sold by GET and SET. A buyer with a token sends it along, and the stock refuses a smaller one, and one of
/// another cluster.
pub(super) struct Shop {
    redis: MultiplexedConnection,
    keys: Keys,
    /// The name of the item's lock.
    pub(super) lock: String,
    ending: Ending,
}

/// KEYS: stock, fence. ARGV: the stock to write, the cluster and the revision of the token.
const FENCED_SET: &str = "#!lua
local cluster, revision = string.match(redis.call('GET', KEYS[2]) or '', '^(%x+) (%d+)$')
if cluster and cluster ~= ARGV[2] then return 'another cluster' end
if cluster and tonumber(revision) > tonumber(ARGV[3]) then return 'stale' end
redis.call('SET', KEYS[2], ARGV[2] .. ' ' .. ARGV[3])
redis.call('SET', KEYS[1], ARGV[1])
return 'written'";

/// Why a token of another cluster buys nothing.
const OPERATOR: &str = "the fence refuses the new cluster until an operator decides";

impl Shop {
    /// A new item with so many units.
    pub(super) async fn open(server: &PrivateRedis, stock: u64) -> Result<Self, LabError> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("item-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let item: Item = name.parse().expect("letters, a hyphen and digits are an item's name");
        let mut redis = connect(&server.url()).await?;
        let keys = Keys::of(&item);
        redis::cmd("SET").arg(&keys.stock).arg(stock).query_async::<()>(&mut redis).await?;
        let ending = Ending { stock, ..Ending::default() };
        Ok(Self { redis, keys, lock: format!("{LOCK}:{name}"), ending })
    }

    /// How many units a buyer sees.
    async fn read(&mut self) -> Result<u64, LabError> {
        Ok(redis::cmd("GET").arg(&self.keys.stock).query_async(&mut self.redis).await?)
    }

    /// Sells one of the units that the buyer saw.
    async fn write(&mut self, seen: u64, token: Option<Token>) -> Result<(), LabError> {
        let Some(left) = seen.checked_sub(1) else { return Ok(()) };
        let answer = match token {
            None => {
                let mut set = redis::cmd("SET");
                set.arg(&self.keys.stock).arg(left).query_async::<()>(&mut self.redis).await?;
                "written".to_owned()
            }
            Some(token) => {
                let script = Script::new(FENCED_SET);
                let mut set = script.key(&self.keys.stock);
                set.key(&self.keys.fence).arg(left);
                set.arg(token.cluster().to_string()).arg(token.revision());
                set.invoke_async::<String>(&mut self.redis).await?
            }
        };
        match &*answer {
            "written" => self.ending.sold += 1,
            "stale" => self.ending.refused += 1,
            // and so is each later buyer there
            _ => self.ending.stuck = Some(OPERATOR),
        }
        Ok(())
    }

    async fn buy(&mut self, token: Option<Token>) -> Result<(), LabError> {
        let seen = self.read().await?;
        self.write(seen, token).await
    }

    /// A buyer buys before anything happens.
    pub(super) async fn sell_one(&mut self, buyer: &mut impl Buyer) -> Result<(), LabError> {
        let token = buyer.lock().await?;
        self.buy(token).await?;
        buyer.unlock().await
    }
}

/// The first buyer takes the lock and sees the stock. An accident happens. The second one buys as soon as the lock is
/// granted, for which it waits 5 s. Then the first one goes on with what it saw, and the second one buys what is left.
pub(super) async fn two_buy(
    mut shop: Shop,
    mut first: impl Buyer,
    mut second: impl Buyer,
    accident: impl AsyncFnOnce() -> Result<(), LabError>,
) -> Result<Ending, LabError> {
    // a buyer without the lock does not buy
    let held = first.lock().await;
    let seen = shop.read().await?;
    accident().await?;
    let mut waiting = Box::pin(second.lock());
    let mut granted = timeout(PATIENCE, &mut waiting).await;
    if let Ok(Ok(token)) = granted {
        shop.ending.two_held = held.is_ok();
        shop.buy(token).await?;
    }
    if let Ok(token) = held {
        shop.write(seen, token).await?;
    }
    if granted.is_err() {
        // an error: it never had it
        drop(first.unlock().await);
        granted = timeout(START_TIMEOUT, waiting).await;
    }
    if let Ok(Ok(token)) = granted {
        shop.buy(token).await?;
    }
    Ok(shop.ending)
}

/// After the holder has died, or seems to have: another one tries to buy, for 5 s. If it is not granted the lock, `why`
/// looks at the servers, and says why; an error if that is not the flaw of the story.
pub(super) async fn next_buys<B: Buyer>(
    mut shop: Shop,
    mut next: B,
    why: impl AsyncFnOnce(&mut B) -> Result<&'static str, LabError>,
) -> Result<Ending, LabError> {
    match timeout(PATIENCE, next.lock()).await {
        Ok(token) => shop.buy(token?).await?,
        Err(_) => shop.ending.stuck = Some(why(&mut next).await?),
    }
    Ok(shop.ending)
}

/// [`next_buys`] under ours, where nothing should keep it from the lock.
pub(super) async fn ours_buys(shop: Shop, next: Ours) -> Result<Ending, LabError> {
    next_buys(shop, next, async |_| Ok("locked")).await
}

/// The holder dies, as far as the others can see, and the next one buys under ours.
pub(super) async fn ours_dies(
    shop: Shop,
    (mut holder, proxy): (Ours, Proxy),
    next: Ours,
) -> Result<Ending, LabError> {
    holder.lock().await?;
    proxy.freeze();
    ours_buys(shop, next).await
}

/// A holder under ours is paused past its lease, and while the first of the others holds the lock, it gives back what
/// is not its own any more.
pub(super) async fn ours_gives_back_late(
    shop: Shop,
    (mut early, proxy): (Ours, Proxy),
    [first, second]: [Ours; 2],
) -> Result<Ending, LabError> {
    early.lock().await?;
    proxy.freeze();
    let release = async || {
        proxy.release();
        // an error: the lock was lost
        drop(early.unlock().await);
        Ok(())
    };
    two_buy(shop, first, second, release).await
}

/// A buyer that waits for the lock already.
pub(super) struct Waiting<B> {
    task: AbortOnDropHandle<(Result<Option<Token>, LabError>, B)>,
    /// Once its wait has ended.
    buyer: Option<B>,
}

impl<B: Buyer + 'static> Waiting<B> {
    pub(super) fn start(mut buyer: B) -> Self {
        let task = tokio::spawn(async move { (buyer.lock().await, buyer) });
        Self { task: AbortOnDropHandle::new(task), buyer: None }
    }

    /// Ends the buyer.
    pub(super) async fn end(self) {
        self.task.abort();
        // an error says that it was ended
        drop(self.task.await);
    }
}

impl<B: Buyer + 'static> Buyer for Waiting<B> {
    async fn lock(&mut self) -> Result<Option<Token>, LabError> {
        let ended = (&mut self.task).await.map_err(std::io::Error::from);
        let (granted, buyer) = ended.map_err(LabError::system("a buyer ended early"))?;
        self.buyer = Some(buyer);
        granted
    }

    async fn unlock(&mut self) -> Result<(), LabError> {
        match &mut self.buyer {
            Some(buyer) => buyer.unlock().await,
            None => Ok(()),
        }
    }
}

/// A buyer under a lock of `fenced-lock`.
pub(super) struct Ours {
    mutex: Mutex,
    guard: Option<Guard>,
    /// The session's lease.
    pub(super) lease: i64,
}

impl Ours {
    pub(super) async fn open(
        backend: impl Backend<Token = Token>,
        lock: &str,
        ttl: Duration,
    ) -> Result<Self, LabError> {
        let session = Session::open(Arc::new(backend), SessionOptions::new(ttl)).await?;
        Ok(Self { mutex: session.mutex(lock)?, guard: None, lease: session.lease().id })
    }

    /// How many claims are in the queue.
    pub(super) async fn queue_length(&self) -> Result<usize, LabError> {
        Ok(self.mutex.queue().await?.len())
    }
}

impl Buyer for Ours {
    async fn lock(&mut self) -> Result<Option<Token>, LabError> {
        let guard = self.guard.insert(self.mutex.lock().await?);
        Ok(Some(guard.token()))
    }

    async fn unlock(&mut self) -> Result<(), LabError> {
        if let Some(guard) = self.guard.take() {
            guard.unlock().await?;
        }
        Ok(())
    }
}

/// A connection of one buyer.
pub(super) async fn connect(url: &str) -> Result<MultiplexedConnection, LabError> {
    let patient = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(START_TIMEOUT))
        .set_response_timeout(Some(START_TIMEOUT));
    let client = redis::Client::open(url)?;
    Ok(client.get_multiplexed_async_connection_with_config(&patient).await?)
}

/// Waits until the condition is true, as long as for a server.
pub(super) async fn until(
    what: &'static str,
    condition: impl AsyncFnMut() -> Result<bool, LabError>,
) -> Result<(), LabError> {
    wait::until(what, START_TIMEOUT, condition).await
}

/// [`two_buy`] without an accident.
pub(super) async fn no_accident(
    shop: Shop,
    first: impl Buyer,
    second: impl Buyer,
) -> Result<Ending, LabError> {
    two_buy(shop, first, second, async || Ok(())).await
}

/// An error if what a story needs was not so.
pub(super) fn need(what: &'static str, is_so: bool) -> Result<(), LabError> {
    if is_so { Ok(()) } else { Err(LabError::NotAsTold(what)) }
}
