//! The inventory: the operations on the stock.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::Token;
use futures_util::future::BoxFuture;
use redis::{Cmd, FromRedisValue, Value};

use super::error::Effect;
use super::script::{self, Call, Done};
use super::shards::{Shards, slot_of};
use super::stock::{Levels, began};
use super::watermark::{Acknowledged, Watermarks};
use super::{
    Accepted, InventoryError, InventoryOptions, Item, NewSale, Order, Outcome, RedisAccess,
    Replicas, SaleId, Stock, Timestamp,
};

/// The number of connections on which writes wait for replicas.
const REPLICATED_CONNECTIONS: usize = 8;

/// The stock of all items in one Redis (version 7 or later, or Valkey), or of named items in a Redis Cluster.
/// Clones share one connection to each server, which comes back by itself after a failure, and the watermarks
/// of its items.
///
/// Each command takes at most one `response_timeout`; when it must connect first, also one
/// `connect_timeout`, two `response_timeout` for handshake and role, half a second when the connection broke
/// more than once lately, and one `connect_timeout` for the sentinels, all asked at once; a write also the time to wait
/// for [`Replicas`]. A call is one command, or two when Redis has forgotten the script;
/// [`durability`](Self::durability) is two, and [`check`](Self::check) one for each item, all at once. In a
/// Redis Cluster a command may go to up to six nodes, one after the other, and is sent again for half a second while
/// its slot moves or the nodes do not agree about it. The first call there also asks up to eight nodes for the map,
/// almost at once: one `connect_timeout`, one `response_timeout` and half a second.
#[derive(Clone, Debug)]
pub struct Inventory {
    pub(super) shards: Shards,
    /// For writes that wait for replicas. Redis serves nothing else on a connection that waits, so reads and
    /// most other items use other connections. Each is opened when it is first used.
    replicated_connections: Option<(Arc<[Shards; REPLICATED_CONNECTIONS]>, Replicas)>,
    pub(super) watermarks: Arc<Watermarks>,
    pub(super) levels: Arc<Levels>,
    /// Writes the batches instead of the script. Another program may plug it in.
    batch_writer: Option<Arc<dyn BatchWriter>>,
}

/// The arguments of [`Inventory::reduce`], checked: there are orders, not too many, and all are of the item.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// What is sold.
    pub item: &'a Item,
    /// The fencing token, or `None` to check no fence.
    pub token: Option<Token>,
    /// The instance that sells, without control characters.
    pub instance: &'a str,
    /// The orders.
    pub orders: &'a [&'a Order],
}

/// A sale that was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// Its state at that moment.
    pub stock: Stock,
    /// Whether it was started by an earlier call.
    pub is_repeated: bool,
}

/// The seam at which the batches of an [`Inventory`] are written. The service has none, and writes them
/// [by the script](Inventory::reduce_by_script).
pub trait BatchWriter: fmt::Debug + Send + Sync + 'static {
    /// As [`Inventory::reduce`].
    fn reduce<'a>(
        &'a self,
        inventory: &'a Inventory,
        batch: Batch<'a>,
    ) -> BoxFuture<'a, Result<Vec<Outcome>, InventoryError>>;
}

impl Inventory {
    /// The most orders that one batch may have.
    pub const MAX_BATCH: usize = 1000;

    /// The most units that a sale may start with.
    pub const MAX_UNITS: u64 = 1_000_000_000_000;

    /// The inventory in the Redis of `access`, for example a URL. It connects at the first use, so a Redis that
    /// is not running yet is no error. The password appears in no error, no log and no `Debug`.
    ///
    /// # Errors
    /// [`InventoryError::InvalidUrl`] or [`InventoryError::InvalidCertificates`].
    pub fn new(
        access: impl Into<RedisAccess>,
        options: InventoryOptions,
    ) -> Result<Self, InventoryError> {
        let shards = Shards::new(access.into(), options)?;
        Ok(Self {
            shards,
            replicated_connections: None,
            watermarks: Arc::default(),
            levels: Arc::default(),
            batch_writer: None,
        })
    }

    /// The same, with a store that answers now.
    ///
    /// # Errors
    /// As [`new`](Self::new) and [`ping`](Self::ping).
    pub async fn connect(
        access: impl Into<RedisAccess>,
        options: InventoryOptions,
    ) -> Result<Self, InventoryError> {
        let inventory = Self::new(access, options)?;
        inventory.ping().await?;
        Ok(inventory)
    }

