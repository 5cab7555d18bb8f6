//! The inventory: what may be done to the stock.

use std::borrow::Borrow;

use redis::{Cmd, Value};

use super::connection::{Connection, Effect};
use super::record::{instance_text, parse_fence, parse_record, token_text};
use super::script::{self, Answer};
use super::{Fence, InventoryError, InventoryOptions, Item, Keys, Order, Outcome, Stock, unfenced};
use crate::defence::Defence;
use crate::fault::{self, Point};
use crate::lock::Token;

/// The stock of all items in one Redis (version 7 or later, or Valkey). Clones share one connection,
/// which comes back by itself after a failure.
///
/// Each command takes at most one `connect_timeout` and one `response_timeout`. A call is one command,
/// or two when Redis has forgotten the script; [`durability`](Self::durability) is five.
#[derive(Clone, Debug)]
pub struct Inventory {
    pub(super) connection: Connection,
}

impl Inventory {
    /// The most orders that one batch may have.
    pub const MAX_BATCH: usize = 1000;

    /// The most units that a sale may start with.
    pub const MAX_UNITS: u64 = 1_000_000_000_000;

    /// The inventory in the Redis at `url`, which is connected to when it is first used, so that a
    /// Redis that is not there yet is no error. Otherwise as [`connect`](Self::connect).
    ///
    /// # Errors
    /// [`InventoryError::InvalidUrl`].
    pub fn new(url: &str, options: InventoryOptions) -> Result<Self, InventoryError> {
        Ok(Self { connection: Connection::new(url, options)? })
    }

