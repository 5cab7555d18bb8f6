//! The format between instances: a frame of JSON, and lines of JSON in answer to it.
//!
//! A frame is a batch of one item for one tenure. While the batch is under way, the answer has a line twice a second. The last
//! line has the fate of each order. Orders and outcomes are written as in the store's script.

use std::sync::Arc;

use fenced_lock::Token;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::inventory::{
    Action, Answer, Inventory, InventoryError, Item, Order, OrderId, Quantity, User,
};
use crate::sale::SaleError;

/// The version of the format. An instance carries out no frame of another version.
const VERSION: u32 = 2;

/// One tenure of a lock, named by the granted claim: no other tenure has the same key and token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenure {
    /// The whole key of the claim: the lock's name, the lease's random number, and the claim's own number.
    pub key: Box<str>,
    /// The token of the grant.
    pub token: Token,
}

/// The clock of a process that holds locks: milliseconds of its monotonic clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// The process whose clock it is.
    pub of: Box<str>,
    /// Its milliseconds.
    pub ms: u64,
}

/// The watermark of an instance, in the form of the scripts' arguments.
pub type Watermark = [String; 4];

/// A batch that is sent to the holder of the lock.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Frame {
    pub(crate) version: u32,
    /// The item of the orders.
    #[serde(deserialize_with = "read_item")]
    pub item: Item,
    /// The batch is carried out in this tenure, or not at all.
    pub tenure: Tenure,
    /// The sending process.
    pub sender: Box<str>,
    /// The name of its instance, which the ledger records.
    pub instance: Arc<str>,
    /// The frame's number. Each frame of a sender has a larger one than the frame before.
    pub number: u64,
    /// The lowest number for which the sender still waits. The holder carries out no frame below it.
    pub lowest: u64,
    /// The holder's clock in the last answer that the sender got, plus the time since then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<Clock>,
    /// The watermark of the sender.
    pub watermark: Watermark,
    /// At least one.
    pub orders: Vec<Forwarded>,
}

/// An order in a frame.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Forwarded {
    id: String,
    quantity: u32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    user: String,
    action: Action,
    /// The number of the buyer's request.
    pub request: u32,
    /// The token of the order's first attempt that got no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_under: Option<Token>,
}

impl Forwarded {
    /// The order as a frame has it.
    pub fn new(order: &Order, request: u32, sent_under: Option<Token>) -> Self {
        let (id, user) = (order.id.as_str().to_owned(), order.user.as_str().to_owned());
        let (quantity, action) = (order.quantity.get(), order.action);
        Self { id, quantity, user, action, request, sent_under }
    }

    /// The order, which is of `item`.
    ///
    /// # Errors
    /// The rule that the order breaks.
    pub fn order(&self, item: &Item) -> Result<Order, &'static str> {
        Ok(Order {
            id: OrderId::new(&self.id)?,
            item: item.clone(),
            quantity: Quantity::new(self.quantity)?,
            user: User::new(&self.user)?,
            action: self.action,
        })
    }
}

impl Frame {
    /// A batch of `item` for this tenure. [`Peers::send`](super::Peers::send) fills in the sender's part.
    pub(crate) fn new(item: &Item, tenure: &Tenure, orders: Vec<Forwarded>) -> Self {
        Self {
            version: VERSION,
            item: item.clone(),
            tenure: tenure.clone(),
            sender: "".into(),
            instance: "".into(),
            number: 0,
            lowest: 0,
            clock: None,
            watermark: Watermark::default(),
            orders,
        }
    }

