//! Orders, the entries of the ledger, and the outcomes of orders.

use std::time::Duration;

use fenced_lock::Token;
use serde::{Deserialize, Serialize, Serializer};

use super::Item;
use super::stock::parse_token;
use super::terms::Timestamp;
use super::watermark::Acknowledged;
use crate::process::random_id;

/// The name of an order, which the buyer chooses or the service makes: 1 to 128 visible ASCII characters. It makes retries safe.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct OrderId(Box<str>);

/// How many units one order takes: 1 to [`Quantity::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Quantity(u32);

/// The buyer: at most 128 bytes without control characters, or empty. The bytes are compared as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct User(Box<str>);

impl OrderId {
    /// Checks `id`.
    ///
    /// # Errors
    /// The rule, if `id` is not 1 to 128 visible ASCII characters.
    pub fn new(id: &str) -> Result<Self, &'static str> {
        let valid = (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic());
        valid.then(|| Self(id.into())).ok_or("an order id is 1 to 128 visible ASCII characters")
    }

    /// A new, unique id.
    pub fn random() -> Self {
        Self(random_id().to_string().into())
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
    /// The rule, if `units` is not from 1 to [`Quantity::MAX`].
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
    /// The rule, if `user` is longer than 128 bytes or has a control character.
    pub fn new(user: &str) -> Result<Self, &'static str> {
        let valid = user.len() <= 128 && !user.contains(char::is_control);
        valid
            .then(|| Self(user.into()))
            .ok_or("a user is at most 128 bytes without control characters")
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The action that an order asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// To take its units, for good or until the hold ends.
    #[default]
    Reserve,
    /// To end its hold: the units stay sold.
    Confirm,
    /// To end its hold: the units go back on sale.
    Cancel,
    /// To undo a confirmed order: the units go back on sale.
    Return,
    /// To end all holds whose time is over. No order asks for this.
    Expire,
}

/// One buyer's attempt to take some units of an item, or to confirm, cancel or return it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Makes retries safe: a known id gets its first answer again. Orders of two users may have the same id.
    pub id: OrderId,
    /// The item.
    pub item: Item,
    /// The number of units to take.
    pub quantity: Quantity,
    /// The buyer.
    pub user: User,
    /// The action that it asks for.
    pub action: Action,
}

impl Order {
    /// The key under which the store records the order: its user and its id.
    pub fn key(&self) -> String {
        order_key(&self.id, &self.user)
    }

    /// A request to end the holds of `item` whose time is over.
    pub(crate) fn expiring(item: Item) -> Self {
        let (quantity, action) = (Quantity::ONE, Action::Expire);
        Self { id: OrderId("-".into()), item, quantity, user: User::default(), action }
    }
}

/// One attempt to send an order.
#[derive(Clone, Copy, Debug)]
pub struct Attempt<'a> {
    /// The order.
    pub order: &'a Order,
    /// The instance that got the order from its buyer, for the entry of the ledger. Control characters become `?`.
    pub instance: &'a str,
    /// The instance that holds the lock and writes, if it is another one.
    pub holder: Option<&'a str>,
    /// The number of the buyer's request, for the entry. If an order is sent under several numbers, the request whose
    /// number the entry has gets the first answer, and the others get a repeated one.
    pub request: Option<u32>,
    /// The token of the first earlier attempt without an answer, if there was one.
    pub sent_under: Option<Token>,
}

impl Attempt<'_> {
    /// The writer of the entry, in the form of [`writer_record`].
    pub(super) fn writer(&self) -> String {
        writer_record(self.instance, self.request, self.holder)
    }

    /// The writer of entries that no order asks for: the instance that holds the lock.
    pub(super) fn own_writer(&self) -> String {
        own_writer(self.holder.unwrap_or(self.instance))
    }
}

pub(super) fn own_writer(instance: &str) -> String {
    writer_record(instance, None, None)
}

