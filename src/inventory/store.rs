//! The inventory and its writes.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::Token;
use futures_util::future::BoxFuture;
use redis::{Cmd, FromRedisValue, Value};

use super::error::Effect;
use super::order::own_writer;
use super::read::{State, Text, state};
use super::script::{self, Call, Done};
use super::shards::{Shards, slot_of};
use super::stock::began;
use super::watermark::{Acknowledged, Watermarks};
use super::{
    Answer, Attempt, ChangeCall, Entry, InventoryError, InventoryOptions, Item, NewSale, Order,
    OtherEntry, Outcome, RedisAccess, Replicas, SaleId, Stock, Units,
};

/// The number of connections on which writes wait for replicas.
const REPLICATED_CONNECTIONS: usize = 8;

/// The stock of all items in one Redis (version 7 or later, or Valkey), or of named items in a Redis Cluster. Clones
/// share the items' watermarks and one connection to each server, which is opened anew after a failure.
///
/// A call takes at most the sum of:
///
/// - for each command: one `response_timeout`, and for a write the time to wait for [`Replicas`]. A call is one command, or two
///   when Redis has forgotten the script; [`durability`](Self::durability) is two; [`check`](Self::check) sends one for each
///   item, all at once;
/// - to connect first: one `connect_timeout`, two `response_timeout` for the handshake and the role, and half a second if the
///   connection broke repeatedly; all this twice if another server has the item by then; and half a second if an idle connection
///   is found dead;
/// - in the first call: one `connect_timeout`, one `response_timeout` and half a second, to ask all sentinels, or up to eight
///   nodes of a cluster for the map.
///
/// In a Redis Cluster, a command may go to up to six nodes, one after the other. It is sent again for half a second
/// while its slot moves or the nodes disagree about the slot.
#[derive(Clone, Debug)]
pub struct Inventory {
    pub(super) shards: Shards,
    /// The connections for writes that wait for replicas. Redis serves nothing else on a connection that waits, so
    /// reads, and most other items, use other connections. Each is opened at its first use.
    replicated_connections: Option<(Arc<[Shards; REPLICATED_CONNECTIONS]>, Replicas)>,
    pub(super) watermarks: Arc<Watermarks>,
    /// Another program's writer of batches, in place of the script.
    batch_writer: Option<Arc<dyn BatchWriter>>,
}

/// The checked arguments of [`Inventory::reduce_attempts`]: at least one attempt, not too many, and all for the item.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// The item of all orders.
    pub item: &'a Item,
    /// The fencing token, or `None` to check no fence.
    pub token: Option<Token>,
    /// The orders.
    pub attempts: &'a [Attempt<'a>],
}

/// A sale that was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// Its state at its start.
    pub stock: Stock,
    /// Whether an earlier call started it.
    pub is_repeated: bool,
}

/// A change of the running sale that was made.
#[derive(Clone, Debug, PartialEq)]
pub struct Changed {
    /// Its entry in the ledger.
    pub entry: OtherEntry,
    /// The state of the sale after the call.
    pub stock: Stock,
    /// Whether an earlier call made it.
    pub is_repeated: bool,
}

/// Writes the batches of an [`Inventory`] in another way. The service has no such writer, and writes [by the
/// script](Inventory::reduce_by_script).
pub trait BatchWriter: fmt::Debug + Send + Sync + 'static {
    /// As [`Inventory::reduce_attempts`].
    fn reduce<'a>(
        &'a self,
        inventory: &'a Inventory,
        batch: Batch<'a>,
    ) -> BoxFuture<'a, Result<Vec<Answer>, InventoryError>>;
}

impl Inventory {
    /// The most orders that one batch may have.
    pub const MAX_BATCH: usize = 1000;

    /// The most units that a sale may start with.
    pub const MAX_UNITS: u64 = 1_000_000_000_000;

