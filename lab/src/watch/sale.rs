//! The parts of a message that are shown.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Deserialize;

/// A sale at one moment.
#[derive(Deserialize)]
pub(super) struct Sale {
    /// Milliseconds since 1970.
    pub(super) now_ms: f64,
    instance: String,
    guard: String,
    stock: Option<Stock>,
    here: Here,
    lock: Option<Lock>,
    rates: Rates,
    latency_ms: Option<Latency>,
    troubles: Vec<Trouble>,
    pub(super) notes: Vec<Note>,
}

#[derive(Deserialize)]
struct Stock {
    #[serde(rename = "stock")]
    left: i64,
    lucky: i64,
    initial: i64,
    balanced: bool,
}

#[derive(Deserialize)]
struct Here {
    waiting: u64,
    sold_out: u64,
    refused: u64,
}

#[derive(Deserialize)]
struct Lock {
    known: bool,
    queue: Vec<Claim>,
}

#[derive(Deserialize)]
struct Claim {
    token: i64,
    lease: String,
    instance: Option<String>,
    since_ms: f64,
}

#[derive(Deserialize)]
struct Rates {
    total: f64,
    by_instance: BTreeMap<String, f64>,
}

#[derive(Deserialize)]
struct Latency {
    p50: f64,
    p99: f64,
}

#[derive(Deserialize)]
struct Trouble {
    text: String,
}

#[derive(Deserialize)]
pub(super) struct Note {
    pub(super) id: u64,
    /// Milliseconds since 1970.
    pub(super) at_ms: f64,
    pub(super) text: String,
}

/// A line behind its label.
pub(super) struct Line {
    pub(super) label: &'static str,
    pub(super) text: String,
}

impl Sale {
    pub(super) fn parse(message: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(message)
    }

    /// The whole sale; always the same lines.
    pub(super) fn lines(&self) -> Vec<Line> {
        let line = |label, text| Line { label, text };
        let (holder, queue) = self.lock();
        let Here { waiting, sold_out, refused } = self.here;
        let latency = self
            .latency_ms
            .as_ref()
            .map(|Latency { p50, p99 }| format!("p50 {p50:.1} ms, p99 {p99:.1} ms"));
        let errors = if refused == 1 { "error" } else { "errors" };
        let here = format!(
            "{}: {waiting} waiting, {sold_out} told sold out and {refused} {errors} since its start",
            plain(&self.instance)
        );
        vec![
            line("stock", self.stock()),
            line("lock", holder),
            line("queue", queue.unwrap_or_else(|| "-".to_owned())),
            line("rate", self.rates()),
            line("here", here),
            line("latency", latency.unwrap_or_else(|| "-".to_owned())),
        ]
    }

    /// Current alerts.
    pub(super) fn troubles(&self) -> impl Iterator<Item = String> {
        self.troubles.iter().map(|trouble| plain(&trouble.text))
    }

    /// The whole sale in one line, which does not change while nothing happens.
    pub(super) fn line(&self) -> String {
        let holder = self
            .holder()
            .map(|holder| format!("{} holds it, token {}", holder.name(), holder.token));
        let (state, queue) = self.lock();
        let mut line = format!("stock {}; lock {}", self.stock(), holder.unwrap_or(state));
        if let Some(queue) = queue {
            let _ = write!(line, "; behind it {queue}");
        }
        let _ = write!(line, "; {}", self.rates());
        for trouble in self.troubles() {
            let _ = write!(line, "; WRONG: {trouble}");
        }
        line
    }

    /// Whether a part is missing that may come in a moment.
    pub(super) fn is_incomplete(&self) -> bool {
        self.troubles.is_empty()
            && (self.stock.is_none() || self.lock.as_ref().is_some_and(|lock| !lock.known))
    }

    fn holder(&self) -> Option<&Claim> {
        self.lock.as_ref().filter(|lock| lock.known)?.queue.first()
    }