/// The writer of an entry, in the form in which the entry has it: the instance that the order came to; behind a `#`, the number
/// of the buyer's request in eight hexadecimal digits; behind an `@`, the holder of the lock, if it is another instance.
///
/// A field of its own would be damage to the previous version, which checks the number of fields. That version shows this
/// text as the instance, and does nothing else with it.
fn writer_record(instance: &str, request: Option<u32>, holder: Option<&str>) -> String {
    let visible = |letter: char| if letter.is_control() { '?' } else { letter };
    let by: String = instance.chars().map(visible).collect();
    let Some(request) = request else { return by };
    match holder.filter(|holder| *holder != instance && !holder.is_empty()) {
        None => format!("{by}#{request:08x}"),
        Some(holder) => {
            // `parse_writer` looks for the holder behind the last `@`
            let plain = |letter| if matches!(letter, '@' | '#') { '?' } else { visible(letter) };
            let holder: String = holder.chars().map(plain).collect();
            format!("{by}#{request:08x}@{holder}")
        }
    }
}

/// The instance, the request and the holder of a [`writer_record`]. A text in another form is the name of an instance.
fn parse_writer(writer: &str) -> (&str, Option<u32>, Option<&str>) {
    let requested = |text| {
        let (instance, digits): (&str, &str) = str::rsplit_once(text, '#')?;
        let is_written = |digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
        let is_request = digits.len() == 8 && digits.bytes().all(is_written);
        Some((instance, u32::from_str_radix(digits, 16).ok().filter(|_| is_request)?))
    };
    if let Some((instance, request)) = requested(writer) {
        return (instance, Some(request), None);
    }
    let forwarded = writer.rsplit_once('@').filter(|(_, holder)| !holder.is_empty());
    match forwarded.and_then(|(text, holder)| Some((requested(text)?, holder))) {
        Some(((instance, request), holder)) => (instance, Some(request), Some(holder)),
        None => (writer, None, None),
    }
}

/// The key of an order in the store: the user and a tab if there is a user, then the id.
pub(crate) fn order_key(id: &OrderId, user: &User) -> String {
    match user.as_str() {
        "" => id.as_str().to_owned(),
        user => format!("{user}\t{}", id.as_str()),
    }
}

/// An event of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Event {
    /// It was accepted. Without a hold, that is final until it is returned.
    Reserved,
    /// Its hold was confirmed.
    Confirmed,
    /// Its hold was cancelled: the units went back on sale.
    Cancelled,
    /// Its hold ended without a confirmation.
    Expired,
    /// It was confirmed, or accepted without a hold, and later returned: the units went back on sale.
    Returned,
}

impl Event {
    /// The events after the acceptance.
    const CHANGES: [Self; 4] = [Self::Confirmed, Self::Cancelled, Self::Expired, Self::Returned];

    /// The change of this name.
    fn of(word: &str) -> Option<Self> {
        Self::CHANGES.into_iter().find(|event| event.word() == word)
    }

    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::Confirmed => "confirmed",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::Returned => "returned",
        }
    }
}

/// An entry of the ledger. `GET /orders` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Entry {
    /// The acceptance of an order, or a later event of it.
    Order(Accepted),
    /// A change of the sale, or an event that a later version wrote.
    Other(OtherEntry),
}

/// An entry of the ledger about a change of the sale, or about an event that this version does not know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OtherEntry {
    /// Its place in the ledger, from 1.
    pub position: u64,
    /// `changed`, or the event of a later version.
    pub event: String,
    /// The units left after it.
    pub remaining: u64,
    /// The instance that wrote it.
    pub instance: String,
    /// The instance that held the lock and wrote it, if it is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// The token under which it was written; `None` without a lock.
    #[serde(serialize_with = "revision")]
    pub token: Option<Token>,
    /// When it happened, by Redis' clock.
    pub time: Timestamp,
    /// The rest of the entry. For a change: `change` and `note`, as the caller wrote them.
    #[serde(flatten)]
    pub content: serde_json::Map<String, serde_json::Value>,
}

