//! The record of a run: the checker's input.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::order::{Acknowledgement, Event, FinalOutcome, Order};
use crate::record::Setup;

/// The ends of longer holds are not waited for.
const LONGEST_HOLD_AWAITED: Duration = Duration::from_mins(1);

/// The state of the item, from `GET /stock`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StockState {
    /// Units not yet sold.
    pub stock: i64,
    /// Units sold.
    pub lucky: i64,
    /// Units that the sale began with.
    pub initial: i64,
    /// Accepted orders.
    pub orders: u64,
    /// Entries of the ledger, if there are others than orders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries: Option<u64>,
    /// Orders whose hold is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<u64>,
    /// The most units of an order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_order: Option<u64>,
    /// The most units of a user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_user: Option<u64>,
    /// How long an order holds its units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_seconds: Option<u64>,
    /// The number of the sale, if the service has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sale: Option<u64>,
}

/// An accepted order or what became of it, from `GET /orders`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LedgerEntry {
    /// Its place, from 1.
    pub(crate) position: u64,
    /// What happened.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) event: Event,
    /// The order's id.
    pub(crate) order: String,
    /// The buyer, if there is one.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) user: String,
    /// The units of the order.
    pub(crate) quantity: u64,
    /// The stock that was left after it.
    pub(crate) remaining: i64,
    /// The instance that accepted it, if known.
    pub(crate) instance: Option<String>,
    /// The token under which it was accepted.
    pub(crate) token: Option<i64>,
}

/// A run, and the state after it.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// What was asked for.
    pub(crate) setup: Setup,
    /// Whether the run was ended before its time: nothing proves it right then.
    pub(crate) interrupted: bool,
    /// By number.
    pub(crate) orders: Vec<Order>,
    /// Attempts without a decision, by reason.
    pub(crate) unsettled: BTreeMap<String, u64>,
    /// The ledger behind that of before.
    pub(crate) ledger: Vec<LedgerEntry>,
    /// The state after the last answer, by URL, of each instance that still answers.
    pub(crate) after: Vec<(String, StockState)>,
    /// The URLs of the instances that no longer have the sale.
    pub(crate) gone: Vec<String>,
    /// The URLs of the instances that did not answer after the run.
    pub(crate) silent: Vec<String>,
    /// CPU seconds spent during the load, by process.
    pub(crate) cpu_seconds: BTreeMap<String, f64>,
}

/// The number of orders by outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Accepted orders.
    pub acknowledged: u64,
    /// The units of accepted orders.
    pub acknowledged_units: u64,
    /// Orders that were refused because too few units were left.
    pub sold_out: u64,
    /// Orders that were refused because their user had enough.
    #[serde(default)]
    pub limited: u64,
    /// Orders whose hold had ended before the answer.
    #[serde(default)]
    pub over: u64,
    /// Orders without a definite answer.
    pub unknown: u64,
    /// Orders that were answered with an error.
    pub failed: u64,
    /// Of `unknown`: orders whose client went away for good, on purpose.
    pub abandoned: u64,
    /// Orders with an attempt of unknown effect that a retry decided.
    pub resolved: u64,
    /// How often orders were sent, retries included.
    pub attempts: u64,
    /// Settled orders by HTTP status.
    pub answers_by_status: BTreeMap<String, u64>,
    /// Failed orders, confirmations and cancellations by status and problem type.
    pub failures: BTreeMap<String, u64>,
    /// What buyers asked for later, with the answer.
    #[serde(default)]
    pub changes: BTreeMap<String, u64>,
    /// Of those: without a definite answer, though the client stayed.
    #[serde(default)]
    pub unknown_changes: u64,
}

/// How often the holder changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turns {
    /// An order of one instance follows an order of another one.
    pub handovers: u64,
    /// An order under one token follows an order under another one.
    pub tokens: u64,
}

/// Whether serde may leave it out.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl StockState {
    /// The length of the ledger.
    pub(crate) fn entries(&self) -> u64 {
        self.entries.unwrap_or(self.orders)
    }
}

impl History {
    /// The state before the first order.
    pub(crate) fn before(&self) -> &StockState {
        &self.setup.before
    }