    /// The inventory in the Redis of `access`, for example a URL. It connects at the first use, so a Redis that is not
    /// running yet is no error. The password appears in no error, no log and no `Debug`.
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
            batch_writer: None,
        })
    }

    /// An inventory that uses these streams in place of connections, for a simulated store.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    #[cfg(fenced_lock_chaos)]
    pub fn over(
        streams: super::Streams,
        options: InventoryOptions,
    ) -> Result<Self, InventoryError> {
        let mut inventory = Self::new("redis://simulated", options)?;
        inventory.shards.open_by(streams);
        Ok(inventory)
    }

    /// The same inventory, which acknowledges a write only after this many replicas have it.
    #[must_use]
    pub fn with_replicas(mut self, replicas: Replicas) -> Self {
        let connection = |_| self.shards.with_longer_timeout(replicas.timeout);
        let connections = || (Arc::new(std::array::from_fn(connection)), replicas);
        self.replicated_connections = (replicas.count > 0).then(connections);
        self
    }

    /// The same inventory, whose batches `writer` writes.
    #[must_use]
    pub fn with_writer(mut self, writer: Arc<dyn BatchWriter>) -> Self {
        self.batch_writer = Some(writer);
        self
    }

    /// The same inventory with the same watermarks, over a connection of its own: for reads that must not delay other calls.
    #[must_use]
    pub fn over_another_connection(&self) -> Self {
        Self { shards: self.shards.with_longer_timeout(Duration::ZERO), ..self.clone() }
    }

    /// Redis' address, without the password.
    pub fn address(&self) -> String {
        self.shards.address()
    }

    /// The replicas that a write waits for, if it waits for any.
    pub fn replicas(&self) -> Option<Replicas> {
        self.replicated_connections.as_ref().map(|(_, replicas)| *replicas)
    }

    /// Carries out `orders`, all of `item`, one after the other: takes the units if enough are left, or carries out
    /// another [action](super::Action). Before that, it ends the holds whose time is over. Returns the outcome of each
    /// order, in the same order. The batch is atomic.
    ///
    /// `token` is the fencing token of the lock that the caller holds. The store refuses a token below the fence; any
    /// other raises the fence. With `None` no fence is checked: the call is still atomic in Redis, which is enough if
    /// all writers use this call.
    ///
    /// Each entry records `instance`, with `?` for control characters.
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
        let attempt =
            |order| Attempt { order, instance, holder: None, request: None, sent_under: None };
        let attempts: Vec<_> = orders.iter().map(Borrow::borrow).map(attempt).collect();
        let answers = self.reduce_attempts(item, token, &attempts).await?;
        Ok(answers.into_iter().map(|(outcome, _)| outcome).collect())
    }

    /// The same, for orders that may have been sent before, with the script's answers.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce).
    ///
    /// # Cancel safety
    /// As [`reduce`](Self::reduce).
    pub async fn reduce_attempts(
        &self,
        item: &Item,
        token: Option<Token>,
        attempts: &[Attempt<'_>],
    ) -> Result<Vec<Answer>, InventoryError> {
        let is_of_item = |attempt: &Attempt<'_>| attempt.order.item == *item;
        if attempts.len() > Self::MAX_BATCH || !attempts.iter().all(is_of_item) {
            let what = "a batch has at most 1000 orders, all of one item";
            return Err(InventoryError::InvalidArgument(what));
        }
        if attempts.is_empty() {
            return Ok(Vec::new());
        }
        let batch = Batch { item, token, attempts };
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
    pub async fn reduce_by_script(&self, batch: Batch<'_>) -> Result<Vec<Answer>, InventoryError> {
        let Batch { item, attempts, .. } = batch;
        let sent = self.watermarks.of(item);
        let call = Call::reduce(batch, &sent, self.replicated_connections.is_some())?;
        let Done { sale, fence, values, .. } = self.write(&call).await?;
        if values.len() != attempts.len() {
            return Err(script::not_understood());
        }
        let answers = attempts.iter().zip(values);
        let parsed = |(attempt, answer): (&Attempt<'_>, Value)| {
            let Text(answer) = redis::from_redis_value(answer).ok()?;
            let (outcome, entry) = Outcome::parse(attempt.order, attempt.request, &answer)?;
            Some(((outcome, answer), entry))
        };
        let answers: Option<(Vec<_>, Vec<_>)> = answers.map(parsed).collect();
        let (answers, entries) = answers.ok_or_else(script::not_understood)?;
        let latest = entries.into_iter().flatten().max_by_key(|entry| entry.position);
        self.watermarks.raise(item, &sent, fence, &sale, latest);
        Ok(answers)
    }

    /// Runs a command over the same connection, for programs that write without the script.
    ///
    /// # Errors
    /// [`InventoryError::ItemRequired`] in a Redis Cluster; [`InventoryError::Unanswered`] if it was sent and may
    /// have been done. See [`InventoryError`] for the rest.
    pub async fn command<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, InventoryError> {
        let answer = self.shards.send(&Item::DEFAULT, command, None).await?;
        let (answer, _) = answer.map_err(|error| Effect::Write.failed(error))?;
        redis::from_redis_value(answer).map_err(|error| Effect::Write.failed(error.into()))
    }

    /// Starts a sale of `item`: lucky 0, no orders, an empty ledger. The fence stays, or rises to `token`. The call may have to
    /// [name](NewSale::replaces) the running sale. If this sale runs already, nothing changes, so it is safe to repeat the call.
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
        let Done { fence, sale, values, .. } =
            self.change("start", item, token, &new.arguments()).await?;
        let (id, terms) = (Some(new.id.as_str().to_owned()), new.terms);
        let sale = began(&sale);
        let units = Units { held: Some(0), confirmed: Some(0) };
        let state = terms.phase(sale.unwrap_or_default(), false, initial > 0, false);
        let start = Stock { stock: initial, initial, fence, units, state, ..Stock::default() };
        let stock = Stock { id, terms, sale, ..start };
        Ok(Started { stock, is_repeated: !values.is_empty() })
    }

    /// Changes the running sale, if the call names it. A key that is known in this sale gets its
    /// first entry again, so it is safe to repeat the call. The entry of the ledger has `instance` and the note.
    ///
    /// # Errors
    /// See [`InventoryError`]; [`InventoryError::SaleRefused`], [`InventoryError::TooFewUnits`], and
    /// [`InventoryError::InvalidArgument`] for a change that makes no sense.
    pub async fn change_sale(
        &self,
        item: &Item,
        token: Option<Token>,
        instance: &str,
        asked: &ChangeCall,
    ) -> Result<Changed, InventoryError> {
        asked.change.check().map_err(InventoryError::InvalidArgument)?;
        let (sent, field) = (self.watermarks.of(item), asked.field());
        let call = Call::write("change", item, token, &sent)?
            .arg(if self.replicated_connections.is_some() { "1" } else { "" })
            .arg(own_writer(instance))
            .arg(&field)
            .arg(&asked.arguments());
        let Done { sale, fence, values, .. } = self.write(&call).await?;
        let values = redis::from_redis_value(Value::Array(values));
        let (Text(text), is_repeated, found): (Text, bool, State) =
            values.map_err(|_| script::not_understood())?;
        let Some(Entry::Other(entry)) = Entry::parse(&field, &text) else {
            return Err(script::not_understood());
        };
        let latest = Acknowledged { position: entry.position, key: field, entry: text };
        self.watermarks.raise(item, &sent, fence, &sale, Some(latest));
        let stock = state(item, found)?.ok_or_else(script::not_understood)?;
        Ok(Changed { entry, stock, is_repeated })
    }

    /// Deletes the orders and the ledger of a sale that was replaced.
    ///
    /// # Errors
    /// See [`InventoryError`]; [`InventoryError::SaleRefused`].
    pub async fn forget(&self, item: &Item, id: &SaleId) -> Result<(), InventoryError> {
        self.change("forget", item, None, &[id.as_str().to_owned()]).await.map(drop)
    }

    /// Accepts the present data of `item` after a roll-back: for every inventory it becomes a later sale with the
    /// present orders. All other acknowledged orders are given up. If all data is gone, the item then has no sale. Only
    /// an operator can know that there is no better copy of the data.
    ///
    /// # Errors
    /// See [`InventoryError`]; [`InventoryError::UnknownItem`] if there is no stock and no instance misses it.
    pub async fn recover_store(&self, item: &Item, token: Token) -> Result<(), InventoryError> {
        self.change("recover-store", item, Some(token), &[]).await.map(drop)
    }

    /// Replaces the fence of `item` by `token`, which may be of another etcd cluster. The store then refuses every
    /// token of the old cluster. Only an operator can know that nobody uses the old cluster any more.
    ///
    /// # Errors
    /// See [`InventoryError`]; [`InventoryError::StaleToken`] if the fence is of the same cluster and larger: a fence is never
    /// lowered. [`InventoryError::Damaged`] if the fence cannot be parsed: stop all instances and delete its key.
    pub async fn recover_cluster(&self, item: &Item, token: Token) -> Result<(), InventoryError> {
        // this ends no roll-back: only `recover_store` does
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
        let sent = self.watermarks.of(item);
        let call = Call::write(operation, item, token, &sent)?.arg(arguments);
        let done = self.write(&call).await?;
        // data that was not compared may be older than the watermark
        if call.compares {
            self.watermarks.raise(item, &sent, done.fence, &done.sale, None);
        }
        Ok(done)
    }

    /// Calls the script that writes. An operation that only reads waits for no replicas.
    async fn write(&self, call: &Call<'_>) -> Result<Done, InventoryError> {
        let (shards, replicas) = match (call.effect, &self.replicated_connections) {
            (Effect::Write, Some((connections, replicas))) => {
                // an item always uses the same connection
                let slot = slot_of(call.item.name().unwrap_or_default());
                (&connections[usize::from(slot) % REPLICATED_CONNECTIONS], Some(*replicas))
            }
            _ => (&self.shards, None),
        };
        let mut answer = call.send(shards, replicas).await;
        if call.compares {
            answer = self.watermarks.note(call.item, answer);
        }
        let (answer, waited) = answer?;
        let done = Done::parse(answer)?;
        self.watermarks.note_holds(call.item, done.has_holds);
        if let (Some(replicas), Some(waited)) = (replicas, waited) {
            replicas.check(waited)?;
        }
        Ok(done)
    }

    /// The watermark of `item`, for [`learn`](Self::learn) at another instance.
    pub(crate) fn watermark(&self, item: &Item) -> [String; 4] {
        self.watermarks.of(item).arguments().clone()
    }

    /// Raises the watermark of `item` to another instance's, if that is higher or of a later sale. With `compares`, the
    /// next calls compare both entries: the store may have lost the lower one before it acknowledged the higher one.
    pub(crate) fn learn(&self, item: &Item, watermark: [String; 4], compares: bool) {
        self.watermarks.learn(item, watermark, compares);
    }

    /// The longest time for one attempt of a batch, while the address of the store stays the same.
    pub(crate) fn time_limit(&self) -> Duration {
        let InventoryOptions { connect_timeout, response_timeout } = self.shards.options();
        let replicas = self.replicas().map_or(Duration::ZERO, |replicas| replicas.timeout);
        // to connect, to log in, to ask for the role, and to send the script by its digest and by its source
        connect_timeout + 4 * response_timeout + replicas
    }

    /// Whether the default item is refused with [`InventoryError::ItemRequired`], as in a Redis Cluster.
    pub fn has_named_items_only(&self) -> bool {
        self.shards.is_cluster()
    }

    /// Whether a batch of `item` under `token` could be executed. Writes nothing.
    pub(super) async fn probe(
        &self,
        item: &Item,
        token: Option<Token>,
    ) -> Result<(), InventoryError> {
        // the seven empty arguments stand for one order without an id
        let call = Call::write("probe", item, token, &self.watermarks.of(item))?.arg(&[""; 7]);
        let level = redis::from_redis_value(Value::Array(self.write(&call).await?.values));
        self.watermarks.note_level(item, level.map_err(|_| script::not_understood())?);
        Ok(())
    }
}