impl Entry {
    /// Parses an entry of the store, in the way of [`Accepted::parse`].
    pub fn parse(key: &str, entry: &str) -> Option<Self> {
        if let Some(order) = Accepted::parse(key, entry) {
            return Some(Self::Order(order));
        }
        let (event, fields) = entry.strip_prefix('\n')?.split_once('\t')?;
        let fields: Vec<&str> = fields.splitn(7, '\t').collect();
        let [position, units, remaining, token, writer, time, content] = fields[..] else {
            return None;
        };
        let content = match serde_json::from_str(content) {
            Ok(content) => content,
            // an event of an order that only a later version knows
            Err(_) if Event::of(event).is_none() && event != "changed" => {
                let (user, order) = content.rsplit_once('\t').unwrap_or(("", content));
                let quantity: i64 = units.parse().ok()?;
                let fields =
                    [("order", order.into()), ("quantity", quantity.into()), ("user", user.into())];
                fields.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()
            }
            Err(_) => return None,
        };
        let (instance, _, holder) = parse_writer(writer);
        Some(Self::Other(OtherEntry {
            position: position.parse().ok()?,
            event: event.to_owned(),
            remaining: remaining.parse().ok()?,
            instance: instance.to_owned(),
            holder: holder.map(str::to_owned),
            token: if token.is_empty() { None } else { Some(parse_token(token)?) },
            time: Timestamp::new(time.parse().ok()?)?,
            content,
        }))
    }

    /// Its place in the ledger.
    pub fn position(&self) -> u64 {
        match self {
            Self::Order(order) => order.position,
            Self::Other(entry) => entry.position,
        }
    }

    /// The token under which it was written; `None` without a lock.
    pub(super) fn token(&self) -> Option<Token> {
        match self {
            Self::Order(order) => order.token,
            Self::Other(entry) => entry.token,
        }
    }

    /// The order, if the entry is about one.
    pub fn order(self) -> Option<Accepted> {
        if let Self::Order(order) = self { Some(order) } else { None }
    }
}

/// An accepted order at one of its events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Accepted {
    /// Its place in the ledger, from 1; 0 if it has none.
    pub position: u64,
    /// The event. For an order that was looked up: the latest one.
    pub event: Event,
    /// The order's id.
    pub order: OrderId,
    /// Its units.
    pub quantity: Quantity,
    /// The buyer.
    pub user: User,
    /// The units left after it.
    pub remaining: u64,
    /// The instance that got the order from its buyer. For an expiry: the instance that wrote it.
    pub instance: String,
    /// The instance that held the lock and wrote it, if it is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// The number of the request that made the entry, if it is known.
    #[serde(skip)]
    pub request: Option<u32>,
    /// The token under which it was written; `None` without a lock.
    #[serde(serialize_with = "revision")]
    pub token: Option<Token>,
    /// When it happened, by Redis' clock.
    pub time: Timestamp,
    /// When the hold of a reserved order ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold_until: Option<Timestamp>,
    /// For an order that was looked up: when it was confirmed, cancelled or returned, or when its hold ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed: Option<Timestamp>,
}

#[allow(clippy::ref_option, reason = "the signature that serde asks for")]
fn revision<S: Serializer>(token: &Option<Token>, serializer: S) -> Result<S::Ok, S::Error> {
    token.map(Token::revision).serialize(serializer)
}

impl Accepted {
    /// Whether `order`, which has the same id, is the same order. Otherwise it is a conflict.
    pub fn is_repeated_by(&self, order: &Order) -> bool {
        self.quantity == order.quantity && self.user == order.user
    }

    /// The field of this entry in the hash of the store; `key` is the key of its order.
    pub(super) fn field(&self, key: &str) -> String {
        if self.event == Event::Returned { format!("\n{key}") } else { key.to_owned() }
    }

