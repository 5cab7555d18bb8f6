//! The ids, times and terms of sales, and the calls that start and change them.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::stock::Phase;
use super::{Inventory, OrderId};
use crate::process::random_id;

/// The id of a sale, which a caller chooses or the service makes: 1 to 64 letters, digits, dots, `-` and `_`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SaleId(Box<str>);

impl SaleId {
    /// A new, unique id.
    pub fn random() -> Self {
        Self(random_id().to_string().into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SaleId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        let valid = (1..=64).contains(&text.len()) && text.bytes().all(allowed);
        valid
            .then(|| Self(text.into()))
            .ok_or("a sale's id is 1 to 64 letters, digits, dots, - and _")
    }
}

/// A sale as `If-Match` names it: its id, and behind a colon the version that it must have, if the caller names one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaleVersion(String);

impl From<SaleId> for SaleVersion {
    fn from(id: SaleId) -> Self {
        Self(id.as_str().to_owned())
    }
}

impl fmt::Display for SaleVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for SaleVersion {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Some((id, version)) = text.split_once(':') else {
            return text.parse().map(SaleId::into);
        };
        let is_number = version.bytes().all(|byte| byte.is_ascii_digit());
        let number = version.parse::<u64>().ok().filter(|_| is_number);
        let number = number.ok_or("a version is a whole number, such as 7 in \"SALE:7\"")?;
        let id: SaleId = id.parse()?;
        Ok(Self(format!("{}:{number}", id.as_str())))
    }
}

/// A time from 1970 to the end of the year 9999, in microseconds of Redis' clock. Its text follows RFC 3339.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The time `micros` microseconds after the beginning of 1970; `None` if RFC 3339 cannot write it.
    pub fn new(micros: u64) -> Option<Self> {
        (micros < YEAR_10000).then_some(Self(micros))
    }

    /// The same, but at most the last time that RFC 3339 can write. Lua rounds that time up.
    pub(super) fn clamped(micros: u64) -> Self {
        Self(micros.min(YEAR_10000 - 1))
    }

    /// The microseconds since 1970.
    pub fn micros(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = SystemTime::UNIX_EPOCH + Duration::from_micros(self.0);
        humantime::format_rfc3339_micros(time).fmt(f)
    }
}

impl FromStr for Timestamp {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        micros_of(text)
            .and_then(Self::new)
            .ok_or("a time is written as in RFC 3339, such as 2026-11-27T08:00:00Z")
    }
}

/// The first time that RFC 3339 cannot write.
const YEAR_10000: u64 = 253_402_300_800_000_000;

fn micros_of(text: &str) -> Option<u64> {
    // `humantime` reads UTC only
    let since_epoch = |text: &str| {
        let time = humantime::parse_rfc3339(text).ok()?;
        time.duration_since(SystemTime::UNIX_EPOCH).ok()
    };
    let at = text.len().checked_sub(6);
    let (local, offset) = match at.and_then(|at| text.split_at_checked(at)) {
        Some((local, offset)) if offset.starts_with(['+', '-']) => (local, offset),
        _ => (text.strip_suffix(['Z', 'z'])?, "+00:00"),
    };
    let (local, ahead) = (format!("{local}Z"), format!("1970-01-01T{}:00Z", &offset[1..]));
    let (local, ahead) = (since_epoch(&local)?, since_epoch(&ahead)?);
    let time = if offset.starts_with('-') { local + ahead } else { local.checked_sub(ahead)? };
    time.as_micros().try_into().ok()
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The terms of a sale. `None`: no such limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// The most units of one order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_order: Option<u32>,
    /// The most units of one user, whether held or confirmed. Each order then needs a user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_user: Option<u32>,
    /// How long an order holds its units until it is confirmed. `None`: an order needs no confirmation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold_seconds: Option<u32>,
    /// When the first order is accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<Timestamp>,
    /// From this time on, no order is accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<Timestamp>,
}

