//! A run in a file: one JSON object a line, so that a run that was killed leaves what it had.
//!
//! # Format
//! Each line is an object with one field, which names the kind of the line. In this order:
//!
//! | line | how often | what |
//! |---|---|---|
//! | `run` | first | `version` (3), `run` (what all order ids begin with), `started` (wall clock), `requests` and `seconds` (the bounds; null is none in time), `connections`, `rate` (or null), `abandon`, `seed`, `quantity`, `alone` (whether there must be no other buyers), `tokens` (whether each order must have one), `without_ledger` (whether the service may have none), `conduct` (`users`, and the shares of the buyers that `pay`, `pay_late`, `cancel`, and send their orders `again`), `instances` (the URLs), `item` (its name; null is the default item), `before` (its state before the first order, as in `state`) |
//! | `attempt` | one each, as they end | see below |
//! | `order` | one each | the ledger: `position`, `event` (left out if it is `reserved`), `order`, `user` (left out if there is none), `quantity`, `remaining`, `instance`, `token` |
//! | `state` | one for an instance that answers | `instance` (an index into `instances`), `state`: `stock`, `lucky`, `initial`, `orders`, and `entries`, `held`, `per_order`, `per_user`, `hold_seconds`, `sale` if they are known; null if there is no such sale any more |
//! | `end` | last | `attempts`, `ledger`: how many lines of each there must be; `orders`: how many orders the run had; `interrupted`: `true` if it was ended before its time, else left out |
//!
//! An `attempt` has:
//!
//! | field | meaning |
//! |---|---|
//! | `order` | its order's id |
//! | `change` | `confirmed` or `cancelled`, if it asks for that, and `reserved`, if it sends an order again that was answered; else left out |
//! | `quantity` | the units that it asked for |
//! | `to` | where it was sent: an index into `instances` |
//! | `sent`, `ended` | microseconds since the run's start, of one monotonic clock |
//! | `outcome` | `ok`: accepted. `failed`: nothing was taken, for certain, by this attempt. `unknown`: anything else |
//! | `status` | the HTTP status; left out without an answer |
//! | `why` | of `failed` and `unknown`: `sold-out`, another problem's type, or what happened instead of an answer (`client went away`: on purpose) |
//! | `final` | `true` of `failed` and `unknown`, if the order ends with this answer; else left out: it was asked for again while retries and time were left |
//! | `remaining`, `instance`, `token`, `position`, `replayed` | of `ok`, as the service reported them; the last three are left out if it did not |
//!
//! A line is written when its attempt has ended. Of a run that was killed, the attempts that were
//! under way are missing, and so is all that comes at the end: there is nothing to judge then.

mod reader;
mod writer;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::checker::{Event, LedgerEntry, Outcome, StockState, is_default};
use crate::conduct::Conduct;

pub(crate) use reader::read;
pub(crate) use writer::{Recorder, Writer};

/// The format.
pub(crate) const VERSION: u32 = 3;

/// One line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Run(Box<Setup>),
    Attempt(Attempt),
    Order(LedgerEntry),
    /// The state after the run, as one instance reports it.
    State {
        instance: usize,
        state: Option<StockState>,
    },
    End(EndLine),
}

/// What was asked for, and what was found before the first order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub(crate) version: u32,
    pub(crate) run: String,
    pub(crate) started: String,
    pub(crate) requests: usize,
    pub(crate) seconds: Option<f64>,
    pub(crate) connections: usize,
    pub(crate) rate: Option<f64>,
    pub(crate) abandon: f64,
    pub(crate) seed: u64,
    pub(crate) quantity: u64,
    pub(crate) alone: bool,
    pub(crate) tokens: bool,
    pub(crate) without_ledger: bool,
    pub(crate) conduct: Conduct,
    pub(crate) instances: Vec<String>,
    pub(crate) item: Option<String>,
    pub(crate) before: StockState,
}

/// One attempt.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Attempt {
    pub(crate) order: String,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) change: Option<Event>,
    pub(crate) quantity: u64,
    pub(crate) to: usize,
    pub(crate) sent: u64,
    pub(crate) ended: u64,
    #[serde(flatten)]
    pub(crate) outcome: Outcome,
}

/// How many lines and orders there must be.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct EndLine {
    attempts: u64,
    ledger: u64,
    orders: usize,
    #[serde(default, skip_serializing_if = "is_default")]
    interrupted: bool,
}

impl Setup {
    /// How many orders are due in the time of a run at a rate; 0 without a rate or a time.
    pub(crate) fn due(&self) -> usize {
        let Some((rate, seconds)) = self.rate.zip(self.seconds) else { return 0 };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "both are positive"
        )]
        let all = (rate * seconds).ceil() as usize;
        all.min(self.requests)
    }

    /// The id of this order.
    pub(crate) fn id(&self, number: usize) -> String {
        format!("{}-{number}", self.run)
    }

    /// The user whom the order is for; empty if it is for none.
    pub(crate) fn user(&self, number: usize) -> String {
        let user = self.conduct.users.and_then(|users| number.checked_rem(users));
        user.map(|user| format!("{}-u{user}", self.run)).unwrap_or_default()
    }
}