    /// Parses an entry of the store: the record of the order with this key, or a later event of it, which ends with the key.
    pub fn parse(key: &str, entry: &str) -> Option<Self> {
        let fields: Vec<&str> = entry.split('\t').collect();
        let [kind, position, quantity, remaining, token, writer, time, ref rest @ ..] = fields[..]
        else {
            return None;
        };
        let (event, hold_until, user, id) = match (kind, rest) {
            ("2", [hold_until, user]) => {
                (Event::Reserved, *hold_until, *user, key.rsplit('\t').next()?)
            }
            // `key` may be the field, which is another text
            (change, [user @ .., id]) => {
                let event = Event::of(change.strip_prefix('\n')?)?;
                (event, "", user.first().copied().unwrap_or_default(), *id)
            }
            _ => return None,
        };
        let (instance, request, holder) = parse_writer(writer);
        Some(Self {
            position: position.parse().ok()?,
            event,
            order: OrderId::new(id).ok()?,
            quantity: Quantity::new(quantity.parse().ok()?).ok()?,
            user: User::new(user).ok()?,
            remaining: remaining.parse().ok()?,
            instance: instance.to_owned(),
            holder: holder.map(str::to_owned),
            request,
            token: if token.is_empty() { None } else { Some(parse_token(token)?) },
            time: Timestamp::new(time.parse().ok()?)?,
            hold_until: match hold_until {
                "" => None,
                until => Some(Timestamp::new(until.parse().ok()?)?),
            },
            changed: None,
        })
    }
}

/// The numbers among the fields of an answer.
fn numbers(fields: &str) -> Vec<u64> {
    fields.split('\t').filter_map(|number| number.parse().ok()).collect()
}

/// The outcome of an order, and the answer of the script that says so, which another instance can parse.
pub type Answer = (Outcome, String);

/// The outcome of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// This request was accepted, now or by an earlier attempt.
    Reserved(Accepted),
    /// Another request for the same order was accepted before. Also the answer to a confirmation of an order without a hold.
    Repeated(Accepted),
    /// It was confirmed, cancelled or returned.
    Changed {
        /// The entry about it.
        change: Accepted,
        /// Whether an earlier attempt did this.
        is_repeated: bool,
    },
    /// It was accepted, and later cancelled, expired or returned.
    Over {
        /// Which of these happened.
        event: Event,
        /// The time of this. For an expiry, the end of the hold: its entry may be later.
        time: Timestamp,
    },
    /// It is confirmed or was accepted without a hold, so it cannot be cancelled. Or the sale takes no order back,
    /// since its stock was set by hand.
    Final,
    /// It is held: it can be cancelled, but not returned.
    NotConfirmed,
    /// There is no such order to confirm, cancel or return.
    Unknown,
    /// Fewer units are left than it asks for, even with the units that are held. Nothing is recorded: a retry with the
    /// same id is a new attempt. The same is true of the refusals below.
    SoldOut {
        /// The units left.
        remaining: u64,
    },
    /// Fewer units are left than it asks for, but enough with the units that are held.
    AllHeld {
        /// The units left.
        remaining: u64,
        /// The time until the first hold ends, by Redis' clock.
        ends_in: Duration,
        /// How long holds last, in seconds.
        hold_seconds: u32,
    },
    /// Too few units are left for it or for its user, but more holds are over than one batch can end. After the next
    /// batch the outcome may differ.
    HoldsDue,
    /// It asks for more than an order or its user may have.
    LimitReached {
        /// Whether it is the limit of each user.
        is_per_user: bool,
        /// The limit.
        limit: u64,
        /// The units that its user has, if the sale counts these.
        has: u64,
    },
    /// The sale limits the units of each user, and the order has no user.
    UserRequired,
    /// The sale has not started.
    NotStarted {
        /// When it starts.
        at: Timestamp,
        /// The time until then, by Redis' clock.
        within: Duration,
    },
    /// The sale accepts no new orders for now.
    Paused,
    /// The sale has ended.
    SaleEnded {
        /// When it ended.
        at: Timestamp,
    },
    /// Its id belongs to an order with another quantity or user.
    Conflict,
    /// Nothing was done in the running sale: an [earlier attempt](Attempt::sent_under) may have been carried out in the
    /// sale before.
    SaleReplaced,
    /// The store's record of this id is damaged. This does not affect other orders of the batch.
    Damaged {
        /// The key, and what is wrong with it.
        what: String,
    },
}

