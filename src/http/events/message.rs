//! The JSON of a message.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use crate::inventory::Item;

/// The state, and the lists that grow.
#[derive(Serialize)]
pub(super) struct View<'a> {
    /// The number of the sale since the first watcher came.
    pub(super) sale: u64,
    pub(super) instance: &'a str,
    pub(super) item: &'a Item,
    pub(super) guard: &'static str,
    pub(super) fence_on: bool,
    pub(super) stock: Option<StockView>,
    pub(super) sold: i64,
    pub(super) oversold: i64,
    pub(super) instances: Vec<Arc<str>>,
    pub(super) here: Here,
    pub(super) lock: Option<LockView>,
    pub(super) rates: Rates,
    pub(super) latency_ms: Option<Percentiles>,
    pub(super) skipped: u64,
    #[serde(rename = "troubles")]
    pub(super) alerts: Vec<Alert>,
    pub(super) demo: Option<serde_json::Value>,
    #[serde(flatten)]
    pub(super) lists: Lists<'a>,
}

/// The lists that grow: whole in a snapshot, only the additions in a change.
#[derive(Serialize)]
pub(super) struct Lists<'a> {
    pub(super) tenures: Vec<TenureView>,
    pub(super) points: Vec<&'a Point>,
    pub(super) orders: Vec<&'a OrderView>,
    pub(super) notes: Vec<&'a Note>,
}

#[derive(Clone, Serialize)]
pub(super) struct StockView {
    pub(super) stock: i64,
    pub(super) lucky: i64,
    pub(super) initial: i64,
    pub(super) orders: u64,
    pub(super) balanced: bool,
    pub(super) fence: Option<FenceView>,
}

#[derive(Clone, Serialize)]
pub(super) struct FenceView {
    pub(super) cluster: String,
    pub(super) token: i64,
}

/// Counters of this instance since its start.
#[derive(Serialize)]
pub(super) struct Here {
    pub(super) waiting: u64,
    pub(super) sold_out: u64,
    pub(super) refused: u64,
    pub(super) orders: BTreeMap<&'static str, u64>,
    pub(super) stale_batches: u64,
    pub(super) lost_tenures: u64,
    pub(super) lost_sessions: u64,
}

#[derive(Serialize)]
pub(super) struct LockView {
    pub(super) name: String,
    pub(super) ttl_ms: Option<u64>,
    /// Whether the queue is known now.
    pub(super) known: bool,
    pub(super) holder: Option<ClaimView>,
    pub(super) queue: Vec<ClaimView>,
}

#[derive(Clone, Serialize)]
pub(super) struct ClaimView {
    pub(super) token: i64,
    pub(super) lease: String,
    pub(super) instance: Option<Arc<str>>,
    pub(super) since_ms: f64,
}

#[derive(Serialize)]
pub(super) struct TenureView {
    pub(super) token: i64,
    pub(super) instance: Option<Arc<str>>,
    pub(super) start_ms: f64,
    pub(super) end_ms: Option<f64>,
    pub(super) orders: u64,
    pub(super) exact: bool,
}

/// Orders per second.
#[derive(Clone, Default, Serialize)]
pub(super) struct Rates {
    pub(super) total: f64,
    pub(super) by_instance: BTreeMap<Arc<str>, f64>,
}

#[derive(Serialize)]
pub(super) struct Point {
    pub(super) at_ms: f64,
    pub(super) stock: Option<i64>,
    pub(super) sold: i64,
    pub(super) total: f64,
    pub(super) rates: BTreeMap<Arc<str>, f64>,
}

#[derive(Clone, Serialize)]
pub(super) struct Percentiles {
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
    pub(super) count: u64,
    pub(super) window_s: u64,
}

#[derive(Serialize)]
pub(super) struct OrderView {
    pub(super) position: u64,
    pub(super) order: String,
    pub(super) instance: Arc<str>,
    pub(super) token: Option<i64>,
    pub(super) quantity: u32,
    pub(super) remaining: u64,
}

/// A present problem.
#[derive(Clone, Serialize)]
pub(super) struct Alert {
    pub(super) kind: &'static str,
    pub(super) text: String,
}

/// A past event.
#[derive(Serialize)]
pub(super) struct Note {
    pub(super) id: u64,
    pub(super) at_ms: f64,
    pub(super) kind: &'static str,
    pub(super) text: String,
}