/// The change of a running sale that a caller asks for. At least one field has a value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SaleChange {
    /// Units to add; below zero: to withdraw.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub add: Option<i64>,
    /// Whether the sale refuses new orders for now.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// When the first order is accepted. Only a sale that has not started can change this.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<When>,
    /// From this time on, no order is accepted.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<When>,
    /// The most units of one order; [`MAX_LIMIT`](Terms::MAX_LIMIT): any number.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub per_order: Option<u32>,
    /// The most units of one user, in a sale that began with such a limit.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub per_user: Option<u32>,
    /// How long a new order holds its units, in a sale that began with holds.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub hold_seconds: Option<u32>,
    /// A note for the ledger, in the entry of the change.
    #[serde(deserialize_with = "present", skip_serializing)]
    pub note: Option<String>,
}

/// Refuses null, which would say nothing.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// A time of Redis' clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The time of the change.
    Now,
    /// This time.
    At(Timestamp),
}

impl When {
    /// The time, unless it is `now`.
    fn time(self) -> Option<Timestamp> {
        if let Self::At(time) = self { Some(time) } else { None }
    }
}

impl Serialize for When {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Now => serializer.serialize_str("now"),
            Self::At(time) => time.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for When {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl FromStr for When {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "now" { Ok(Self::Now) } else { text.parse().map(Self::At) }
    }
}

impl SaleChange {
    /// The most characters of a note.
    pub const MAX_NOTE: usize = 200;

    /// Checks the numbers and times.
    ///
    /// # Errors
    /// The rule that is broken.
    pub fn check(&self) -> Result<(), &'static str> {
        let Self { add, starts_at, ends_at, per_order, per_user, hold_seconds, .. } = *self;
        let note = self.note.as_deref().unwrap_or_default();
        if note.chars().count() > Self::MAX_NOTE || note.contains(char::is_control) {
            return Err("`note` is a text of at most 200 characters, without control characters");
        }
        if (Self { note: None, ..self.clone() }) == Self::default() {
            return Err("a change has at least one field beside `note`");
        }
        if add.is_some_and(|units| units == 0 || units.unsigned_abs() > Inventory::MAX_UNITS) {
            return Err("`add` is a whole number from -1000000000000 to 1000000000000, and not 0");
        }
        let [starts_at, ends_at] = [starts_at, ends_at].map(|when| when.and_then(When::time));
        let terms = Terms { per_order, per_user, hold_seconds, starts_at, ends_at };
        terms.check().and_then(|()| terms.check_times())
    }
}

/// A call that changes the running sale.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeCall {
    /// Makes retries safe: a known key gets its first entry again.
    pub key: OrderId,
    /// The change.
    pub change: SaleChange,
    /// The sales that it may change.
    pub sales: Vec<SaleVersion>,
}

impl ChangeCall {
    /// The field of the change in the hash of changes. No order can have it.
    pub(super) fn field(&self) -> String {
        format!("\n\t{}", self.key.as_str())
    }

    /// The arguments of the script from the content on: the change with its note, the sales, the new times in microseconds, and a
    /// text that stands in place of a time if the caller asks for `now`, since Lua cannot write times.
    pub(super) fn arguments(&self) -> [String; 5] {
        #[derive(Serialize)]
        struct Content<'a> {
            change: &'a SaleChange,
            #[serde(skip_serializing_if = "Option::is_none")]
            note: Option<&'a str>,
        }
        let Self { change, sales, .. } = self;
        let content = serde_json::to_string(&Content { change, note: change.note.as_deref() });
        let content = content.expect("texts and numbers always serialize");
        let micros = |when: Option<When>| {
            when.and_then(When::time).map(|time| time.micros().to_string()).unwrap_or_default()
        };
        let times = [change.starts_at, change.ends_at];
        let now = times.contains(&Some(When::Now)).then(|| {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            Timestamp::clamped(u64::try_from(now.as_micros()).unwrap_or_default()).to_string()
        });
        let [starts_at, ends_at] = times.map(micros);
        [content, listed(sales), starts_at, ends_at, now.unwrap_or_default()]
    }
}

