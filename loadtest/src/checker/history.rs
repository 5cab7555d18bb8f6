//! The record of a run: the checker's input.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::order::{Acknowledgement, Event, FinalOutcome, Order};
use crate::record::Setup;

/// The longest hold whose end the run waits for.
const LONGEST_HOLD_AWAITED: Duration = Duration::from_mins(1);

/// The state of the item, from `GET /stock`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StockState {
    /// Units left.
    pub stock: i64,
    /// Units sold.
    pub lucky: i64,
    /// Units that the sale began with or that were added, less those that were withdrawn.
    pub initial: i64,
    /// Accepted orders.
    pub orders: u64,
    /// Entries of the ledger, if it has other entries than orders.
    pub entries: Option<u64>,
    /// Open holds.
    pub held: Option<u64>,
    /// What the units of `lucky` are.
    pub units: Option<Units>,
    /// The most units of one order.
    pub per_order: Option<u64>,
    /// The most units of one user.
    pub per_user: Option<u64>,
    /// How long an order holds its units.
    pub hold_seconds: Option<u64>,
    /// Whether new orders are refused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// The number of the sale, if the service has one.
    pub sale: Option<u64>,
}

/// Units that are not on sale. A number is null if the service does not know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Units {
    /// Units of open holds.
    pub held: Option<u64>,
    /// Units that are sold.
    pub confirmed: Option<u64>,
}

/// What an entry changed of the sale: the fields that were given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Change {
    /// Units that were put on sale, or withdrawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add: Option<i64>,
    /// Whether new orders are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// When the sale ends: a time, or `now`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<String>,
    /// The most units of an order; the largest limit is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_order: Option<u64>,
    /// The most units of a user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_user: Option<u64>,
    /// How long an order holds its units.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold_seconds: Option<u64>,
}

/// An accepted order, what became of it, or a change of the sale, from `GET /orders`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerEntry {
    /// The entry's place in the ledger, from 1.
    pub position: u64,
    /// What happened.
    #[serde(default)]
    pub event: Event,
    /// The order's id; empty for a change of the sale.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub order: String,
    /// The buyer, if there is one.
    #[serde(default)]
    pub user: String,
    /// The units of the order.
    #[serde(default)]
    pub quantity: u64,
    /// The stock that was left after it.
    pub remaining: i64,
    /// The instance that took the request from its buyer, if known.
    pub instance: Option<String>,
    /// The instance that held the lock and wrote the entry, if that is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// The token under which it was accepted.
    pub token: Option<i64>,
    /// What it changed of the sale.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<Change>,
}

/// A run, and the state after it.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// The flags, and the state before.
    pub(crate) setup: Setup,
    /// Whether the run was stopped early. Then nothing can prove it right.
    pub(crate) interrupted: bool,
    /// The orders, by number.
    pub(crate) orders: Vec<Order>,
    /// The entries that the ledger gained.
    pub(crate) ledger: Vec<LedgerEntry>,
    /// The state after the last answer, as each instance that still answers reports it, with its URL.
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
    /// Orders that were refused because too few units were left, even with those that are held.
    pub sold_out: u64,
    /// Orders whose buyers gave up while all units were held, or the sale was paused.
    pub held_out: u64,
    /// Orders that were refused because their user had enough.
    pub limited: u64,
    /// Orders whose hold had ended before the answer came.
    pub over: u64,
    /// Orders without a definite answer.
    pub unknown: u64,
    /// Orders that were answered with an error.
    pub failed: u64,
    /// Orders in `unknown` whose client went away for good, on purpose.
    pub abandoned: u64,
    /// Orders of which an attempt had no answer, and a retry was answered.
    pub resolved: u64,
    /// How often orders were sent, retries included.
    pub attempts: u64,
    /// Attempts without a decision, by reason; each was retried while retries and time were left.
    pub unsettled_attempts: BTreeMap<String, u64>,
    /// Settled orders by HTTP status.
    pub answers_by_status: BTreeMap<String, u64>,
    /// Failed orders, confirmations and cancellations by status and problem type.
    pub failures: BTreeMap<String, u64>,
    /// The buyers' later requests, with their answers.
    pub changes: BTreeMap<String, u64>,
    /// Requests in `changes` without a definite answer, though the client stayed.
    pub unknown_changes: u64,
}