    /// The same, with every write acknowledged only when so many replicas have it.
    #[must_use]
    pub fn with_replicas(mut self, replicas: Replicas) -> Self {
        let connection = |_| self.shards.with_longer_timeout(replicas.timeout);
        let connections = || (Arc::new(std::array::from_fn(connection)), replicas);
        self.replicated_connections = (replicas.count > 0).then(connections);
        self
    }

    /// The same, with its batches written by `writer`.
    #[must_use]
    pub fn with_writer(mut self, writer: Arc<dyn BatchWriter>) -> Self {
        self.batch_writer = Some(writer);
        self
    }

    /// The same, with the same watermarks, over a connection of its own: for reads that must not delay others.
    #[must_use]
    pub fn over_another_connection(&self) -> Self {
        Self { shards: self.shards.with_longer_timeout(Duration::ZERO), ..self.clone() }
    }

    /// Where Redis is, without the password.
    pub fn address(&self) -> String {
        self.shards.address()
    }

    /// The replicas that a write waits for, if any.
    pub fn replicas(&self) -> Option<Replicas> {
        self.replicated_connections.as_ref().map(|(_, replicas)| *replicas)
    }

    /// Takes the units of each of `orders`, one after the other, while the stock lasts, or does what else they
    /// [ask](super::Action) for. All must be of `item`. Before that, the holds that are due end.
    /// Returns one outcome for each order, in the same order. The batch is atomic.
    ///
    /// `token` is the fencing token of the lock that the caller holds. The store refuses a token below the
    /// fence; any other raises the fence. With `None` no fence is checked: the call is atomic in Redis, which
    /// is enough if every writer uses it.
    ///
    /// `instance` is recorded with each accepted order, with control characters replaced by `?`.
    ///
    /// # Errors
    /// See [`InventoryError`]; [`InventoryError::InvalidArgument`] for more than
    /// [`MAX_BATCH`](Self::MAX_BATCH) orders, an order of another item, or a revision below 1.
    ///
    /// # Cancel safety
    /// A dropped call may or may not take the orders. A retry with the same orders returns their outcomes and
    /// takes nothing twice.
    pub async fn reduce(
        &self,
        item: &Item,
        token: Option<Token>,
        instance: &str,
        orders: &[impl Borrow<Order>],
    ) -> Result<Vec<Outcome>, InventoryError> {
        if orders.len() > Self::MAX_BATCH {
            return Err(InventoryError::InvalidArgument("a batch has at most 1000 orders"));
        }
        if orders.iter().any(|order| order.borrow().item != *item) {
            return Err(InventoryError::InvalidArgument("all orders of a batch are of one item"));
        }
        if orders.is_empty() {
            return Ok(Vec::new());
        }
        let orders: Vec<&Order> = orders.iter().map(Borrow::borrow).collect();
        let instance = instance.replace(char::is_control, "?");
        let batch = Batch { item, token, instance: &instance, orders: &orders };
        match &self.batch_writer {
            Some(writer) => writer.reduce(self, batch).await,
            None => self.reduce_by_script(batch).await,
        }
    }

    /// [`reduce`](Self::reduce) by the script, for a [`BatchWriter`] that adds to it.
    ///
    /// # Errors
    /// See [`InventoryError`].
    ///
    /// # Cancel safety
    /// As [`reduce`](Self::reduce).
    pub async fn reduce_by_script(&self, batch: Batch<'_>) -> Result<Vec<Outcome>, InventoryError> {
        let Batch { item, orders, .. } = batch;
        let watermark = self.watermarks.of(item);
        let replicated = self.replicated_connections.is_some();
        let done = self.write(&Call::reduce(batch, &watermark, replicated)?).await;
        self.watermarks.note(item, &done);
        let Done { sale, fence, values } = done?;
        let mut values = values.into_iter();
        let has_holds = matches!(values.next(), Some(Value::Int(1)));
        self.watermarks.note_holds(item, has_holds);
        if values.len() != orders.len() {
            return Err(script::not_understood());
        }
        let mut outcomes = Vec::with_capacity(orders.len());
        let mut latest = None;
        for (order, answer) in orders.iter().zip(values) {
            let (outcome, entry) = outcome(order, answer).ok_or_else(script::not_understood)?;
            outcomes.push(outcome);
            let position = |entry: &Option<(u64, _, String)>| entry.as_ref().map(|entry| entry.0);
            let entry = entry.map(|(position, entry)| (position, order, entry));
            if position(&entry) > position(&latest) {
                latest = entry;
            }
        }
        let acknowledged = |(position, order, entry): (u64, &&Order, String)| Acknowledged {
            position,
            key: order.key(),
            entry,
        };
        self.watermarks.raise(item, &watermark, fence, &sale, latest.map(acknowledged));
        Ok(outcomes)
    }

