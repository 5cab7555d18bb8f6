//! One order from its buyer's side: attempts and outcome.

use std::borrow::Cow;
use std::iter;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Why an attempt is unsettled if its client closed the connection on purpose.
const WENT_AWAY: &str = "client went away";

/// The problem type of a refusal because all units are held.
pub(crate) const ALL_HELD: &str = "all-held";

/// The problem type of a refusal because the sale is paused.
const PAUSED: &str = "paused";

/// The problem types of refusals that may pass: the buyer can wait and try again.
pub(crate) const MAY_PASS: [&str; 2] = [ALL_HELD, PAUSED];

/// What happened to an order, as the ledger records it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Event {
    /// The order was accepted.
    #[default]
    Reserved,
    /// The order became final.
    Confirmed,
    /// Its units came back because its buyer cancelled it.
    Cancelled,
    /// Its units came back because its hold ended.
    Expired,
    /// It was final, and its units came back.
    Returned,
    /// Of no order: the sale was changed.
    Changed,
}

/// One order of a run. The default is an order that was not sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Order {
    pub(crate) outcome: FinalOutcome,
    /// The HTTP status of its definite answer, if it has one. An answer that may pass is definite until the order is sent again.
    pub(crate) status: Option<u16>,
    /// Whether an attempt without an answer may have taken units.
    pub(crate) in_doubt: bool,
    /// Whether its buyer went away for good, on purpose.
    pub(crate) abandoned: bool,
    /// How many times the order was sent; 0 if all buyers had given up before its turn.
    pub(crate) attempts: u32,
    /// Why attempts settled nothing, for each attempt that was to be retried.
    pub(crate) unsettled: Vec<String>,
    /// The instances it was first and last sent to, as indexes into the URLs.
    pub places: (usize, usize),
    /// When it was first sent, in microseconds since the run's start.
    pub sent: u64,
    /// When it was last sent, in microseconds since the run's start.
    pub(crate) last_sent: u64,
    /// The attempts that were refused because all units were held, or the sale was paused.
    pub(crate) held: Vec<Held>,
    /// When its last attempt ended, in microseconds since the run's start.
    pub ended: u64,
    /// The buyer's later requests for the order, one after the other: to confirm, cancel or return it, or (`Reserved`) to get
    /// its answer again. These have no further changes.
    pub(crate) changes: Vec<(Event, Order)>,
}

/// An attempt that was refused for a reason that may pass. Times are microseconds since the run's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// Whether the reason was a pause of the sale, and not that all units were held.
    pub(crate) is_paused: bool,
    pub(crate) sent: u64,
    pub(crate) ended: u64,
    /// When the buyer tried again.
    pub(crate) again: Option<u64>,
}

/// The final outcome of an order for its buyer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum FinalOutcome {
    Acknowledged(Acknowledgement),
    /// Refused: too few units were left, even with those that are held.
    SoldOut,
    /// The buyer gave up while all units were held, or the sale was paused.
    HeldOut,
    /// Refused: the user has as many units as allowed.
    LimitReached,
    /// The order was accepted, but had ended in this way before the answer, which says so.
    Over(Event),
    /// No such order was accepted so far, so nothing can be changed.
    UnknownOrder,
    /// There was no definite answer.
    #[default]
    Unknown,
    /// Any other answer, such as `500 internal`: the status and the problem's type.
    Failed(String),
}

/// The answer to an accepted order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acknowledgement {
    /// The stock after the order.
    pub remaining: i64,
    /// The instance that accepted the order.
    pub instance: String,
    /// The token under which the order was accepted; `None` if no lock guarded it.
    pub token: Option<i64>,
    /// Its place in the ledger, if known.
    pub position: Option<u64>,
    /// Whether the answer is marked as repeated.
    pub replayed: bool,
}

/// How one attempt ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The HTTP status, if there was an answer.
    pub status: Option<u16>,
    /// The effect of the attempt.
    #[serde(flatten)]
    pub effect: Effect,
}

/// The effect of an attempt on the stock, as far as the client knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Effect {
    /// The order was accepted.
    Ok(Acknowledgement),
    /// The attempt took nothing, for certain.
    Failed(Failure),
    /// Anything else: the attempt may have taken units.
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
    /// The last part of the request's path that leads to this event; `again` for an order that is sent again.
    pub(crate) fn verb(self) -> &'static str {
        match self {
            Self::Reserved => "again",
            Self::Confirmed => "confirm",
            Self::Cancelled | Self::Expired => "cancel",
            Self::Returned => "return",
            Self::Changed => "change",
        }
    }

    /// How an entry with this event and quantity changes the stock.
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
    /// The answer to a request for this event, in a word.
    pub(crate) fn word(&self, event: Event) -> String {
        match self {
            Self::Acknowledged(_) => format!("{event:?}").to_lowercase(),
            Self::Over(event) => format!("{event:?}").to_lowercase(),
            Self::SoldOut => "sold out".to_owned(),
            Self::HeldOut => "all held or paused".to_owned(),
            Self::LimitReached => "limit reached".to_owned(),
            Self::UnknownOrder => "unknown order".to_owned(),
            Self::Unknown => "no answer".to_owned(),
            Self::Failed(kind) => kind.clone(),
        }
    }
}

impl Outcome {
    /// The outcome of an attempt whose client closed the connection before the answer.
    pub fn went_away() -> Self {
        let failure = Failure { why: WENT_AWAY.into(), is_final: false };
        Self { status: None, effect: Effect::Unknown(failure) }
    }
}