/// The argument of the script for a choice of sales.
fn listed(sales: &[SaleVersion]) -> String {
    let sales: Vec<&str> = sales.iter().map(|SaleVersion(text)| text.as_str()).collect();
    format!(" {} ", sales.join(" "))
}

impl Terms {
    /// The largest limit, which limits nothing.
    pub const MAX_LIMIT: u32 = 1_000_000;

    /// The longest hold.
    pub const MAX_HOLD_SECONDS: u32 = 86_400;

    /// The beginning of the year 2200. All times of a new sale are earlier: JSON and Lua count their microseconds exactly.
    const MOST: Timestamp = Timestamp(7_258_118_400_000_000);

    /// The state of a sale at the time `now` of Redis' clock.
    pub(super) fn phase(
        &self,
        now: u64,
        is_paused: bool,
        has_stock: bool,
        has_held: bool,
    ) -> Phase {
        match (has_stock, has_held) {
            _ if self.ends_at.is_some_and(|end| end.micros() <= now) => Phase::Ended,
            _ if is_paused => Phase::Paused,
            _ if self.starts_at.is_some_and(|start| now < start.micros()) => Phase::Scheduled,
            (true, _) => Phase::Running,
            (false, true) => Phase::AllHeld,
            (false, false) => Phase::SoldOut,
        }
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// The rule that is broken.
    pub fn check(&self) -> Result<(), &'static str> {
        let (limit, hold) = (Self::MAX_LIMIT, Self::MAX_HOLD_SECONDS);
        for (value, most, rule) in [
            (self.per_order, limit, "`per_order` is a whole number from 1 to 1000000"),
            (self.per_user, limit, "`per_user` is a whole number from 1 to 1000000"),
            (self.hold_seconds, hold, "`hold_seconds` is a whole number from 1 to 86400"),
        ] {
            if value.is_some_and(|value| !(1..=most).contains(&value)) {
                return Err(rule);
            }
        }
        if self.starts_at.zip(self.ends_at).is_some_and(|(starts, ends)| starts >= ends) {
            return Err("`ends_at` is later than `starts_at`");
        }
        Ok(())
    }

    /// Checks that JSON and Lua can count the times exactly.
    ///
    /// # Errors
    /// The rule that is broken.
    pub fn check_times(&self) -> Result<(), &'static str> {
        if self.starts_at.max(self.ends_at).is_some_and(|time| time >= Self::MOST) {
            return Err(
                "`starts_at` and `ends_at` are before the year 2200: leave out an end that never comes",
            );
        }
        Ok(())
    }
}

/// A sale to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSale {
    /// Its units.
    pub units: u64,
    /// Its id. If the sale of this id runs already, a start gets the first answer again.
    pub id: SaleId,
    /// Whether the caller chose the id, and so can repeat the start.
    pub is_named: bool,
    /// Its terms.
    pub terms: Terms,
    /// The running sale that it may replace.
    pub replaces: Replaces,
}

/// The running sale that a new one may replace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replaces {
    /// A sale without orders.
    WithoutOrders,
    /// One of these sales.
    AnyOf(Vec<SaleVersion>),
    /// Any sale. Its orders are kept.
    Any,
    /// Any sale. Its orders are deleted, unless a caller chose its id.
    Unconditionally,
}

/// This many units without limits, in place of any running sale.
impl From<u64> for NewSale {
    fn from(units: u64) -> Self {
        Self {
            units,
            id: SaleId::random(),
            is_named: false,
            terms: Terms::default(),
            replaces: Replaces::Unconditionally,
        }
    }
}

