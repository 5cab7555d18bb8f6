//! One order from its buyer's side: attempts and outcome.

use std::borrow::Cow;
use std::iter;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Why an attempt is unsettled if its client closed the connection on purpose.
const WENT_AWAY: &str = "client went away";

/// The type of the problem that says that all units are held.
pub(crate) const ALL_HELD: &str = "all-held";

/// What an entry of the ledger says of an order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Event {
    /// It was accepted.
    #[default]
    Reserved,
    /// It became final.
    Confirmed,
    /// Its units came back, since its buyer said so.
    Cancelled,
    /// Its units came back, since its hold had ended.
    Expired,
    /// It was final, and its units came back.
    Returned,
    /// Of no order: the sale was changed.
    Changed,
}

/// One order of a run; by default one that was not sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Order {
    pub(crate) outcome: FinalOutcome,
    /// The HTTP status of its definite answer, if it has one.
    pub(crate) status: Option<u16>,
    /// Whether an attempt without an answer may have taken units.
    pub(crate) in_doubt: bool,
    /// Whether its buyer went away for good, on purpose.
    pub(crate) abandoned: bool,
    /// How often it was sent; 0 if all buyers had given up before.
    pub(crate) attempts: u32,
    /// Why attempts settled nothing, of each that was to be retried.
    pub(crate) unsettled: Vec<String>,
    /// Where it was first sent to, and last: indexes into the URLs.
    pub places: (usize, usize),
    /// When it was first sent, in microseconds since the run's start.
    pub sent: u64,
    /// When it was last sent, in microseconds since the run's start.
    pub(crate) last_sent: u64,
    /// The attempts that were told that all units are held.
    pub(crate) held: Vec<Held>,
    /// When its last attempt ended, in microseconds since the run's start.
    pub ended: u64,
    /// What its buyer asked for then, one after the other: to have it confirmed, cancelled or returned, or to be told again that it is
    /// reserved. These have no changes.
    pub(crate) changes: Vec<(Event, Order)>,
}

/// An attempt that was told that all units are held, in microseconds since the run's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) sent: u64,
    pub(crate) ended: u64,
    /// When its buyer tried again.
    pub(crate) again: Option<u64>,
}

/// The final outcome of an order for its buyer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum FinalOutcome {
    Acknowledged(Acknowledgement),
    /// Too few units were left, even with those that are held.
    SoldOut,
    /// Its buyer gave up while all units were held.
    HeldOut,
    /// Its user has as many units as one may have.
    LimitReached,
    /// It was accepted, and this happened to it before the answer, which tells it.
    Over(Event),
    /// No such order was accepted so far, so that nothing can become of it.
    UnknownOrder,
    /// No definite answer.
    #[default]
    Unknown,
    /// Any other answer, such as `500 internal`: the status and the problem's type.
    Failed(String),
}

/// The answer to an accepted order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acknowledgement {
    /// The stock that was left after it.
    pub remaining: i64,
    /// The instance that accepted it.
    pub instance: String,
    /// The token under which it was accepted; `None` if nothing guarded it.
    pub token: Option<i64>,
    /// Its place in the ledger, if known.
    pub position: Option<u64>,
    /// Whether it is marked as an answer that was given before.
    pub replayed: bool,
}

/// How one attempt ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The HTTP status, if there was an answer.
    pub status: Option<u16>,
    /// What it did.
    #[serde(flatten)]
    pub effect: Effect,
}

/// What an attempt did to the stock, as far as the client knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Effect {
    /// The order was accepted.
    Ok(Acknowledgement),
    /// The attempt took nothing, for certain.
    Failed(Failure),
    /// Anything else.
    Unknown(Failure),
}

/// An attempt that was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The problem's type, or what happened instead of an answer.
    pub why: Cow<'static, str>,
    /// Whether a retry is useless.
    #[serde(rename = "final")]
    pub is_final: bool,
}