impl Order {
    /// Adds an attempt at the instance `to`, which lasted from `sent` to `ended`. The attempts of an order follow one another.
    pub fn add(&mut self, to: usize, sent: u64, ended: u64, outcome: Outcome) {
        if self.attempts == 0 {
            (self.places.0, self.sent) = (to, sent);
        }
        self.places.1 = to;
        self.attempts = self.attempts.saturating_add(1);
        (self.last_sent, self.ended) = (sent, ended);
        self.in_doubt |= matches!(outcome.effect, Effect::Unknown(_));
        if self.outcome == FinalOutcome::HeldOut {
            (self.status, self.outcome) = (None, FinalOutcome::Unknown);
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
            if status == Some(409) && MAY_PASS.contains(&&*why) {
                (self.status, self.outcome) = (status, FinalOutcome::HeldOut);
                self.held.push(Held { is_paused: why == PAUSED, sent, ended, again: None });
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

    pub(crate) fn answer(&self) -> Option<&Acknowledgement> {
        match &self.outcome {
            FinalOutcome::Acknowledged(answer) => Some(answer),
            _ => None,
        }
    }

    /// If the order was accepted: the stock after it, and the token under which it was accepted.
    pub fn sold(&self) -> Option<(i64, Option<i64>)> {
        self.answer().map(|answer| (answer.remaining, answer.token))
    }

    /// Whether it was refused because too few units were left.
    pub fn is_sold_out(&self) -> bool {
        self.outcome == FinalOutcome::SoldOut
    }

    /// When the buyer got the acknowledgement.
    pub(crate) fn acknowledged(&self) -> Option<u64> {
        self.answer().map(|_| self.ended)
    }

    /// Whether the buyer was told that the order was accepted, or how it ended.
    pub(crate) fn is_accepted(&self) -> bool {
        self.answer().is_some() || self.told().next().is_some()
    }

    /// Whether the order was refused: too few units were left, its user had enough, or the sale was paused.
    pub(crate) fn is_refused(&self) -> bool {
        use FinalOutcome::{HeldOut, LimitReached, SoldOut};
        matches!(self.outcome, SoldOut | HeldOut | LimitReached)
    }

    pub(crate) fn is_decided(&self) -> bool {
        self.is_refused() || self.is_accepted()
    }

    /// The events that the buyer was told of, and when.
    pub(crate) fn told(&self) -> impl Iterator<Item = (Event, u64)> {
        self.questions().filter_map(|(event, asked)| match asked.outcome {
            FinalOutcome::Acknowledged(_) if event != Event::Reserved => Some((event, asked.ended)),
            FinalOutcome::Over(event) => Some((event, asked.ended)),
            _ => None,
        })
    }

    /// The order itself, and the buyer's later requests for it.
    pub(crate) fn questions(&self) -> impl Iterator<Item = (Event, &Self)> {
        iter::once((Event::Reserved, self)).chain(self.asked())
    }

    /// The buyer's later requests for the order.
    pub(crate) fn asked(&self) -> impl Iterator<Item = (Event, &Self)> + Clone {
        self.changes.iter().map(|(event, asked)| (*event, asked))
    }

    /// The latest request of this kind if it is still open, else a new one.
    pub fn change(&mut self, event: Event) -> &mut Self {
        if self.changes.last().is_none_or(|(last, asked)| *last != event || !asked.is_open()) {
            self.changes.push((event, Self::default()));
        }
        let last = self.changes.len() - 1;
        &mut self.changes[last].1
    }

    /// How long the order was tried: from its first sending to the end of its last attempt. The time in which its buyer waited
    /// for held units, or for the end of a pause, does not count; the time in which the client was away on purpose does.
    pub(crate) fn length(&self) -> Duration {
        Duration::from_micros(self.ended.saturating_sub(self.sent).saturating_sub(self.waited()))
    }

    /// How long the buyer waited for held units or for the end of a pause, in microseconds.
    pub(crate) fn waited(&self) -> u64 {
        let waits = self.held.iter().filter_map(|it| Some(it.again?.saturating_sub(it.ended)));
        waits.sum()
    }

    /// When the first attempt was sent that may have made its entry. If none is in doubt, the last one made it.
    pub(crate) fn done_from(&self) -> u64 {
        if self.in_doubt { self.sent } else { self.last_sent }
    }

    /// How many times the order, and the later requests for it, were sent.
    pub(crate) fn all_attempts(&self) -> u64 {
        self.questions().map(|(_, asked)| u64::from(asked.attempts)).sum()
    }

    /// Whether the order has a definite answer.
    pub(crate) fn is_settled(&self) -> bool {
        self.outcome != FinalOutcome::Unknown
    }

    /// Whether the order may be tried again.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.outcome, FinalOutcome::Unknown | FinalOutcome::HeldOut)
    }

    /// Whether the order must not be in the ledger, because by its answers no attempt can have taken anything. Unless the sale
    /// `can_gain` units, a refusal covers all attempts: an accepted order would have got its first answer again. If the sale
    /// can gain units, an attempt without an answer may arrive after the refusal.
    pub(crate) fn must_not_stand(&self, can_gain: bool) -> bool {
        !self.is_accepted() && !(self.in_doubt && (can_gain || !self.is_refused()))
    }
}
