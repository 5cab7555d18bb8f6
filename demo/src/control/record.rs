//! The control's data as JSON: the run, and the instances.

use serde::{Deserialize, Serialize};

use crate::instance::Guard;

/// The state of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    #[default]
    Preparing,
    Firing,
    Checking,
    Done,
    Failed,
}

/// The fault that hits the holder in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fault {
    /// The holder stops between reading and writing.
    Pause,
    /// The holder dies at that point.
    Kill,
}

/// The run that a caller asks for.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewRun {
    pub stock: u64,
    pub requests: u64,
    /// `None`: the present guard of new orders.
    pub guard: Option<Guard>,
    /// `None`: the present setting.
    pub fence: Option<bool>,
    pub fault: Option<Fault>,
    /// How long a pause lasts; `None`: beyond the lease.
    pub sleep_seconds: Option<u64>,
}

/// A run: a new sale, and orders to all instances at once.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Run {
    pub id: String,
    pub state: State,
    /// When the buyers came, in Unix milliseconds.
    pub began_ms: f64,
    /// When the victim reported that it had reached its fault, on the same clock.
    pub hit_ms: Option<f64>,
    pub stock: u64,
    pub requests: u64,
    pub guard: Guard,
    pub fence: bool,
    pub fault: Option<Fault>,
    pub sleep_seconds: Option<u64>,
    pub victim: Option<String>,
    /// The instances that the buyers ask.
    pub shops: Vec<String>,
    /// The sale that the run started, as `GET /stock` names it.
    pub sale: Option<u64>,
    pub answered: u64,
    pub sold: u64,
    pub sold_out: u64,
    pub failed: u64,
    pub elapsed_ms: u64,
    pub verdict: Option<Verdict>,
    pub error: Option<String>,
}

impl Run {
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Done | State::Failed)
    }
}

/// The verdict on a run, from the answers, the ledger and the stock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    pub pass: bool,
    pub oversold: u64,
    pub lost: u64,
    pub stale_batches: u64,
    pub text: String,
}

/// The status of an instance.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) instance: String,
    /// The guard of new orders.
    pub(crate) guard: Guard,
    pub(crate) fence: bool,
    pub(crate) stale_batches: u64,
    /// How long its lease of the shared lock lasts.
    pub(crate) lease_ms: Option<u64>,
}

/// A command of the control to an instance.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Command {
    /// Set the guard of new orders.
    Guard(Guard),
    /// Set whether the store compares tokens.
    Fence(bool),
    /// Set the fault at the next write under the lock, with the seconds of a pause (`None`: beyond the lease); or none.
    Fault(Option<(Fault, Option<u64>)>),
    /// Die right after the answer.
    Kill {},
}