    /// Connects to the Redis at `url`: `redis://[[user]:password@]host[:port][/database]` or
    /// `unix:///path`. The password appears in no error, no log and no `Debug`.
    ///
    /// # Errors
    /// [`InventoryError::InvalidUrl`], or [`InventoryError::Unreachable`] if the first attempt to
    /// connect fails.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub async fn connect(url: &str, options: InventoryOptions) -> Result<Self, InventoryError> {
        let inventory = Self::new(url, options)?;
        inventory.connection.open().await?;
        Ok(inventory)
    }

    /// Takes the units of each of `orders`, in their order, as far as the stock lasts; all are of
    /// `item`. One outcome for each order, in the same order. The batch happens as a whole or not at
    /// all, at one moment.
    ///
    /// `token` is the fencing token of the lock that the caller holds: a batch under a token below
    /// the fence is refused, any other raises the fence. With `None` nothing guards the call and no
    /// fence is checked: for a single atomic step, as this is, Redis alone is guard enough, as long
    /// as everybody sells in this way.
    ///
    /// `instance` is recorded with each accepted order, control characters replaced by `?`.
    ///
    /// # Errors
    /// See [`InventoryError`]; [`InventoryError::InvalidArgument`] for more than
    /// [`MAX_BATCH`](Self::MAX_BATCH) orders, an order of another item, or a revision below 1.
    ///
    /// # Cancel safety
    /// A dropped call may or may not take the orders. Asking again with the same orders tells, and
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
        let token_text = token_text(token)?;
        if orders.is_empty() {
            return Ok(Vec::new());
        }
        let instance = instance_text(instance);
        if let Some(token) = token.filter(|_| !Defence::Fence.is_on()) {
            return unfenced::reduce(self, item, token, &instance, orders).await;
        }
        let arguments = |command: &mut Cmd| {
            command.arg("reduce").arg(&token_text).arg(&instance);
            for order in orders.iter().map(Borrow::borrow) {
                command.arg(order.id.as_str()).arg(order.quantity.get()).arg(order.user.as_str());
            }
        };
        fault::at(Point::BeforeWrite).await;
        let answers = fault::once_sent(self.run(item, token, arguments)).await?;
        #[cfg(feature = "chaos")]
        let answers = super::chaos::finish(self, item, answers, orders.len()).await?;
        fault::at(Point::AfterAnswer).await;
        if answers.len() != orders.len() {
            return Err(script::not_understood());
        }
        orders
            .iter()
            .map(Borrow::borrow)
            .zip(answers)
            .map(|(order, answer)| outcome(order, answer))
            .collect()
    }

    /// Starts a sale of `item` afresh, whatever was there before: stock and initial `units`, lucky 0,
    /// no orders, an empty ledger. The fence stays, or rises to `token`. Returns the new state.
    ///
    /// Repeating it is not harmless: orders accepted since the first time are gone.
    ///
    /// # Errors
    /// See [`InventoryError`]; [`InventoryError::InvalidArgument`] for more than
    /// [`MAX_UNITS`](Self::MAX_UNITS) units.
    pub async fn start(
        &self,
        item: &Item,
        token: Option<Token>,
        units: u64,
    ) -> Result<Stock, InventoryError> {
        let initial = i64::try_from(units).ok().filter(|_| units <= Self::MAX_UNITS);
        let initial = initial.ok_or(InventoryError::InvalidArgument(
            "a sale starts with at most 1,000,000,000,000 units",
        ))?;
        let token_text = token_text(token)?;
        let arguments = |command: &mut Cmd| {
            command.arg("start").arg(&token_text).arg(units);
        };
        let answers = self.run(item, token, arguments).await?;
        let fence = only_fence(answers)?;
        Ok(Stock { stock: initial, lucky: 0, initial, fence, orders: 0 })
    }

    /// Has the fence of `item` accept the cluster of `token`, from this token on, and returns the
    /// fence that was there. For an operator who knows that the old cluster's tokens no longer count,
    /// after etcd was set up anew; a claim of the old cluster that is still alive is refused from now
    /// on.
    ///
    /// # Errors
    /// See [`InventoryError`]; [`InventoryError::StaleToken`] if the fence is of this cluster already
    /// and larger: a fence is never lowered. [`InventoryError::Damaged`] for a fence
    /// that is no fence: with no instance running, delete its key.
    pub async fn adopt(&self, item: &Item, token: Token) -> Result<Option<Fence>, InventoryError> {
        let token_text = token_text(Some(token))?;
        let arguments = |command: &mut Cmd| {
            command.arg("adopt").arg(&token_text);
        };
        let answers = self.run(item, Some(token), arguments).await?;
        only_fence(answers)
    }

    async fn run(
        &self,
        item: &Item,
        token: Option<Token>,
        arguments: impl Fn(&mut Cmd),
    ) -> Result<Vec<Value>, InventoryError> {
        let keys = Keys::of(item);
        match script::WRITE.run(&self.connection, Effect::Write, &keys.all(), arguments).await? {
            Answer::Done(values) => Ok(values),
            Answer::Stale(fence) => {
                let token = token.ok_or_else(script::not_understood)?;
                Err(InventoryError::StaleToken { token, fence })
            }
            Answer::Foreign(fence) => {
                let token = token.ok_or_else(script::not_understood)?;
                Err(InventoryError::ForeignFence { fence, token })
            }
            Answer::Unknown => Err(InventoryError::UnknownItem),
            Answer::Damaged(what) => Err(InventoryError::Damaged { what }),
        }
    }
}

fn outcome(order: &Order, answer: Value) -> Result<Outcome, InventoryError> {
    match answer {
        Value::BulkString(record) => std::str::from_utf8(&record)
            .ok()
            .and_then(|record| parse_record(order.id.as_str(), record))
            .map(Outcome::Reserved)
            .ok_or_else(script::not_understood),
        Value::Int(remaining) => u64::try_from(remaining)
            .map(|remaining| Outcome::SoldOut { remaining })
            .map_err(|_| script::not_understood()),
        Value::Nil => Ok(Outcome::Conflict),
        _ => Err(script::not_understood()),
    }
}

fn only_fence(answers: Vec<Value>) -> Result<Option<Fence>, InventoryError> {
    match answers.into_iter().next() {
        None | Some(Value::Nil) => Ok(None),
        Some(value) => {
            let text: String =
                redis::from_redis_value(value).map_err(|_| script::not_understood())?;
            let damaged = || InventoryError::Damaged { what: format!("the fence is {text:?}") };
            parse_fence(&text).map(Some).ok_or_else(damaged)
        }
    }
}
