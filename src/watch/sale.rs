//! What a message tells, as far as it is shown.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Deserialize;

/// A sale at one moment.
#[derive(Deserialize)]
pub(super) struct Sale {
    now_ms: f64,
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
    pub(super) text: String,
}

impl Sale {
    pub(super) fn parse(message: &str) -> Option<Self> {
        serde_json::from_str(message).ok()
    }

    /// All of it, in some lines.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines =
            vec![format!("stock   {}", self.stock()), format!("lock    {}", self.lock(true))];
        lines.push(format!("rate    {}", self.rates()));
        let Here { waiting, sold_out, refused } = self.here;
        let mut here = format!("{waiting} waiting, {sold_out} told sold out, {refused} refused");
        if let Some(Latency { p50, p99 }) = self.latency_ms {
            let _ = write!(here, ", half within {p50} ms, 99 % within {p99} ms");
        }
        lines.push(format!("{:<7} {here}", plain(&self.instance)));
        lines.extend(
            self.troubles.iter().map(|trouble| format!("WRONG   {}", plain(&trouble.text))),
        );
        lines
    }

    /// All of it, in one line that stays the same while nothing happens.
    pub(super) fn line(&self) -> String {
        let mut line =
            format!("stock {}; lock {}; {}", self.stock(), self.lock(false), self.rates());
        for trouble in &self.troubles {
            let _ = write!(line, "; WRONG: {}", plain(&trouble.text));
        }
        line
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

    fn lock(&self, with_ages: bool) -> String {
        let Some(lock) = &self.lock else { return format!("none ({})", plain(&self.guard)) };
        if !lock.known {
            return "not known".to_owned();
        }
        let Some((holder, waiting)) = lock.queue.split_first() else { return "free".to_owned() };
        let mut text = format!("{} holds it, token {}", holder.name(), holder.token);
        if with_ages {
            let age = (self.now_ms - holder.since_ms).max(0.0) / 1000.0;
            let _ = write!(text, ", lease {}, for {age:.1} s", plain(&holder.lease));
        }
        if !waiting.is_empty() {
            let names: Vec<_> = waiting.iter().map(Claim::name).collect();
            let _ = write!(text, "; behind it {}", names.join(", "));
        }
        text
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
        plain(self.instance.as_deref().unwrap_or("somebody else"))
    }
}

/// A text from outside, without what a terminal could take for a command.
pub(super) fn plain(text: &str) -> String {
    text.replace(char::is_control, "?")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sale(stock: i64, lucky: i64) -> Sale {
        let claim = |token: i64, name: &str| json!({"token": token, "lease": "1f", "instance": name, "since_ms": 500.0});
        let sale = json!({
            "now_ms": 2000.0, "instance": "8080", "guard": "etcd",
            "stock": {"stock": stock, "lucky": lucky, "initial": 300, "balanced": stock + lucky == 300},
            "here": {"waiting": 3, "sold_out": 2, "refused": 1},
            "lock": {"known": true, "queue": [claim(7, "8080"), claim(9, "80\u{1b}90")]},
            "rates": {"total": 15.4, "by_instance": {"8080": 15.4, "8090": 0.0}},
            "latency_ms": null, "troubles": [], "notes": [],
        });
        Sale::parse(&sale.to_string()).expect("it has all that is shown")
    }

    #[test]
    fn a_sale_is_told_in_words() {
        let lines = sale(120, 180).lines().join("\n");
        for words in [
            "120 + lucky 180 = initial 300",
            "8080 holds it, token 7, lease 1f, for 1.5 s; behind it 80?90",
            "15 orders/s (8080 15)",
            "3 waiting, 2 told sold out, 1 refused",
        ] {
            assert!(lines.contains(words), "{words}: {lines}");
        }
    }

    #[test]
    fn what_does_not_add_up_is_said() {
        let line = sale(290, 500).line();
        assert!(line.contains("290 + lucky 500 IS NOT initial 300, SOLD 200 TOO MANY"), "{line}");
    }
}
