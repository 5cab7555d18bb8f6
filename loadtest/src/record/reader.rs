//! Reads a file that was recorded, line by line.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufRead};

use super::lines::{AttemptLine, EndLine, ItemLine, Line, RunLine, VERSION};
use crate::checker::{History, Order, u64_from};
use crate::pace::RATES;

/// No line that this program writes is longer, but for a first one with very many items.
const LINE_LIMIT_BYTES: u64 = 1 << 20;

/// No run has more orders.
const ORDER_LIMIT: usize = 10_000_000;

/// A run, as far as a file has it.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) run: RunLine,
    /// By item.
    pub(crate) histories: Vec<History>,
    /// Why attempts settled nothing, and how often.
    pub(crate) unsettled: BTreeMap<String, u64>,
}

/// Why a file cannot be judged.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("it cannot be read")]
    Io(#[from] io::Error),
    #[error("it is empty: no run was recorded")]
    Empty,
    #[error("line {number}: {what}")]
    Line { number: u64, what: String },
    #[error("line {number} is not a line of a recorded run")]
    Json { number: u64, source: serde_json::Error },
    #[error(
        "it is cut off: {attempts} attempts were recorded{until}, but {missing}; the run was killed, \
         or could not read the end of the sale, so there is nothing to judge"
    )]
    CutOff { attempts: u64, until: Until, missing: &'static str },
    #[error("{found} {what} are in it, and {written} were written: lines are missing")]
    Missing { what: &'static str, found: u64, written: u64 },
}

/// Until when a file goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Until(Option<u64>);

impl fmt::Display for Until {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(micros) => {
                write!(f, ", until {}.{:03} s", micros / 1_000_000, micros / 1000 % 1000)
            }
            None => Ok(()),
        }
    }
}

/// Reads a run.
///
/// # Errors
/// It cannot be read, a line is none, or it is not whole.
pub(crate) fn read(mut input: impl BufRead) -> Result<Recorded, ReadError> {
    let mut reading: Option<Reading> = None;
    let mut text = Vec::new();
    for number in 1.. {
        text.clear();
        let length = io::Read::take(&mut input, LINE_LIMIT_BYTES).read_until(b'\n', &mut text)?;
        if length == 0 {
            break;
        }
        let whole = text.last() == Some(&b'\n');
        let wrong = |what: String| ReadError::Line { number, what };
        let line = match serde_json::from_slice(&text) {
            Ok(line) => line,
            // the last thing that a killed run wrote
            Err(_) if !whole && u64_from(length) < LINE_LIMIT_BYTES => break,
            Err(source) => return Err(ReadError::Json { number, source }),
        };
        match (&mut reading, line) {
            (None, Line::Run(run)) => reading = Some(Reading::new(run).map_err(wrong)?),
            (None, _) => return Err(wrong("the first line must be `run`".to_owned())),
            (Some(reading), line) => reading.add(line).map_err(wrong)?,
        }
    }
    reading.ok_or(ReadError::Empty)?.finish()
}

/// What was read until now.
struct Reading {
    recorded: Recorded,
    attempts: u64,
    ledger: u64,
    until: Option<u64>,
    end: Option<EndLine>,
}

impl Reading {
    fn new(run: RunLine) -> Result<Self, String> {
        if run.version != VERSION {
            return Err(format!("version {} is not known, only {VERSION}", run.version));
        }
        if run.items.is_empty() || run.instances.is_empty() {
            return Err("a run has an item and an instance".to_owned());
        }
        if run.rate.is_some_and(|rate| !RATES.contains(&rate)) {
            return Err(format!("a rate is from {} to {}", RATES.start(), RATES.end()));
        }
        let history = |item: &ItemLine| History {
            run: item.run.clone(),
            family: run.run.clone(),
            alone: run.alone,
            tokens: run.tokens,
            quantity: run.quantity,
            before: item.before.clone(),
            orders: Vec::new(),
            ledger: Vec::new(),
            after: Vec::new(),
            gone: Vec::new(),
        };
        let histories = run.items.iter().map(history).collect();
        let recorded = Recorded { run, histories, unsettled: BTreeMap::new() };
        Ok(Self { recorded, attempts: 0, ledger: 0, until: None, end: None })
    }

    fn add(&mut self, line: Line<'_>) -> Result<(), String> {
        if self.end.is_some() {
            return Err("nothing may follow `end`".to_owned());
        }
        match line {
            Line::Run(_) => return Err("a second `run`".to_owned()),
            Line::Attempt(attempt) => self.attempt(&attempt)?,
            Line::Order(order) => {
                self.item(order.item)?.ledger.push(order.entry);
                self.ledger += 1;
            }
            Line::State(state) => {
                let url = self.recorded.run.instances.get(state.instance).cloned();
                let url = url.ok_or_else(|| format!("no instance {}", state.instance))?;
                let history = self.item(state.item)?;
                match state.state {
                    Some(state) => history.after.push((url, state)),
                    None => history.gone.push(url),
                }
            }
            Line::End(end) => self.end = Some(end),
        }
        Ok(())
    }

    fn item(&mut self, item: usize) -> Result<&mut History, String> {
        self.recorded.histories.get_mut(item).ok_or_else(|| format!("no item {item}"))
    }

    fn attempt(&mut self, line: &AttemptLine<'_>) -> Result<(), String> {
        let outcome = line.outcome()?;
        let (to, sent, ended) = (line.to, line.sent, line.ended);
        if to >= self.recorded.run.instances.len() {
            return Err(format!("no instance {to}"));
        }
        if ended < sent {
            return Err("an attempt cannot end before it was sent".to_owned());
        }
        if let Some(why) = outcome.unsettled() {
            *self.recorded.unsettled.entry(why).or_default() += 1;
        }
        let history = self.item(line.item)?;
        if line.quantity != history.quantity {
            return Err(format!("all orders of the run ask for {}", history.quantity));
        }
        let number = history.number(&line.order).filter(|number| *number < ORDER_LIMIT);
        let number = number.ok_or_else(|| format!("{} is no order of this run", line.order))?;
        if number >= history.orders.len() {
            history.orders.resize(number + 1, Order::unsent());
        }
        let order = &mut history.orders[number];
        if order.attempts > 0 && (sent < order.ended || order.is_settled()) {
            return Err(format!(
                "{} was sent again before its attempt ended, or after its answer",
                line.order
            ));
        }
        order.add(sent, ended, outcome);
        self.attempts += 1;
        self.until = self.until.max(Some(ended));
        Ok(())
    }

    fn finish(mut self) -> Result<Recorded, ReadError> {
        let Some(end) = self.end else {
            let missing = if self.ledger == 0 {
                "the ledger, the state and the end of the run are missing"
            } else {
                "the end of the run is missing"
            };
            let (attempts, until) = (self.attempts, Until(self.until));
            return Err(ReadError::CutOff { attempts, until, missing });
        };
        for (what, found, written) in [
            ("attempts", self.attempts, end.attempts),
            ("orders of the ledger", self.ledger, end.ledger),
            ("items", u64_from(self.recorded.histories.len()), u64_from(end.orders.len())),
        ] {
            if found != written {
                return Err(ReadError::Missing { what, found, written });
            }
        }
        for (history, orders) in self.recorded.histories.iter_mut().zip(end.orders) {
            if history.after.is_empty() && history.gone.is_empty() {
                return Err(ReadError::Missing { what: "states of an item", found: 0, written: 1 });
            }
            // those that were not sent, since all buyers had given up
            if orders > history.orders.len() && orders <= ORDER_LIMIT {
                history.orders.resize(orders, Order::unsent());
            }
        }
        Ok(self.recorded)
    }
}