impl LedgerEntry {
    /// The instance that wrote the entry, if known.
    pub(crate) fn writer(&self) -> Option<&str> {
        self.holder.as_deref().or(self.instance.as_deref())
    }
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

    /// The number of the order with this id; `None` if the id is not one of this run.
    pub(crate) fn number(&self, order: &str) -> Option<usize> {
        let number = order.strip_prefix(&self.setup.run)?.strip_prefix('-')?.parse().ok()?;
        // `7` and `007` are two ids
        (self.setup.id(number) == order).then_some(number)
    }

    /// The number of the order of this entry, if order and user belong to this run.
    pub(crate) fn own(&self, entry: &LedgerEntry) -> Option<usize> {
        self.number(&entry.order).filter(|number| entry.user == self.setup.user(*number))
    }

    /// How long holds last, in seconds, each value that the sale had.
    pub(crate) fn holds(&self) -> impl Iterator<Item = u64> {
        let changes = self.ledger.iter().filter_map(|entry| entry.change.as_ref()?.hold_seconds);
        self.before().hold_seconds.into_iter().chain(changes)
    }

    /// How long the longest hold lasts, if its end is waited for after the last order.
    pub(crate) fn awaited_hold(&self) -> Option<Duration> {
        let hold = self.holds().max().map(Duration::from_secs);
        hold.filter(|hold| *hold <= LONGEST_HOLD_AWAITED && !self.interrupted)
    }

    /// Whether orders must have a token: by flag, or because an answer has one.
    pub(crate) fn is_guarded(&self) -> bool {
        self.setup.plan.tokens || self.answers().any(|answer| answer.token.is_some())
    }

    pub(crate) fn answers(&self) -> impl Iterator<Item = &Acknowledgement> {
        self.orders.iter().filter_map(Order::answer)
    }

    /// How many times the token changes from one entry to the next.
    pub(crate) fn handovers(&self) -> usize {
        let is_handover = |pair: &&[LedgerEntry]| pair[0].token != pair[1].token;
        self.ledger.windows(2).filter(is_handover).count()
    }
}

impl Tally {
    /// Counts these orders, of `quantity` units each.
    pub(crate) fn of<'a>(orders: impl IntoIterator<Item = &'a Order>, quantity: u64) -> Self {
        let mut tally = Self::default();
        let add = |counts: &mut BTreeMap<String, u64>, key| *counts.entry(key).or_default() += 1;
        for order in orders {
            tally.attempts += u64::from(order.attempts);
            tally.resolved += u64::from(order.in_doubt && order.is_decided());
            let whys = order.questions().flat_map(|(_, asked)| &asked.unsettled);
            whys.for_each(|why| add(&mut tally.unsettled_attempts, why.clone()));
            for (_, asked) in order.questions() {
                if let FinalOutcome::Failed(kind) = &asked.outcome {
                    add(&mut tally.failures, kind.clone());
                }
            }
            for (event, asked) in order.asked() {
                let told = asked.outcome.word(event);
                add(&mut tally.changes, format!("{}: {told}", event.verb()));
                tally.failed += u64::from(matches!(asked.outcome, FinalOutcome::Failed(_)));
                tally.unknown_changes += u64::from(!asked.is_settled() && !asked.abandoned);
            }
            *match &order.outcome {
                FinalOutcome::Acknowledged(_) => &mut tally.acknowledged,
                FinalOutcome::SoldOut => &mut tally.sold_out,
                FinalOutcome::HeldOut => &mut tally.held_out,
                FinalOutcome::LimitReached => &mut tally.limited,
                FinalOutcome::Over(_) => &mut tally.over,
                FinalOutcome::Failed(_) | FinalOutcome::UnknownOrder => &mut tally.failed,
                FinalOutcome::Unknown => &mut tally.unknown,
            } += 1;
            tally.abandoned += u64::from(order.abandoned && !order.is_settled());
            let status = order.status.iter().map(ToString::to_string);
            status.for_each(|status| add(&mut tally.answers_by_status, status));
        }
        tally.acknowledged_units = tally.acknowledged.saturating_mul(quantity);
        tally
    }
}

/// A count of things in memory.
pub(crate) fn u64_from(n: usize) -> u64 {
    u64::try_from(n).expect("a count of things in memory fits 64 bits")
}