impl Outcome {
    /// Parses the script's answer to `order`: the outcome, and the ledger entry that the answer acknowledges. If the entry has
    /// the number of this request, the request made it.
    pub(crate) fn parse(
        order: &Order,
        request: Option<u32>,
        answer: &str,
    ) -> Option<(Self, Option<Acknowledged>)> {
        let (word, rest) = answer.split_once('\t').unwrap_or((answer, ""));
        // `over`: the end of the hold, if it expired, and the entry
        let (ended_at, change) = rest.split_once('\t').unwrap_or_default();
        let entry = match word {
            // a record begins with the version of its format: the order was accepted by this call
            "2" => Some(answer),
            // the answer is empty if it is not UTF-8, as when a record is damaged
            "repeated" | "changed" | "unchanged" | "" => Some(rest),
            "over" => Some(change),
            _ => None,
        };
        if let Some(entry) = entry {
            let key = order.key();
            let Some(found) = Accepted::parse(&key, entry) else {
                // a damaged record affects its order alone
                let what = format!("{} has no order under {key}", order.item.key("orders"));
                return (word != "2").then_some((Self::Damaged { what }, None));
            };
            let (position, key) = (found.position, found.field(&key));
            let entry = Acknowledged { position, key, entry: entry.to_owned() };
            // an earlier attempt of the same request made the entry
            let is_own = request.is_some() && found.request == request;
            let outcome = match word {
                "2" => Self::Reserved(found),
                "repeated" if is_own => Self::Reserved(found),
                "repeated" => Self::Repeated(found),
                "over" => {
                    let time = ended_at.parse().ok().and_then(Timestamp::new).unwrap_or(found.time);
                    Self::Over { event: found.event, time }
                }
                _ => Self::Changed { change: found, is_repeated: word == "unchanged" && !is_own },
            };
            return Some((outcome, Some(entry)));
        }
        let numbers = numbers(rest);
        let outcome = match (word, &numbers[..]) {
            ("sold-out", [remaining]) => Self::too_few(*remaining, rest),
            ("holds-due", _) => Self::HoldsDue,
            ("order-limit" | "user-limit", [limit, has]) => {
                Self::LimitReached { is_per_user: word == "user-limit", limit: *limit, has: *has }
            }
            ("final", _) => Self::Final,
            ("not-confirmed", _) => Self::NotConfirmed,
            ("conflict", _) => Self::Conflict,
            ("sale-replaced", _) => Self::SaleReplaced,
            ("unknown", _) => Self::Unknown,
            ("user-required", _) => Self::UserRequired,
            ("damaged", _) => Self::Damaged { what: rest.to_owned() },
            _ => Self::closed(word, &numbers)?,
        };
        Some((outcome, None))
    }

    /// The outcome of every new order while the sale accepts none, by the answer of a script.
    fn closed(word: &str, numbers: &[u64]) -> Option<Self> {
        Some(match (word, numbers) {
            ("not-started", [at, within]) => {
                let within = Duration::from_micros(*within);
                Self::NotStarted { at: Timestamp::clamped(*at), within }
            }
            ("paused", _) => Self::Paused,
            ("ended", [at]) => Self::SaleEnded { at: Timestamp::clamped(*at) },
            _ => return None,
        })
    }

    /// The same, from an answer that is about no order.
    pub(super) fn of_closed(answer: &str) -> Option<Self> {
        let (word, rest) = answer.split_once('\t').unwrap_or((answer, ""));
        Self::closed(word, &numbers(rest))
    }