impl Event {
    /// What is asked for to have it: the last part of the path, but of an order that is sent again.
    pub(crate) fn verb(self) -> &'static str {
        match self {
            Self::Reserved => "again",
            Self::Confirmed => "confirm",
            Self::Cancelled | Self::Expired => "cancel",
            Self::Returned => "return",
            Self::Changed => "change",
        }
    }

    /// How an entry of so many units changes the stock.
    pub(crate) fn to_stock(self, quantity: u64) -> i64 {
        let quantity = i64::try_from(quantity).unwrap_or(i64::MAX);
        match self {
            Self::Reserved => -quantity,
            Self::Confirmed | Self::Changed => 0,
            Self::Cancelled | Self::Expired | Self::Returned => quantity,
        }
    }
}

impl FinalOutcome {
    /// The answer to the question for this event, in a word.
    pub(crate) fn word(&self, event: Event) -> String {
        match self {
            Self::Acknowledged(_) => format!("{event:?}").to_lowercase(),
            Self::Over(event) => format!("{event:?}").to_lowercase(),
            Self::SoldOut => "sold out".to_owned(),
            Self::HeldOut => "all held".to_owned(),
            Self::LimitReached => "limit reached".to_owned(),
            Self::UnknownOrder => "unknown order".to_owned(),
            Self::Unknown => "no answer".to_owned(),
            Self::Failed(kind) => kind.clone(),
        }
    }
}

impl Outcome {
    /// The outcome of an attempt whose client closed the connection before there was an answer.
    pub fn went_away() -> Self {
        let failure = Failure { why: WENT_AWAY.into(), is_final: false };
        Self { status: None, effect: Effect::Unknown(failure) }
    }
}

impl Order {
    /// Adds an attempt at the instance `to`, which lasted from `sent` to `ended`. The attempts of an order
    /// follow each other.
    pub fn add(&mut self, to: usize, sent: u64, ended: u64, outcome: Outcome) {
        if self.attempts == 0 {
            (self.places.0, self.sent) = (to, sent);
        }
        self.places.1 = to;
        self.attempts = self.attempts.saturating_add(1);
        (self.last_sent, self.ended) = (sent, ended);
        self.in_doubt |= matches!(outcome.effect, Effect::Unknown(_));
        if self.outcome == FinalOutcome::HeldOut {
            self.outcome = FinalOutcome::Unknown;
            self.held.last_mut().into_iter().for_each(|held| held.again = Some(sent));
        }
        let Outcome { status, effect } = outcome;
        let Failure { why, is_final } = match effect {
            Effect::Ok(answer) => {
                self.abandoned = false;
                (self.status, self.outcome) = (status, FinalOutcome::Acknowledged(answer));
                return;
            }
            Effect::Failed(failure) | Effect::Unknown(failure) => failure,
        };
        self.abandoned = why == WENT_AWAY;
        let number = status.map(|status| status.to_string()).unwrap_or_default();
        let kind = format!("{number} {why}").trim().to_owned();
        if !is_final {
            self.unsettled.push(kind);
            if status == Some(409) && why == ALL_HELD {
                self.outcome = FinalOutcome::HeldOut;
                self.held.push(Held { sent, ended, again: None });
            }
        } else if let Some(number) = status {
            self.status = status;
            self.outcome = match (number, &*why) {
                (409, "sold-out") => FinalOutcome::SoldOut,
                (409, "limit-reached") => FinalOutcome::LimitReached,
                (409, "order-final") => FinalOutcome::Over(Event::Confirmed),
                (404, "unknown-order") => FinalOutcome::UnknownOrder,
                (410, "cancelled") => FinalOutcome::Over(Event::Cancelled),
                (410, "expired") => FinalOutcome::Over(Event::Expired),
                (410, "returned") => FinalOutcome::Over(Event::Returned),
                _ => FinalOutcome::Failed(kind),
            };
        }
    }

    /// The acknowledgement.
    pub(crate) fn answer(&self) -> Option<&Acknowledgement> {
        match &self.outcome {
            FinalOutcome::Acknowledged(answer) => Some(answer),
            _ => None,
        }
    }