    /// Runs a command over the same connection, for programs that write without the script.
    ///
    /// # Errors
    /// [`InventoryError::ItemRequired`] in a Redis Cluster; [`InventoryError::Unanswered`] if it was sent and may
    /// have been done. See [`InventoryError`] for the rest.
    pub async fn command<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, InventoryError> {
        match &self.shards {
            Shards::One(connection) => connection.query(command, Effect::Write).await,
            Shards::Cluster(_) => Err(InventoryError::ItemRequired),
        }
    }

    /// Starts a sale of `item`: lucky 0, no orders, an empty ledger. The fence stays, or rises to `token`. The sale that runs
    /// may have to be [named](NewSale::replaces). If it is this one already, nothing changes: so it is safe to repeat
    /// the call.
    ///
    /// # Errors
    /// See [`InventoryError`]; [`InventoryError::SaleRefused`], and [`InventoryError::InvalidArgument`] for more than
    /// [`MAX_UNITS`](Self::MAX_UNITS) units or terms that make no sense.
    pub async fn start(
        &self,
        item: &Item,
        token: Option<Token>,
        sale: impl Into<NewSale>,
    ) -> Result<Started, InventoryError> {
        let new: NewSale = sale.into();
        let initial = i64::try_from(new.units).ok().filter(|_| new.units <= Self::MAX_UNITS);
        let initial = initial.ok_or(InventoryError::InvalidArgument(
            "a sale starts with at most 1,000,000,000,000 units",
        ))?;
        new.terms.check().map_err(InventoryError::InvalidArgument)?;
        let Done { fence, sale, values } =
            self.change("start", item, token, &new.arguments()).await?;
        self.watermarks.note(item, &Ok(()));
        self.watermarks.note_holds(item, new.terms.hold_seconds.is_some());
        let (id, terms) = (Some(new.id.as_str().to_owned()), new.terms);
        let sale = began(&sale);
        let stock = Stock { stock: initial, initial, fence, id, terms, sale, ..Stock::default() };
        Ok(Started { stock, is_repeated: !values.is_empty() })
    }

    /// Deletes the orders and the ledger of a sale that was replaced.
    ///
    /// # Errors
    /// See [`InventoryError`]; [`InventoryError::SaleRefused`].
    pub async fn forget(&self, item: &Item, id: &SaleId) -> Result<(), InventoryError> {
        let call = Call::write("forget", item, None, &self.watermarks.of(item))?.arg(id.as_str());
        self.write(&call).await.map(drop)
    }

    /// Accepts the present data of `item` after a roll-back: for every inventory it becomes a later sale with
    /// the present orders. Other acknowledged orders are given up. If all data is gone, the item has no sale
    /// any more. Only an operator can know that no better copy of the data exists.
    ///
    /// # Errors
    /// See [`InventoryError`]; [`InventoryError::UnknownItem`] if there is no stock and no instance misses it.
    pub async fn recover_store(&self, item: &Item, token: Token) -> Result<(), InventoryError> {
        self.change("recover-store", item, Some(token), &[]).await?;
        self.watermarks.note(item, &Ok(()));
        Ok(())
    }

    /// Replaces the fence of `item` by `token`, which may be of another etcd cluster. From then on every token of
    /// the old cluster is refused. Only an operator can know that the old cluster is not used any more.
    ///
    /// # Errors
    /// See [`InventoryError`]; [`InventoryError::StaleToken`] if the fence is of the same cluster and larger:
    /// a fence is never lowered. [`InventoryError::Damaged`] if the fence cannot be parsed: stop all instances
    /// and delete its key.
    pub async fn recover_cluster(&self, item: &Item, token: Token) -> Result<(), InventoryError> {
        // this mends no roll-back
        self.change("recover-cluster", item, Some(token), &[]).await.map(drop)
    }