    /// The outcome of an order for which too few units are left, from the fields of the answer.
    fn too_few(remaining: u64, fields: &str) -> Self {
        let number =
            |mark| fields.split('\t').find_map(|field| field.strip_prefix(mark)?.parse().ok());
        match (number('w'), number('h').and_then(|seconds: u64| seconds.try_into().ok())) {
            (Some(micros), Some(hold_seconds)) => {
                Self::AllHeld { remaining, ends_in: Duration::from_micros(micros), hold_seconds }
            }
            _ => Self::SoldOut { remaining },
        }
    }

    /// The outcome in a word: the order's event, or the `type` of the problem that its buyer gets.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Reserved(_) | Self::Repeated(_) => Event::Reserved.word(),
            Self::Changed { change: Accepted { event, .. }, .. } | Self::Over { event, .. } => {
                event.word()
            }
            Self::Final => "order-final",
            Self::NotConfirmed => "not-confirmed",
            Self::Unknown => "unknown-order",
            Self::SoldOut { .. } => "sold-out",
            Self::AllHeld { .. } => "all-held",
            // only a guard without a queue returns this: a queue puts the order into the next batch
            Self::HoldsDue => "wait-too-long",
            Self::LimitReached { .. } => "limit-reached",
            Self::UserRequired => "user-required",
            Self::NotStarted { .. } => "not-started",
            Self::Paused => "paused",
            Self::SaleEnded { .. } => "ended",
            Self::Conflict => "order-conflict",
            Self::SaleReplaced => "sale-replaced",
            Self::Damaged { .. } => "damaged",
        }
    }

    /// Whether the script, run again under the same token, could give the same order another outcome. Units come back
    /// when a hold ends or an order is returned. A change of the sale raises the fence, so it does not count.
    pub(crate) fn may_change(&self) -> bool {
        matches!(
            self,
            Self::SoldOut { .. }
                | Self::LimitReached { .. }
                | Self::AllHeld { .. }
                | Self::NotConfirmed
                | Self::NotStarted { .. }
                | Self::Unknown
                | Self::HoldsDue
        )
    }

    /// Whether the sale accepts no new orders now.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self, Self::NotStarted { .. } | Self::Paused | Self::SaleEnded { .. })
    }

    /// The units left after it, if the outcome has them.
    pub(crate) fn left(&self) -> Option<u64> {
        match self {
            Self::Reserved(accepted) => Some(accepted.remaining),
            Self::Changed { change, is_repeated: false } => Some(change.remaining),
            Self::SoldOut { remaining } | Self::AllHeld { remaining, .. } => Some(*remaining),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the writer of an entry is read as it was written, whatever the names are. Without a holder its text has
    /// the form that the previous version writes.
    #[test]
    fn a_writer_survives_its_text() {
        for (instance, request, holder, record) in [
            ("8080", None, None, "8080"),
            ("8080", Some(42), None, "8080#0000002a"),
            ("8080", Some(42), Some("8090"), "8080#0000002a@8090"),
            ("me@host", None, None, "me@host"),
            ("me@host", Some(7), None, "me@host#00000007"),
            ("a#0000002a@b", Some(7), Some("c"), "a#0000002a@b#00000007@c"),
            ("#", Some(u32::MAX), Some("-"), "##ffffffff@-"),
        ] {
            assert_eq!(writer_record(instance, request, holder), record);
            assert_eq!(parse_writer(record), (instance, request, holder));
        }
        for (holder, record) in
            [("8080", "8080#0000002a"), ("", "8080#0000002a"), ("x@#\n", "8080#0000002a@x???")]
        {
            assert_eq!(writer_record("8080", Some(42), Some(holder)), record);
        }
        // in no version's form: the text is the name
        for strange in [
            "8080#2a",
            "8080#+000002a",
            "8080#0000002A",
            "8080#0000002a@",
            "8080@8090",
            "8080#2a@8090",
            "8080#0000002a@8090@8100",
            "",
            "@",
            "#",
        ] {
            assert_eq!(parse_writer(strange), (strange, None, None));
        }
    }
}
