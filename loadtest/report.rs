//! What is told about a run. With `--json` this is the one object on stdout:
//!
//! | field | meaning |
//! |---|---|
//! | `pass` | whether the run passed |
//! | `verdict` | the sentence that says so, and why not |
//! | `reasons` | what is wrong, the most important first: `kind` (a stable name) and `text` |
//! | `notes` | sentences about what is not wrong, but worth knowing |
//! | `urls`, `item`, `quantity` | what was asked for; `item` is null for the default item |
//! | `run` | what the ids of this run's orders begin with |
//! | `requests`, `connections` | how many orders were sent, over how many connections |
//! | `acknowledged`, `acknowledged_units` | orders that were accepted, and their units |
//! | `sold_out`, `unknown`, `failed` | orders refused, not answered in the end, answered otherwise |
//! | `answers_by_status` | settled orders by HTTP status |
//! | `failures` | failed orders by status and problem type |
//! | `unsettled_attempts` | attempts that settled nothing, by the reason; each was asked again while retries and time were left |
//! | `instances` | by the name in the answer: `acknowledged` orders, and their `share` (0 to 1) |
//! | `duration_seconds` | from the first request to the last answer |
//! | `answers_per_second` | settled orders in that time |
//! | `latency_microseconds` | `min`, `p50`, `p90`, `p99`, `p99_9`, `max` of settled orders, from first sending to answer, asking again included; null if there were none |
//! | `before`, `after` | the stock before, and after by URL: `stock`, `lucky`, `initial`, `orders` |
//! | `ledger_orders` | orders that the ledger gained |

use std::collections::BTreeMap;

use serde::Serialize;

use crate::history::{History, StockState, Told};
use crate::latency::Percentiles;
use crate::load::Load;
use crate::verdict::Verdict;

/// A run, as it is told. The fields are described at the top of this file.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) pass: bool,
    pub(crate) verdict: String,
    pub(crate) reasons: Vec<Fault>,
    pub(crate) notes: Vec<String>,
    pub(crate) urls: Vec<String>,
    pub(crate) item: Option<String>,
    pub(crate) quantity: u64,
    pub(crate) run: String,
    pub(crate) requests: usize,
    pub(crate) connections: usize,
    pub(crate) acknowledged: u64,
    pub(crate) acknowledged_units: u64,
    pub(crate) sold_out: u64,
    pub(crate) unknown: u64,
    pub(crate) failed: u64,
    pub(crate) answers_by_status: BTreeMap<u16, u64>,
    pub(crate) failures: BTreeMap<String, u64>,
    pub(crate) unsettled_attempts: BTreeMap<String, u64>,
    pub(crate) instances: BTreeMap<String, Share>,
    pub(crate) duration_seconds: f64,
    pub(crate) answers_per_second: f64,
    pub(crate) latency_microseconds: Option<Percentiles>,
    pub(crate) before: StockState,
    pub(crate) after: BTreeMap<String, StockState>,
    pub(crate) ledger_orders: usize,
}

/// A reason for not passing.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Fault {
    pub(crate) kind: &'static str,
    pub(crate) text: String,
}

/// What one instance did.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Share {
    pub(crate) acknowledged: u64,
    pub(crate) share: f64,
}

/// What was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) urls: Vec<String>,
    pub(crate) item: Option<String>,
    pub(crate) connections: usize,
}

impl Report {
    pub(crate) fn new(asked: Asked, history: History, load: Load, verdict: Verdict) -> Self {
        let tally = history.tally();
        let mut answers_by_status = BTreeMap::new();
        let mut failures = BTreeMap::new();
        let mut instances = BTreeMap::<String, Share>::new();
        for told in &history.told {
            let status = match told {
                Told::Acknowledged(answer) => {
                    instances.entry(answer.instance.clone()).or_default().acknowledged += 1;
                    200
                }
                Told::SoldOut => 409,
                Told::Failed { status, kind } => {
                    *failures.entry(kind.clone()).or_default() += 1;
                    *status
                }
                Told::Unknown => continue,
            };
            *answers_by_status.entry(status).or_default() += 1;
        }
        for share in instances.values_mut() {
            share.share = ratio(share.acknowledged, tally.acknowledged);
        }
        let answered: u64 = answers_by_status.values().sum();
        let duration_seconds = load.duration.as_secs_f64();
        Self {
            pass: verdict.is_pass(),
            reasons: verdict
                .reasons
                .iter()
                .map(|reason| Fault { kind: reason.kind(), text: reason.to_string() })
                .collect(),
            verdict: verdict.sentence,
            notes: verdict.notes,
            urls: asked.urls,
            item: asked.item,
            quantity: history.quantity,
            run: history.run,
            requests: history.told.len(),
            connections: asked.connections,
            acknowledged: tally.acknowledged,
            acknowledged_units: tally.acknowledged_units,
            sold_out: tally.sold_out,
            unknown: tally.unknown,
            failed: tally.failed,
            answers_by_status,
            failures,
            unsettled_attempts: load.unsettled,
            instances,
            duration_seconds,
            answers_per_second: if duration_seconds > 0.0 {
                float(answered) / duration_seconds
            } else {
                0.0
            },
            latency_microseconds: load.latencies.percentiles(),
            before: history.before,
            after: history.after.into_iter().collect(),
            ledger_orders: history.ledger.len(),
        }
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { float(part) / float(whole) }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^52")]
fn float(count: u64) -> f64 {
    count as f64
}
