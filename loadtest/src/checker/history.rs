//! The record of a run: the checker's input.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use super::order::{Acknowledgement, FinalOutcome, Order};

/// The state of the item, from `GET /stock`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StockState {
    /// Units not yet sold.
    pub stock: i64,
    /// Units sold.
    pub lucky: i64,
    /// Units that the sale began with.
    pub initial: i64,
    /// Orders in the ledger.
    pub orders: u64,
    /// The number of the sale, if the service has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sale: Option<u64>,
}

/// An accepted order, from `GET /orders`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LedgerEntry {
    /// Its place, from 1.
    pub(crate) position: u64,
    /// Its id.
    pub(crate) order: String,
    /// The units taken.
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
    /// What the ids of this run's orders begin with.
    pub(crate) run: String,
    /// What the ids of all items' orders of this run begin with.
    pub(crate) family: String,
    /// Whether there must be no other buyers.
    pub(crate) alone: bool,
    /// Whether each order must be accepted under a token, even if no answer has one.
    pub(crate) tokens: bool,
    /// The units that each order asked for.
    pub(crate) quantity: u64,
    /// The state before the first order.
    pub(crate) before: StockState,
    /// By number.
    pub(crate) orders: Vec<Order>,
    /// The ledger behind `before.orders`.
    pub(crate) ledger: Vec<LedgerEntry>,
    /// The state after the last answer, by URL, of each instance that still answers.
    pub(crate) after: Vec<(String, StockState)>,
    /// The URLs of the instances that no longer have the sale.
    pub(crate) gone: Vec<String>,
    /// The URLs of the instances that did not answer after the run.
    pub(crate) silent: Vec<String>,
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
    /// Failed orders by status and problem type.
    pub failures: BTreeMap<String, u64>,
}

/// How often the holder changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turns {
    /// An order of one instance follows an order of another one.
    pub handovers: u64,
    /// An order under one token follows an order under another one.
    pub tokens: u64,
}

/// The id of order `number` of a run.
pub(crate) fn order_id(run: &str, number: usize) -> String {
    format!("{run}-{number}")
}

impl AddAssign<&Self> for StockState {
    fn add_assign(&mut self, other: &Self) {
        self.stock = self.stock.saturating_add(other.stock);
        self.lucky = self.lucky.saturating_add(other.lucky);
        self.initial = self.initial.saturating_add(other.initial);
        self.orders = self.orders.saturating_add(other.orders);
    }
}

impl History {
    /// The number of the order with this id; `None` if it is not of this run.
    pub(crate) fn number(&self, order: &str) -> Option<usize> {
        let number = order.strip_prefix(&self.run)?.strip_prefix('-')?.parse().ok()?;
        // `7` and `007` are two orders
        (order_id(&self.run, number) == order).then_some(number)
    }

    /// Whether orders must have a token: by flag, or since an answer has one.
    pub(crate) fn is_guarded(&self) -> bool {
        self.tokens || self.answers().any(|answer| answer.token.is_some())
    }

    /// The answers to all accepted orders.
    pub(crate) fn answers(&self) -> impl Iterator<Item = &Acknowledgement> {
        self.orders.iter().filter_map(|order| match &order.outcome {
            FinalOutcome::Acknowledged(answer) => Some(answer),
            _ => None,
        })
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
            let (count, status) = match &order.outcome {
                FinalOutcome::Acknowledged(_) => (&mut tally.acknowledged, 200),
                FinalOutcome::SoldOut => (&mut tally.sold_out, 409),
                FinalOutcome::Failed { status, kind } => {
                    *tally.failures.entry(kind.clone()).or_default() += 1;
                    (&mut tally.failed, *status)
                }
                FinalOutcome::Unknown => {
                    tally.unknown += 1;
                    tally.abandoned += u64::from(order.abandoned);
                    continue;
                }
            };
            *count += 1;
            *tally.answers_by_status.entry(status.to_string()).or_default() += 1;
        }
        tally.acknowledged_units = tally.acknowledged.saturating_mul(quantity);
        tally
    }
}

/// The number of things in memory.
pub(crate) fn u64_from(n: usize) -> u64 {
    u64::try_from(n).expect("a count of things in memory fits 64 bits")
}