    pub(super) fn write(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Parses a frame's text.
    ///
    /// # Errors
    /// The reason for which the holder carries out nothing of it.
    pub(super) fn read(text: &[u8]) -> Result<Self, NotDone> {
        let frame: Self = serde_json::from_slice(text).map_err(|error| {
            tracing::debug!(%error, "a frame of a peer cannot be read");
            NotDone::Format
        })?;
        let is_valid = frame.version == VERSION
            && (1..=Inventory::MAX_BATCH).contains(&frame.orders.len())
            && frame.tenure.token.revision() > 0;
        if is_valid { Ok(frame) } else { Err(NotDone::Format) }
    }
}

/// The reason for which the holder carried out nothing of a batch, and never will.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NotDone {
    /// The process does not hold the lock in this tenure.
    NotTheHolder,
    /// The frame names no time of the holder, or is too old. The answer has the holder's clock.
    TooLate,
    /// A frame with this number has arrived before.
    Repeated,
    /// Two frames of this sender are under way, or too many senders are known.
    TooMany,
    /// The frame cannot be parsed, or has another version.
    Format,
    /// The process is stopping.
    Stopping,
}

/// The fate of an order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// The order has this answer of the store's script.
    Final(String),
    /// The order took nothing, and would take nothing at any instance: the item's data are damaged, or do not allow it.
    Refused(Refusal),
    /// The order took nothing, for the reason in this word. Sent again, it may be carried out.
    NotDone(Box<str>),
    /// The order was sent to the store, which has not answered.
    Unknown,
}

/// The reason for which no instance can sell the item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "they are named as the errors of the inventory are")]
pub enum Refusal {
    UnknownItem,
    SaleReplaced,
    Damaged(String),
    RolledBack(String),
    ForeignFence(Token, Token),
}

impl Fate {
    /// The fate of an order, from the answer that it got at the holder.
    pub fn of(answer: Result<Answer, SaleError>) -> Self {
        let error = match answer {
            Ok((_, text)) => return Self::Final(text),
            Err(SaleError::OutcomeUnknown { .. }) => return Self::Unknown,
            Err(error) => error,
        };
        let refusal = match &error {
            SaleError::Store { source, .. } => Refusal::of(source),
            _ => None,
        };
        refusal.map_or_else(|| Self::NotDone(error.word().into()), Self::Refused)
    }
}

impl Refusal {
    fn of(error: &InventoryError) -> Option<Self> {
        Some(match error {
            InventoryError::UnknownItem => Self::UnknownItem,
            InventoryError::SaleRefused { why: "sale-replaced", .. } => Self::SaleReplaced,
            InventoryError::Damaged { what } => Self::Damaged(what.clone()),
            InventoryError::RolledBack { what } => Self::RolledBack(what.clone()),
            InventoryError::ForeignFence { fence, token } => Self::ForeignFence(*fence, *token),
            _ => return None,
        })
    }

    /// The refusal as an error of the store.
    pub fn error(self) -> InventoryError {
        match self {
            Self::UnknownItem => InventoryError::UnknownItem,
            Self::SaleReplaced => {
                InventoryError::SaleRefused { why: "sale-replaced", running: None }
            }
            Self::Damaged(what) => InventoryError::Damaged { what },
            Self::RolledBack(what) => InventoryError::RolledBack { what },
            Self::ForeignFence(fence, token) => InventoryError::ForeignFence { fence, token },
        }
    }
}

/// A line of an answer. The last line says why nothing was done, or has the fates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// The holder's clock.
    pub clock: Clock,
    /// Milliseconds since the later of two times: when the holder's store last answered, and when the frame arrived.
    #[serde(default)]
    pub store_ms: u64,
    /// The reason for which nothing was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_done: Option<NotDone>,
    /// The fates, in the last line of a batch that was carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<Done>,
}

/// The result of a batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// The fates, in the order of the frame's orders.
    pub fates: Vec<Fate>,
    /// The watermark of the holder, these orders included.
    pub watermark: Watermark,
}

impl Line {
    pub(super) fn write(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec(self).unwrap_or_default();
        text.push(b'\n');
        text
    }
}

fn read_item<'a, D: Deserializer<'a>>(from: D) -> Result<Item, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

#[cfg(test)]
pub(super) fn any_order() -> Forwarded {
    let (id, user, action) = ("a".to_owned(), String::new(), Action::Reserve);
    Forwarded { id, quantity: 1, user, action, request: 1, sent_under: None }
}
