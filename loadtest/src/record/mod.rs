//! A run in a file: one JSON object a line, so that a run that was killed leaves everything recorded so far.
//!
//! # Format
//! Each line is an object with one field, which names the kind of the line. In this order:
//!
//! | line | how often | what |
//! |---|---|---|
//! | `run` | first | `format` (4), `version` (of the load test), `run` (what all order ids begin with), `started` (wall clock), `most_requests` and `bound_seconds` (the bounds; null is none in time), `connections`, `rate` (or null), `abandon`, `seed`, `quantity`, `alone` (whether there must be no other buyers), `tokens` (whether each order must have one), `without_ledger` (whether the service may have none), `users`, the shares of the buyers that `pay`, `pay_late`, `cancel`, send their orders `again`, and give final ones back (`returns`), `urls` (the instances), `item` (its name; null is the default item), `before` (its state before the first order, as in `state`) |
//! | `attempt` | one each, as they end | see below |
//! | `order` | one each | the ledger: `position`, `event`, `order`, `user` (empty if there is none), `quantity`, `remaining`, `instance`, `holder` (only if another instance wrote it than took the order), `token` |
//! | `state` | one for an instance that answers | `instance` (an index into `urls`), `state`: `stock`, `lucky`, `initial`, `orders`, and `entries`, `held`, `units` (`held` and `confirmed`), `per_order`, `per_user`, `hold_seconds`, `sale`, which are null if they are not known; null if there is no such sale any more |
//! | `end` | last | `attempts`, `ledger`: how many lines of each there must be; `orders`: how many orders the run had; `interrupted`: whether it was ended before its time |
//!
//! An `attempt` has:
//!
//! | field | meaning |
//! |---|---|
//! | `order` | its order's id |
//! | `change` | `confirmed`, `cancelled` or `returned`, if it asks for that, and `reserved`, if it sends an order again that was answered; else null |
//! | `quantity` | the units that it asked for |
//! | `to` | where it was sent: an index into `urls` |
//! | `sent`, `ended` | microseconds since the run's start, of one monotonic clock |
//! | `outcome` | `ok`: accepted. `failed`: nothing was taken, for certain, by this attempt. `unknown`: anything else |
//! | `status` | the HTTP status; null without an answer |
//! | `why` | of `failed` and `unknown`: `sold-out`, another problem's type, or what happened instead of an answer (`client went away`: on purpose) |
//! | `final` | of `failed` and `unknown`: whether the order ends with this answer; else it was asked for again while retries and time were left |
//! | `remaining`, `instance`, `token`, `position`, `replayed` | of `ok`, as the service reported them; `token` and `position` are null if it did not |
//!
//! A line is written when its attempt has ended, and its buyer waits for that. The file of a killed run lacks the attempts that
//! were under way, and all lines of the end. Then there is nothing to judge.

mod reader;

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, LineWriter, Write as _};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::checker::{Event, History, LedgerEntry, Order, Outcome, StockState, u64_from};
use crate::cli::Plan;
use crate::load::due;

pub(crate) use reader::read;

pub(crate) const FORMAT: u32 = 4;

/// One line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
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

/// The flags, and the state before the first order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    pub(crate) format: u32,
    pub(crate) version: String,
    pub(crate) run: String,
    pub(crate) started: String,
    pub(crate) most_requests: usize,
    pub(crate) bound_seconds: Option<f64>,
    pub(crate) connections: usize,
    pub(crate) urls: Vec<String>,
    pub(crate) before: StockState,
    #[serde(flatten)]
    pub(crate) plan: Plan,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Attempt {
    pub(crate) order: String,
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
pub(crate) struct EndLine {
    attempts: u64,
    ledger: u64,
    orders: usize,
    interrupted: bool,
}

impl Setup {
    /// How many orders are due during a run at a rate; 0 without a rate or a duration.
    pub(crate) fn due(&self) -> usize {
        let Some((rate, seconds)) = self.plan.rate.zip(self.bound_seconds) else { return 0 };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "both are positive"
        )]
        let all = (rate * seconds).ceil() as usize;
        // the product may be rounded up; an order that is due exactly at the end is not sent
        let is_late = all > 0 && due(rate, all - 1) >= Duration::from_secs_f64(seconds);
        (all - usize::from(is_late)).min(self.most_requests)
    }

    pub(crate) fn id(&self, number: usize) -> String {
        format!("{}-{number}", self.run)
    }

    /// The order's user; empty if it has none.
    pub(crate) fn user(&self, number: usize) -> String {
        let user = self.plan.conduct.users.and_then(|users| number.checked_rem(users));
        user.map(|user| format!("{}-u{user}", self.run)).unwrap_or_default()
    }
}

/// Writes the file, line by line, or keeps the first error.
#[derive(Debug)]
pub(crate) struct Recorder(Mutex<io::Result<LineWriter<File>>>);

impl Recorder {
    pub(crate) fn new(file: File) -> Self {
        Self(Mutex::new(Ok(LineWriter::new(file))))
    }

    /// Writes a line. After an error it writes nothing more, and [`Self::finish`] returns the error.
    pub(crate) fn write(&self, line: &Line) {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let written = file.as_mut().map(|file| {
            serde_json::to_writer(&mut *file, line).map_err(io::Error::from)?;
            file.write_all(b"\n")
        });
        if let Ok(Err(error)) = written {
            *file = Err(error);
        }
    }

    /// Writes the lines that follow the last answer.
    ///
    /// # Errors
    /// A line could not be written.
    pub(crate) fn finish(self, history: &History) -> io::Result<()> {
        history.ledger.iter().for_each(|entry| self.write(&Line::Order(entry.clone())));
        let there = history.after.iter().map(|(url, state)| (url, Some(state.clone())));
        let gone = history.gone.iter().map(|url| (url, None));
        for (url, state) in there.chain(gone) {
            let mut places = history.setup.urls.iter();
            let instance = places.position(|known| known == url).expect("its state was read there");
            self.write(&Line::State { instance, state });
        }
        let attempts = history.orders.iter().map(Order::all_attempts).sum();
        let (ledger, orders) = (u64_from(history.ledger.len()), history.orders.len());
        let interrupted = history.interrupted;
        self.write(&Line::End(EndLine { attempts, ledger, orders, interrupted }));
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner).map(drop)
    }
}