    fn stock(&self) -> String {
        let Some(Stock { left, lucky, initial, balanced }) = &self.stock else {
            return "not known".to_owned();
        };
        let is = if *balanced { "=" } else { "IS NOT" };
        let mut text = format!("{left} + lucky {lucky} {is} initial {initial}");
        if lucky > initial {
            let _ = write!(text, ", SOLD {} TOO MANY", lucky - initial);
        }
        text
    }

    /// The holder, and the waiting claims.
    fn lock(&self) -> (String, Option<String>) {
        let Some(lock) = &self.lock else {
            return (format!("none ({})", plain(&self.guard)), None);
        };
        if !lock.known {
            return ("not known".to_owned(), None);
        }
        let Some((holder, waiting)) = lock.queue.split_first() else {
            return ("free".to_owned(), None);
        };
        let age = (self.now_ms - holder.since_ms).max(0.0) / 1000.0;
        let (name, token, lease) = (holder.name(), holder.token, plain(&holder.lease));
        let held = format!("{name} holds it for {age:.1} s, token {token}, lease {lease}");
        let names: Vec<_> = waiting.iter().map(Claim::name).collect();
        (held, (!names.is_empty()).then(|| names.join(", ")))
    }

    fn rates(&self) -> String {
        let Rates { total, by_instance } = &self.rates;
        let mut text = format!("{total:.0} orders/s");
        let by_instance = by_instance.iter().filter(|(_, rate)| **rate > 0.0);
        let parts: Vec<_> =
            by_instance.map(|(name, rate)| format!("{} {rate:.0}", plain(name))).collect();
        if !parts.is_empty() {
            let _ = write!(text, " ({})", parts.join(", "));
        }
        text
    }
}

impl Claim {
    fn name(&self) -> String {
        plain(self.instance.as_deref().unwrap_or("another client"))
    }
}

/// A text from outside, without control characters.
pub(super) fn plain(text: &str) -> String {
    text.replace(char::is_control, "?")
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    pub(in super::super) fn message(stock: i64, lucky: i64) -> String {
        let claim = |token: i64, name: &str| json!({"token": token, "lease": "1f", "instance": name, "since_ms": 500.0});
        let message = json!({
            "now_ms": 2000.0, "instance": "8080", "guard": "etcd",
            "stock": {"stock": stock, "lucky": lucky, "initial": 300, "balanced": stock + lucky == 300},
            "here": {"waiting": 3, "sold_out": 2, "refused": 1},
            "lock": {"known": true, "queue": [claim(7, "8080"), claim(9, "80\u{1b}90")]},
            "rates": {"total": 15.4, "by_instance": {"8080": 15.4, "8090": 0.0}},
            "latency_ms": null, "troubles": [], "notes": [],
        });
        message.to_string()
    }

    pub(in super::super) fn sale(stock: i64, lucky: i64) -> Sale {
        Sale::parse(&message(stock, lucky)).expect("it has all that is shown")
    }

    #[test]
    fn a_sale_is_told_in_words() {
        let lines = sale(120, 180).lines();
        for (label, words) in [
            ("stock", "120 + lucky 180 = initial 300"),
            ("lock", "8080 holds it for 1.5 s, token 7, lease 1f"),
            ("queue", "80?90"),
            ("rate", "15 orders/s (8080 15)"),
            ("here", "8080: 3 waiting, 2 told sold out and 1 error since its start"),
            ("latency", "-"),
        ] {
            let line = lines.iter().find(|line| line.label == label).expect("it is always there");
            assert_eq!(line.text, words);
        }
        let line = sale(120, 180).line();
        assert_eq!(
            line,
            "stock 120 + lucky 180 = initial 300; lock 8080 holds it, token 7; behind it 80?90; \
             15 orders/s (8080 15)"
        );
    }

    #[test]
    fn what_does_not_add_up_is_said() {
        let line = sale(290, 500).line();
        assert!(line.contains("290 + lucky 500 IS NOT initial 300, SOLD 200 TOO MANY"), "{line}");
    }
}
