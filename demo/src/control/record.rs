//! A run and the status of an instance, as JSON.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    Preparing,
    Firing,
    Checking,
    Done,
    Failed,
}

/// The fault that hits the holder in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Fault {
    /// It stops for longer than its lease lives, between reading and writing.
    Pause,
    /// It dies at that point.
    Kill,
}

/// A run: a new sale, and orders to all instances at once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) id: String,
    pub(super) at_ms: u64,
    /// The instance that sends the orders.
    pub(super) by: Arc<str>,
    pub(super) state: State,
    /// When the buyers came, in Unix milliseconds.
    pub(super) began_ms: f64,
    /// When the victim was found to have reached its fault, on the same clock.
    pub(super) hit_ms: Option<f64>,
    pub(super) stock: u64,
    pub(super) requests: u64,
    pub(super) guard: String,
    pub(super) fence: bool,
    pub(super) fault: Option<Fault>,
    pub(super) victim: Option<Arc<str>>,
    pub(super) answered: u64,
    pub(super) sold: u64,
    pub(super) sold_out: u64,
    pub(super) failed: u64,
    pub(super) elapsed_ms: u64,
    pub(super) verdict: Option<Verdict>,
    pub(super) error: Option<String>,
}

impl Run {
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Done | State::Failed)
    }
}

/// The verdict on a run, from the answers, the ledger and the stock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Verdict {
    pub(super) pass: bool,
    pub(super) sold: u64,
    pub(super) sold_out: u64,
    pub(super) unanswered: u64,
    pub(super) oversold: u64,
    pub(super) lost: u64,
    pub(super) stock: i64,
    pub(super) lucky: i64,
    pub(super) balanced: bool,
    pub(super) stale_batches: u64,
    /// From the fault to the next write by another instance; `None` without a fault, and if none of them wrote.
    pub(super) takeover_ms: Option<u64>,
    pub(super) text: String,
}

/// The status of an instance.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Status {
    pub(super) instance: Arc<str>,
    pub(super) guard: String,
    pub(super) guards: Vec<String>,
    pub(super) fence: bool,
    pub(super) stale_batches: u64,
    pub(super) lost_sessions: u64,
    pub(super) run: Option<Run>,
}