    /// The number of the order with this id; `None` if it is not of this run.
    pub(crate) fn number(&self, order: &str) -> Option<usize> {
        let number = order.strip_prefix(&self.setup.run)?.strip_prefix('-')?.parse().ok()?;
        // `7` and `007` are two orders
        (self.setup.id(number) == order).then_some(number)
    }

    /// The number of the order of this entry, if order and user are of this run.
    pub(crate) fn own(&self, entry: &LedgerEntry) -> Option<usize> {
        self.number(&entry.order).filter(|number| entry.user == self.setup.user(*number))
    }

    /// How long a hold lasts, if its end is waited for after the last order.
    pub(crate) fn awaited_hold(&self) -> Option<Duration> {
        let hold = self.before().hold_seconds.map(Duration::from_secs);
        hold.filter(|hold| *hold <= LONGEST_HOLD_AWAITED && !self.interrupted)
    }

    /// Whether orders must have a token: by flag, or since an answer has one.
    pub(crate) fn is_guarded(&self) -> bool {
        self.setup.tokens || self.answers().any(|answer| answer.token.is_some())
    }

    /// The answers to all accepted orders.
    pub(crate) fn answers(&self) -> impl Iterator<Item = &Acknowledgement> {
        self.orders.iter().filter_map(Order::answer)
    }

    /// How often the ledger goes from one instance to another, and how often to another token.
    pub(crate) fn turns(&self) -> Turns {
        let mut turns = Turns::default();
        for pair in self.ledger.windows(2) {
            turns.handovers += u64::from(pair[0].instance != pair[1].instance);
            turns.tokens += u64::from(pair[0].token != pair[1].token);
        }
        turns
    }
}

impl Tally {
    /// Counts these orders, of so many units each.
    pub(crate) fn of<'a>(orders: impl IntoIterator<Item = &'a Order>, quantity: u64) -> Self {
        let mut tally = Self::default();
        for order in orders {
            tally.attempts += u64::from(order.attempts);
            tally.resolved += u64::from(order.in_doubt && order.is_decided());
            order.asked().for_each(|(event, asked)| tally.add_change(event, asked));
            let count = match &order.outcome {
                FinalOutcome::Acknowledged(_) => &mut tally.acknowledged,
                FinalOutcome::SoldOut => &mut tally.sold_out,
                FinalOutcome::LimitReached => &mut tally.limited,
                FinalOutcome::Over(_) => &mut tally.over,
                FinalOutcome::Failed(kind) => {
                    *tally.failures.entry(kind.clone()).or_default() += 1;
                    &mut tally.failed
                }
                FinalOutcome::UnknownOrder => &mut tally.failed,
                FinalOutcome::Unknown => {
                    tally.abandoned += u64::from(order.abandoned);
                    &mut tally.unknown
                }
            };
            *count += 1;
            if let Some(status) = order.status {
                *tally.answers_by_status.entry(status.to_string()).or_default() += 1;
            }
        }
        tally.acknowledged_units = tally.acknowledged.saturating_mul(quantity);
        tally
    }

    /// Counts what its buyer asked for later.
    fn add_change(&mut self, event: Event, asked: &Order) {
        let told = match &asked.outcome {
            FinalOutcome::Failed(kind) => {
                *self.failures.entry(kind.clone()).or_default() += 1;
                self.failed += 1;
                kind.clone()
            }
            FinalOutcome::Over(told) => told.word(),
            FinalOutcome::Acknowledged(_) => event.word(),
            FinalOutcome::SoldOut => "sold out".to_owned(),
            FinalOutcome::LimitReached => "limit reached".to_owned(),
            FinalOutcome::UnknownOrder => "unknown order".to_owned(),
            FinalOutcome::Unknown => {
                self.unknown_changes += u64::from(!asked.abandoned);
                "no answer".to_owned()
            }
        };
        *self.changes.entry(format!("{}: {told}", event.verb())).or_default() += 1;
    }
}

/// The number of things in memory.
pub(crate) fn u64_from(n: usize) -> u64 {
    u64::try_from(n).expect("a count of things in memory fits 64 bits")
}