    /// Runs an operation that sells nothing.
    async fn change(
        &self,
        operation: &str,
        item: &Item,
        token: Option<Token>,
        arguments: &[String],
    ) -> Result<Done, InventoryError> {
        let watermark = self.watermarks.of(item);
        let call = Call::write(operation, item, token, &watermark)?.arg(arguments);
        let done = self.write(&call).await;
        if matches!(done, Err(InventoryError::RolledBack { .. })) {
            self.watermarks.note(item, &done);
        }
        let done = done?;
        self.watermarks.raise(item, &watermark, done.fence, &done.sale, None);
        Ok(done)
    }

    /// Runs a call of the script that writes. One with the effect of a read waits for no replicas.
    async fn write(&self, call: &Call<'_>) -> Result<Done, InventoryError> {
        let (shards, replicas) = match (call.effect, &self.replicated_connections) {
            (Effect::Write, Some((connections, replicas))) => {
                // always the same one for an item
                let slot = slot_of(call.item.name().unwrap_or_default());
                (&connections[usize::from(slot) % REPLICATED_CONNECTIONS], Some(*replicas))
            }
            _ => (&self.shards, None),
        };
        let (answer, waited) = call.send(shards, replicas).await?;
        // a refusal wrote nothing
        let done = script::done(answer, call.token)?;
        if let (Some(replicas), Some(waited)) = (replicas, waited) {
            replicas.check(waited)?;
        }
        Ok(done)
    }

    /// Whether the default item is refused with [`InventoryError::ItemRequired`]: in a Redis Cluster.
    pub fn has_named_items_only(&self) -> bool {
        self.shards.is_cluster()
    }

    /// Whether a batch of `item` under `token` could be executed. Writes nothing.
    pub(super) async fn probe(
        &self,
        item: &Item,
        token: Option<Token>,
    ) -> Result<(), InventoryError> {
        let watermark = self.watermarks.of(item);
        let probed = self.write(&Call::probe(item, token, &watermark)?).await;
        self.watermarks.note(item, &probed);
        if let Err(InventoryError::UnknownItem) = probed {
            self.levels.note(item, None);
        }
        let answer = redis::from_redis_value(Value::Array(probed?.values));
        let [holds, stock, lucky]: [i64; 3] = answer.map_err(|_| script::not_understood())?;
        self.watermarks.note_holds(item, holds == 1);
        self.levels.note(item, Some((stock, lucky)));
        Ok(())
    }
}

/// The outcome of `order`, and the position and the text of the entry of the ledger that the answer acknowledges.
fn outcome(order: &Order, answer: Value) -> Option<(Outcome, Option<(u64, String)>)> {
    let accepted = |record: String| {
        let accepted = Accepted::from_record(&order.key(), &record)?;
        let entry = (accepted.position, record);
        Some((accepted, Some(entry)))
    };
    let mut words = match answer {
        Value::BulkString(text) => {
            let (accepted, entry) = accepted(String::from_utf8(text).ok()?)?;
            return Some((Outcome::Reserved(accepted), entry));
        }
        Value::Int(left) => {
            return Some((Outcome::SoldOut { remaining: u64::try_from(left).ok()? }, None));
        }
        Value::Nil => return Some((Outcome::Conflict, None)),
        // a status, and what belongs to it
        answer => redis::from_redis_value::<Vec<String>>(answer).ok()?.into_iter(),
    };
    let status = words.next()?;
    let text = words.next().unwrap_or_default();
    let number = |text: Option<String>| text?.parse().ok();
    let time = || text.parse().ok().map(Timestamp);
    let outcome = match status.as_str() {
        "again" => {
            let (accepted, entry) = accepted(text)?;
            return Some((Outcome::Repeated(accepted), entry));
        }
        "changed" | "ended" if text.starts_with('\n') => {
            let change = Accepted::from_change(&text)?;
            let entry = Some((change.position, text));
            let outcome = if status == "ended" {
                Outcome::Over { event: change.event, time: change.time? }
            } else {
                Outcome::Changed { change, is_repeated: words.next().is_some() }
            };
            return Some((outcome, entry));
        }
        "final" => Outcome::Final,
        "none" => Outcome::Unknown,
        "user-required" => Outcome::UserRequired,
        "limit" => {
            let (limit, has) = (number(words.next())?, number(words.next())?);
            Outcome::LimitReached { is_per_user: text == "per_user", limit, has }
        }
        "not-started" => {
            let within = Duration::from_micros(number(words.next())?);
            Outcome::NotStarted { at: time()?, within }
        }
        "ended" => Outcome::SaleEnded { at: time()? },
        "damaged" => Outcome::Damaged { what: text },
        _ => return None,
    };
    Some((outcome, None))
}
