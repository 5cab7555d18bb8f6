//! Reads a file that was recorded, line by line.

use std::collections::BTreeMap;
use std::io::{self, BufRead};

use super::{Attempt, EndLine, LedgerLine, Line, Setup, StateLine, VERSION};
use crate::checker::{History, Order, u64_from};
use crate::cli::{MOST_REQUESTS, RATES};

/// No line that this program writes is longer, but for a first one with very many items.
const LINE_LIMIT_BYTES: u64 = 1 << 20;

/// A run, as far as a file has it.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) setup: Setup,
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
    CutOff { attempts: u64, until: String, missing: &'static str },
    #[error("{found} {what} are in it, and {written} were written: lines are missing")]
    Missing { what: &'static str, found: u64, written: u64 },
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
            (None, Line::Run(setup)) => reading = Some(Reading::new(setup).map_err(wrong)?),
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
    fn new(setup: Setup) -> Result<Self, String> {
        if setup.version != VERSION {
            return Err(format!("version {} is not known, only {VERSION}", setup.version));
        }
        if setup.items.is_empty() || setup.instances.is_empty() {
            return Err("a run has an item and an instance".to_owned());
        }
        if setup.rate.is_some_and(|rate| !RATES.contains(&rate)) {
            return Err(format!("a rate is from {} to {}", RATES.start(), RATES.end()));
        }
        let histories = setup.histories();
        let recorded = Recorded { setup, histories, unsettled: BTreeMap::new() };
        Ok(Self { recorded, attempts: 0, ledger: 0, until: None, end: None })
    }

    fn add(&mut self, line: Line) -> Result<(), String> {
        if self.end.is_some() {
            return Err("nothing may follow `end`".to_owned());
        }
        match line {
            Line::Run(_) => return Err("a second `run`".to_owned()),
            Line::Attempt(attempt) => self.attempt(attempt)?,
            Line::Order(LedgerLine { item, entry }) => {
                self.item(item)?.ledger.push(entry);
                self.ledger += 1;
            }
            Line::State(StateLine { item, instance, state }) => {
                let url = self.instance(instance)?.clone();
                let history = self.item(item)?;
                match state {
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

    fn instance(&self, instance: usize) -> Result<&String, String> {
        let url = self.recorded.setup.instances.get(instance);
        url.ok_or_else(|| format!("no instance {instance}"))
    }

    fn attempt(&mut self, attempt: Attempt) -> Result<(), String> {
        let Attempt { order: id, item, quantity, to, sent, ended, outcome } = attempt;
        self.instance(to)?;
        if ended < sent {
            return Err("an attempt cannot end before it was sent".to_owned());
        }
        let unsettled = outcome.unsettled();
        let history = self.item(item)?;
        if quantity != history.quantity {
            return Err(format!("all orders of the run ask for {}", history.quantity));
        }
        let number = history.number(&id).filter(|number| *number < MOST_REQUESTS);
        let number = number.ok_or_else(|| format!("{id} is no order of this run"))?;
        if number >= history.orders.len() {
            history.orders.resize(number + 1, Order::unsent());
        }
        let order = &mut history.orders[number];
        if order.attempts > 0 && (sent < order.ended || order.is_settled()) {
            return Err(format!(
                "{id} was sent again before its attempt ended, or after its answer"
            ));
        }
        order.add(sent, ended, outcome);
        if let Some(why) = unsettled {
            *self.recorded.unsettled.entry(why).or_default() += 1;
        }
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
            let until = self.until.map(|micros| {
                format!(", until {}.{:03} s", micros / 1_000_000, micros / 1000 % 1000)
            });
            let until = until.unwrap_or_default();
            return Err(ReadError::CutOff { attempts: self.attempts, until, missing });
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
            if orders > history.orders.len() && orders <= MOST_REQUESTS {
                history.orders.resize(orders, Order::unsent());
            }
        }
        Ok(self.recorded)
    }
}
