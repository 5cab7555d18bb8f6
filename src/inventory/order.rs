//! One buyer's attempt, and its outcome.

use fenced_lock::Token;
use serde::{Serialize, Serializer};

use super::Item;
use super::stock::{parse_token, token_record};
use crate::logging::is_invisible;

/// The name of an order, chosen by the buyer or made by the service: 1 to 128 visible ASCII characters. It
/// makes retries safe.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct OrderId(Box<str>);

/// How many units one order takes: 1 to [`Quantity::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Quantity(u32);

/// The buyer, which is only recorded: at most 128 bytes without control, format or separator characters, or empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct User(Box<str>);

impl OrderId {
    /// Checks `id`.
    ///
    /// # Errors
    /// What is allowed, unless it is 1 to 128 visible ASCII characters.
    pub fn new(id: &str) -> Result<Self, &'static str> {
        let valid = (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic());
        valid.then(|| Self(id.into())).ok_or("an order id is 1 to 128 visible ASCII characters")
    }

    /// A new, unique id.
    pub fn random() -> Self {
        Self(uuid::Uuid::new_v4().to_string().into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Quantity {
    /// The most units that one order can take.
    pub const MAX: u32 = 1_000_000;

    /// One unit.
    pub const ONE: Quantity = Quantity(1);

    /// Checks `units`.
    ///
    /// # Errors
    /// What is allowed, unless it is from 1 to [`Quantity::MAX`].
    pub fn new(units: u32) -> Result<Self, &'static str> {
        let valid = (1..=Self::MAX).contains(&units);
        valid.then_some(Self(units)).ok_or("a quantity is a whole number from 1 to 1000000")
    }

    /// The number of units.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl User {
    /// Checks `user`.
    ///
    /// # Errors
    /// What is allowed, if it is longer than 128 bytes or has a control character.
    pub fn new(user: &str) -> Result<Self, &'static str> {
        let valid = user.len() <= 128 && !user.chars().any(is_invisible);
        valid
            .then(|| Self(user.into()))
            .ok_or("a user is at most 128 bytes without control or format characters")
    }

    /// As an earlier version may have recorded it, with format characters.
    fn recorded(user: &str) -> Option<Self> {
        let valid = user.len() <= 128 && !user.chars().any(char::is_control);
        valid.then(|| Self(user.into()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// One buyer's attempt to take some units of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Makes retries safe: a known id gets its first answer again.
    pub id: OrderId,
    /// The item.
    pub item: Item,
    /// The number of units.
    pub quantity: Quantity,
    /// The buyer.
    pub user: User,
}

/// An accepted order as the ledger records it, and as `GET /orders` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Accepted {
    /// Its place in the ledger, from 1; 0 if it is in none.
    pub position: u64,
    /// The order's id.
    pub order: OrderId,
    /// The units taken.
    pub quantity: Quantity,
    /// The buyer.
    pub user: User,
    /// The stock that was left after it.
    pub remaining: u64,
    /// The instance that accepted it.
    pub instance: String,
    /// The token under which it was accepted; `None` without a lock.
    #[serde(serialize_with = "revision")]
    pub token: Option<Token>,
}

#[allow(clippy::ref_option, reason = "the signature that serde asks for")]
fn revision<S: Serializer>(token: &Option<Token>, serializer: S) -> Result<S::Ok, S::Error> {
    token.map(Token::revision).serialize(serializer)
}

impl Accepted {
    /// Whether `order`, which has the same id, repeats this one. If not, it is a conflict.
    pub fn is_repeated_by(&self, order: &Order) -> bool {
        self.quantity == order.quantity && self.user == order.user
    }

    /// Parses the record of the order with this id.
    pub fn from_record(order: &str, record: &str) -> Option<Self> {
        let mut fields = record.splitn(6, '\t');
        let position = fields.next()?.parse().ok()?;
        let quantity = Quantity::new(fields.next()?.parse().ok()?).ok()?;
        let remaining = fields.next()?.parse().ok()?;
        let token = match fields.next()? {
            "" => None,
            text => Some(parse_token(text)?),
        };
        let instance = fields.next()?.to_owned();
        let user = User::recorded(fields.next()?)?;
        let order = OrderId::new(order).ok()?;
        Some(Self { position, order, quantity, user, remaining, instance, token })
    }

    /// The order's record, as the script writes it: position, quantity, remaining, token, instance and user, with
    /// tabs between them.
    pub fn record(&self) -> String {
        let Self { position, quantity, user, remaining, instance, token, .. } = self;
        let token = token.map(token_record).unwrap_or_default();
        let (quantity, user) = (quantity.get(), user.as_str());
        format!("{position}\t{quantity}\t{remaining}\t{token}\t{instance}\t{user}")
    }
}

/// The outcome of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was accepted, now or when it was first sent.
    Reserved(Accepted),
    /// Fewer units are left than it asks for. Nothing is recorded: a retry with the same id is a new attempt.
    SoldOut {
        /// The units left.
        remaining: u64,
    },
    /// Its id belongs to an order with another quantity or user.
    Conflict,
    /// The store's record of this id is damaged. Other orders of the batch are not affected.
    Damaged {
        /// Which key, and what is wrong with it.
        what: String,
    },
}