    /// If it was accepted: the stock that was left after it, and the token under which it was accepted.
    pub fn sold(&self) -> Option<(i64, Option<i64>)> {
        self.answer().map(|answer| (answer.remaining, answer.token))
    }

    /// Whether it was refused because too few units were left.
    pub fn is_sold_out(&self) -> bool {
        self.outcome == FinalOutcome::SoldOut
    }

    /// When its buyer got the acknowledgement.
    pub(crate) fn acknowledged(&self) -> Option<u64> {
        self.answer().map(|_| self.ended)
    }

    /// Whether its buyer was told that it was accepted, or what became of it.
    pub(crate) fn is_accepted(&self) -> bool {
        self.answer().is_some() || self.told().next().is_some()
    }

    /// Whether it was refused for what was left.
    pub(crate) fn is_refused(&self) -> bool {
        use FinalOutcome::{HeldOut, LimitReached, SoldOut};
        matches!(self.outcome, SoldOut | HeldOut | LimitReached)
    }

    /// Whether it was accepted or refused.
    pub(crate) fn is_decided(&self) -> bool {
        self.is_refused() || self.is_accepted()
    }

    /// What its buyer was told to have happened to it, and when.
    pub(crate) fn told(&self) -> impl Iterator<Item = (Event, u64)> {
        self.questions().filter_map(|(event, asked)| match asked.outcome {
            FinalOutcome::Acknowledged(_) if event != Event::Reserved => Some((event, asked.ended)),
            FinalOutcome::Over(event) => Some((event, asked.ended)),
            _ => None,
        })
    }

    /// The order, and what its buyer asked for then.
    pub(crate) fn questions(&self) -> impl Iterator<Item = (Event, &Self)> {
        iter::once((Event::Reserved, self)).chain(self.asked())
    }

    /// What its buyer asked for then.
    pub(crate) fn asked(&self) -> impl Iterator<Item = (Event, &Self)> + Clone {
        self.changes.iter().map(|(event, asked)| (*event, asked))
    }

    /// The latest question of this kind if it is open, or else a new one.
    pub fn change(&mut self, event: Event) -> &mut Self {
        if self.changes.last().is_none_or(|(last, asked)| *last != event || !asked.is_open()) {
            self.changes.push((event, Self::default()));
        }
        let last = self.changes.len() - 1;
        &mut self.changes[last].1
    }

    /// How long it was tried: from its first sending to the end of its last attempt, without the time in which its buyer waited
    /// for units that were held. It includes the time in which its buyer was away on purpose.
    pub(crate) fn length(&self) -> Duration {
        Duration::from_micros(self.ended.saturating_sub(self.sent).saturating_sub(self.waited()))
    }

    /// How long its buyer waited for units that were held, in microseconds.
    pub(crate) fn waited(&self) -> u64 {
        let waits = self.held.iter().filter_map(|it| Some(it.again?.saturating_sub(it.ended)));
        waits.sum()
    }

    /// When it was first sent by an attempt that can have made its entry.
    pub(crate) fn accepted_from(&self) -> u64 {
        let latest = self.held.last().filter(|_| !self.in_doubt);
        latest.and_then(|held| held.again).unwrap_or(self.sent)
    }

    /// How often anything was sent.
    pub(crate) fn all_attempts(&self) -> u64 {
        self.questions().map(|(_, asked)| u64::from(asked.attempts)).sum()
    }

    /// Whether it has a definite answer.
    pub(crate) fn is_settled(&self) -> bool {
        self.outcome != FinalOutcome::Unknown
    }

    /// Whether it may be tried again.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.outcome, FinalOutcome::Unknown | FinalOutcome::HeldOut)
    }

    /// Whether it must not be in the ledger: by its answers, no attempt can have taken anything. Unless the sale `can_gain`
    /// units, a refusal speaks for all attempts, as an accepted order gets its first answer again. In a sale that can, an
    /// attempt without an answer may arrive after the refusal.
    pub(crate) fn must_not_stand(&self, can_gain: bool) -> bool {
        !self.is_accepted() && !(self.in_doubt && (can_gain || !self.is_refused()))
    }
}