/// The terms in the store: JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StoredTerms {
    pub(super) id: String,
    named: bool,
    initial: u64,
    /// `starts_at` and `ends_at` in microseconds, for the script.
    #[serde(skip_serializing_if = "Option::is_none")]
    opens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    closes: Option<u64>,
    #[serde(flatten)]
    terms: Terms,
    /// The number of changes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) version: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) paused: bool,
    /// The start of a paused sale. `opens` then is in the year 2199, for the previous version.
    #[serde(skip_serializing_if = "Option::is_none")]
    own_opens: Option<u64>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl StoredTerms {
    /// The terms. The texts of times are made anew: for `now`, the script stores a text of the caller's clock.
    pub(super) fn terms(&self) -> Terms {
        let time = |micros: Option<u64>| micros.map(Timestamp::clamped);
        let opens = if self.paused { self.own_opens } else { self.opens };
        Terms { starts_at: time(opens), ends_at: time(self.closes), ..self.terms.clone() }
    }
}

impl NewSale {
    /// The arguments of the script from the units on: units, terms, id, and what may be replaced.
    pub(super) fn arguments(&self) -> [String; 4] {
        let Self { units, id, is_named, terms, replaces } = self;
        let micros = |time: Option<Timestamp>| time.map(Timestamp::micros);
        let stored = StoredTerms {
            id: id.as_str().to_owned(),
            named: *is_named,
            initial: *units,
            opens: micros(terms.starts_at),
            closes: micros(terms.ends_at),
            terms: terms.clone(),
            version: 0,
            paused: false,
            own_opens: None,
        };
        let stored = serde_json::to_string(&stored).expect("texts and numbers always serialize");
        let replaces = match replaces {
            Replaces::WithoutOrders => String::new(),
            Replaces::AnyOf(sales) => listed(sales),
            Replaces::Any => "*".to_owned(),
            Replaces::Unconditionally => "!".to_owned(),
        };
        [units.to_string(), stored, id.as_str().to_owned(), replaces]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_rfc_3339() {
        let micros = |text: &str| text.parse::<Timestamp>().ok().map(|time| time.0);
        for (text, time) in [
            ("1970-01-01T00:00:01Z", Some(1_000_000)),
            ("1970-01-01T02:00:00.5+02:00", Some(500_000)),
            ("1970-01-01T00:00:00-00:01", Some(60_000_000)),
            ("1970-01-01T00:00:00+00:01", None),
            ("9999-12-31T23:59:59-00:01", None),
            ("9999-12-31T23:59:59.9999999Z", Some(YEAR_10000 - 1)),
            ("1970-01-01T00:00:00", None),
            ("1970-01-01T00:00:00+24:00", None),
            ("1970-01-01T00:00:00+1:00", None),
            ("ü", None),
            ("", None),
        ] {
            assert_eq!(micros(text), time, "{text}");
        }
        let text = "2026-11-27T08:00:00.000001Z";
        assert_eq!(text.parse::<Timestamp>().expect("a time").to_string(), text);
        let last = Timestamp::new(YEAR_10000 - 1).expect("a time").to_string();
        assert_eq!((&*last, Timestamp::new(YEAR_10000)), ("9999-12-31T23:59:59.999999Z", None));
    }

    /// Goal: a sale has only times that JSON and Lua count exactly.
    #[test]
    fn times_of_a_sale_are_exact() {
        for (time, is_allowed) in [
            ("2199-12-31T23:59:59.999999Z", true),
            ("2200-01-01T00:00:00Z", false),
            ("9999-12-31T23:59:59.9999999Z", false), // .NET's "never"
        ] {
            let time: Timestamp = time.parse().expect("a time");
            for terms in [
                Terms { starts_at: Some(time), ..Terms::default() },
                Terms { ends_at: Some(time), ..Terms::default() },
            ] {
                assert_eq!(terms.check_times().is_ok(), is_allowed, "{terms:?}");
            }
            #[allow(clippy::cast_precision_loss, reason = "the loss is what is looked for")]
            let as_double = time.0 as f64;
            assert!(!is_allowed || as_double < 2_f64.powi(53), "{time}");
        }
    }
}
