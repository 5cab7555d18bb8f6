//! `GET /metrics`: the metrics of this instance since its start, in Prometheus' text format.
//!
//! docs/operations.md lists them.

use std::fmt::{Display, Write as _};
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;

use super::client_io::open_connections;
use super::reply;
use super::state::AppState;
use crate::logging::dropped_lines;
use crate::sale::metrics::Histogram;

/// The outcomes whose series exist before the first order: `rate()` misses the burst with which a series appears. The other
/// outcomes are left out until their first order, as each has sixteen lines.
const FROM_THE_START: [&str; 3] = ["reserved", "confirmed", "sold-out"];

const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4");

/// All metrics of this instance. Asks neither the store nor the lock service, so it answers even if they do not.
pub(super) async fn metrics(State(app): State<Arc<AppState>>) -> Response {
    let (sale, metrics) = (&app.sale, app.sale.metrics());
    let mut page = Page::default();
    // Prometheus has a label `instance` of its own: the address
    let name = format!("name=\"{}\",version=\"{}\"", sale.instance(), env!("CARGO_PKG_VERSION"));
    page.labelled("info", "The instance, by its name.", [(name, 1)]);
    let label = |outcome| format!("outcome=\"{outcome}\"");
    let counts = metrics.orders().map(|(outcome, count)| (label(outcome), count));
    page.labelled("orders_total", "Orders by outcome.", counts);
    let help = "From the arrival of an order to its end, by outcome.";
    let times = metrics
        .order_times()
        .filter(|(outcome, times)| FROM_THE_START.contains(outcome) || times.count() > 0);
    page.histograms("order_seconds", help, times.map(|(outcome, times)| (label(outcome), times)));
    let levels = sale.inventory().levels();
    for (index, name, help) in [
        (0, "stock", "Units left by item, as last read."),
        (1, "lucky", "Units held or sold, by item, as last read."),
        (2, "held", "Orders with an open hold by item, as last read."),
    ] {
        let label = |item| format!("item=\"{item}\"");
        page.labelled(name, help, levels.iter().map(|(item, level)| (label(item), level[index])));
    }
    let routes = app.traffic.answers.lock().clone();
    let answers = routes.iter().flat_map(|(route, statuses)| {
        let labels = move |status| format!("route=\"{route}\",status=\"{status}\"");
        statuses.iter().map(move |(status, count)| (labels(status), count))
    });
    let help = "Answers by route and status; route none: no such path.";
    page.labelled("http_answers_total", help, answers);
    page.one("orders_waiting", "Orders that wait for the lock.", sale.guard().waiting());
    let help = "How long the oldest order in the queues has waited.";
    page.one("oldest_order_seconds", help, sale.guard().oldest().as_secs_f64());
    page.one("open_connections", "Open connections of clients.", open_connections());
    let help = "Items that are stopped because the store lost acknowledged data.";
    page.one("rolled_back_items", help, sale.inventory().rolled_back_items());
    page.one("batches_total", "Batches that the store executed.", metrics.batches.get());
    page.one("batch_orders_total", "Orders in those batches.", metrics.batch_orders.get());
    page.one("stale_batches_total", "Batches that the fence refused.", metrics.stale_batches.get());
    page.one("store_errors_total", "Batches that failed otherwise.", metrics.store_errors.get());
    for (name, help, fates) in [
        ("forwarded_orders_total", "Orders sent to the holder, by fate.", &metrics.forwarded),
        ("received_orders_total", "Orders of peers for the holder, by fate.", &metrics.received),
    ] {
        let label = |(fate, count)| (format!("fate=\"{fate}\""), count);
        page.labelled(name, help, fates.each().map(label));
    }
    let help = "Batches on their way to the holder.";
    page.one("forwarding_batches", help, metrics.forwarding.count());
    let help = "How long the oldest of them has been on its way.";
    page.one("oldest_forwarding_seconds", help, metrics.forwarding.oldest().as_secs_f64());
    let help = "Turns that were asked for because orders could not go to the holder.";
    page.one("turns_asked_total", help, metrics.turns_asked.get());
    page.one("handovers_total", "Tenures that ended with a handover.", metrics.handovers.get());
    page.one("lost_tenures_total", "Tenures that lost the lock.", metrics.lost_tenures.get());
    page.one("lost_sessions_total", "Lock sessions that were lost.", sale.lost_sessions());
    let help = "Lines of the log that were dropped since nobody read them.";
    page.one("log_lines_dropped_total", help, dropped_lines());
    for (name, help, times) in [
        ("lock_wait_seconds", "Wait for a grant.", &metrics.lock_wait),
        ("tenure_seconds", "Time the lock was held.", &metrics.tenure_time),
        ("batch_seconds", "Duration of a batch.", &metrics.batch_time),
    ] {
        page.histograms(name, help, [(String::new(), times)]);
    }
    let mut response = reply::text(StatusCode::OK, page.0);
    response.headers_mut().insert(header::CONTENT_TYPE, CONTENT_TYPE);
    response
}

/// The text of the answer. Writing to a string cannot fail.
#[derive(Default)]
struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP flash_sale_{name} {help}");
        let _ = writeln!(self.0, "# TYPE flash_sale_{name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &str, value: impl Display) {
        let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let _ = writeln!(self.0, "flash_sale_{name}{labels} {value}");
    }

    /// A metric without labels: a counter if its name ends in `_total`, else a gauge.
    fn one(&mut self, name: &str, help: &str, value: impl Display) {
        self.labelled(name, help, [(String::new(), value)]);
    }

    /// The same, with a value for each set of labels.
    fn labelled<T: Display>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (String, T)>,
    ) {
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        self.head(name, kind, help);
        for (labels, value) in values {
            self.line(name, &labels, value);
        }
    }

    fn histograms<'a>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (String, &'a Histogram)>,
    ) {
        self.head(name, "histogram", help);
        for (labels, times) in series {
            let comma = if labels.is_empty() { "" } else { "," };
            let bounds = Histogram::BOUNDS.map(|bound| bound.to_string());
            let bounds = bounds.iter().map(String::as_str).chain(["+Inf"]);
            for (bound, count) in bounds.zip(times.cumulative()) {
                let labels = format!("{labels}{comma}le=\"{bound}\"");
                self.line(&format!("{name}_bucket"), &labels, count);
            }
            self.line(&format!("{name}_sum"), &labels, times.sum().as_secs_f64());
            self.line(&format!("{name}_count"), &labels, times.count());
        }
    }
}
