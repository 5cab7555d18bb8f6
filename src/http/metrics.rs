//! `GET /metrics`: what this instance has done since its start, in Prometheus' text format.
//!
//! All names begin with `flash_sale_`.
//!
//! | name | what it tells |
//! |---|---|
//! | `orders_total{outcome}` | orders, by how they ended; `abandoned`: the client went away before |
//! | `orders_waiting` | orders that wait for the lock now |
//! | `batches_total`, `batch_orders_total` | batches that the store carried out, and the orders in them |
//! | `batch_seconds` | histogram: how long each batch took |
//! | `stale_batches_total` | batches that the store refused, since a later holder had written |
//! | `store_errors_total` | batches that failed in another way |
//! | `lock_wait_seconds` | histogram: how long each grant was waited for; its count is that of the grants |
//! | `tenure_seconds` | histogram: how long the lock was held; its count is that of the tenures that ended |
//! | `handovers_total` | tenures that ended by handing the lock over |
//! | `lost_tenures_total` | tenures that ended because the lock was lost |
//! | `lost_sessions_total` | lock sessions that were lost |
//! | `rolled_back_items` | items that are not sold here, since the store lacks what it acknowledged of them |
//! | `defence{defence}` | 0 for a safeguard of the write that is off, which only `lab` can do |

use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;

use super::reply;
use super::state::AppState;
use crate::sale::GuardStatus;
use crate::sale::metrics::Histogram;

/// The version of the text format.
const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4");

/// All metrics of this instance. No request is made for it, so it answers also while nothing else does.
pub(super) async fn metrics(State(app): State<Arc<AppState>>) -> Response {
    let (sale, metrics) = (&app.sale, app.sale.metrics());
    let mut page = Page::default();
    page.labelled(
        "orders_total",
        "counter",
        "Orders, by how they ended; abandoned: the client went away before.",
        "outcome",
        metrics.orders(),
    );
    page.one("orders_waiting", "gauge", "Orders that wait for the lock.", sale.waiting());
    page.counter("batches_total", "Batches that the store carried out.", metrics.batches.get());
    page.counter("batch_orders_total", "Orders in those batches.", metrics.batch_orders.get());
    page.counter(
        "stale_batches_total",
        "Batches that the store refused, since a later holder of the lock had written.",
        metrics.stale_batches.get(),
    );
    page.counter(
        "store_errors_total",
        "Batches that failed in another way, each time that they were sent.",
        metrics.store_errors.get(),
    );
    page.counter(
        "handovers_total",
        "Tenures that ended by handing the lock over.",
        metrics.handovers.get(),
    );
    page.counter(
        "lost_tenures_total",
        "Tenures that ended because the lock was lost.",
        metrics.lost_tenures.get(),
    );
    page.counter(
        "lost_sessions_total",
        "Lock sessions that were lost: their lease ended, or could not be believed in.",
        sale.lost_sessions(),
    );
    page.one(
        "rolled_back_items",
        "gauge",
        "Items that are not sold, since the store lacks what it acknowledged of them.",
        sale.rolled_back_items(),
    );
    page.histogram(
        "lock_wait_seconds",
        "How long each grant of the lock was waited for.",
        &metrics.lock_wait,
    );
    page.histogram(
        "tenure_seconds",
        "How long the lock was held at a stretch.",
        &metrics.tenure_time,
    );
    page.histogram("batch_seconds", "How long each batch took.", &metrics.batch_time);
    let without = sale.guard_status().without;
    let is_on = |name: &'static str| (name, u64::from(without.iter().all(|off| off != name)));
    page.labelled(
        "defence",
        "gauge",
        "1 if this safeguard is on; 0 if it is off, which only `lab` can do.",
        "defence",
        GuardStatus::SAFEGUARDS.into_iter().map(is_on),
    );
    let mut response = reply::text(StatusCode::OK, page.0);
    response.headers_mut().insert(header::CONTENT_TYPE, CONTENT_TYPE);
    response
}

/// The page as it grows. Writing to a text cannot fail.
#[derive(Default)]
struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP flash_sale_{name} {help}");
        let _ = writeln!(self.0, "# TYPE flash_sale_{name} {kind}");
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: u64) {
        self.head(name, kind, help);
        let _ = writeln!(self.0, "flash_sale_{name} {value}");
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.one(name, "counter", help, value);
    }

    fn labelled(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        label: &str,
        values: impl Iterator<Item = (&'static str, u64)>,
    ) {
        self.head(name, kind, help);
        for (value_of_label, value) in values {
            let _ = writeln!(self.0, "flash_sale_{name}{{{label}=\"{value_of_label}\"}} {value}");
        }
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        let cumulated = histogram.cumulated();
        for (bound, count) in Histogram::BOUNDS.iter().zip(cumulated) {
            let bound = bound.as_secs_f64();
            let _ = writeln!(self.0, "flash_sale_{name}_bucket{{le=\"{bound}\"}} {count}");
        }
        let count = cumulated[Histogram::BOUNDS.len()];
        let _ = writeln!(self.0, "flash_sale_{name}_bucket{{le=\"+Inf\"}} {count}");
        let _ = writeln!(self.0, "flash_sale_{name}_sum {}", histogram.sum().as_secs_f64());
        let _ = writeln!(self.0, "flash_sale_{name}_count {count}");
    }
}
