//! Reads a file that was recorded, line by line.

use std::collections::BTreeMap;
use std::io::Read;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Deserializer;

use super::{Attempt, EndLine, Line, Setup, VERSION};
use crate::checker::{History, Order, u64_from};
use crate::cli::{MOST_REQUESTS, RATES};

/// A run, as far as a file has it.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) setup: Setup,
    /// By item.
    pub(crate) histories: Vec<History>,
    /// Why attempts settled nothing, and how often.
    pub(crate) unsettled: BTreeMap<String, u64>,
}

/// Reads a run.
///
/// # Errors
/// It cannot be read, a line is none, or it is not whole.
pub(crate) fn read(input: impl Read) -> Result<Recorded> {
    let mut recorded: Option<Recorded> = None;
    let mut end = None;
    for (number, line) in (1..).zip(Deserializer::from_reader(input).into_iter()) {
        let line = match line {
            Ok(line) => line,
            // the last thing that a killed run wrote
            Err(error) if error.is_eof() && end.is_none() => break,
            Err(error) => bail!("not a line of a recorded run: {error}"),
        };
        let at = || format!("line {number}");
        match (&mut recorded, line) {
            (None, Line::Run(setup)) => recorded = Some(Recorded::new(setup).with_context(at)?),
            (Some(recorded), line) if end.is_none() => end = recorded.add(line).with_context(at)?,
            (None, _) => bail!("line {number}: the first line must be `run`"),
            (Some(_), _) => bail!("line {number}: nothing may follow `end`"),
        }
    }
    recorded.context("it is empty: no run was recorded")?.whole(end)
}

impl Recorded {
    fn new(setup: Setup) -> Result<Self> {
        let Setup { version, rate, items, instances, .. } = &setup;
        let is_known = (1..=VERSION).contains(version);
        ensure!(is_known, "version {version} is not known, only 1 to {VERSION}");
        let has_both = !items.is_empty() && !instances.is_empty();
        ensure!(has_both, "a run has an item and an instance");
        ensure!(rate.is_none_or(|rate| RATES.contains(&rate)), "a rate is {RATES:?}");
        Ok(Self { histories: setup.histories(), setup, unsettled: BTreeMap::new() })
    }

    /// Adds a line; returns the last one.
    fn add(&mut self, line: Line) -> Result<Option<EndLine>> {
        match line {
            Line::Run(_) => bail!("a second `run`"),
            Line::Attempt(attempt) => self.attempt(attempt)?,
            Line::Order { item, entry } => self.item(item)?.ledger.push(entry),
            Line::State { item, instance, state } => {
                let url = self.setup.instances.get(instance).context("no such instance")?.clone();
                let history = self.item(item)?;
                match state {
                    Some(state) => history.after.push((url, state)),
                    None => history.gone.push(url),
                }
            }
            Line::End(end) => return Ok(Some(end)),
        }
        Ok(None)
    }

    fn item(&mut self, item: usize) -> Result<&mut History> {
        self.histories.get_mut(item).context("no such item")
    }

    fn attempt(&mut self, attempt: Attempt) -> Result<()> {
        let Attempt { order: id, item, change, quantity, to, sent, ended, outcome } = attempt;
        if let Some(why) = outcome.unsettled() {
            *self.unsettled.entry(why).or_default() += 1;
        }
        let is_possible = to < self.setup.instances.len() && sent <= ended;
        let history = self.item(item)?;
        let number = history.number(&id).filter(|number| *number < MOST_REQUESTS);
        let number = number.filter(|_| is_possible && quantity == history.quantity);
        let number = number.with_context(|| format!("{id}: this is no attempt of this run"))?;
        if number >= history.orders.len() {
            history.orders.resize(number + 1, Order::default());
        }
        let order = &mut history.orders[number];
        let accepted = order.acknowledged();
        let asked = match change {
            Some(event) => order.change(event),
            None => order,
        };
        let is_first = asked.attempts == 0 || sent >= asked.ended && !asked.is_settled();
        let is_next = change.is_none() || accepted.is_some_and(|accepted| accepted <= sent);
        ensure!(is_first && is_next, "{id} was sent again before an answer, or after the last one");
        asked.add(to, sent, ended, outcome);
        Ok(())
    }

    /// Checks that all is there that was written.
    fn whole(mut self, end: Option<EndLine>) -> Result<Self> {
        let orders = self.histories.iter().flat_map(|history| &history.orders);
        let attempts: u64 = orders.map(Order::all_attempts).sum();
        let ledger: u64 = self.histories.iter().map(|one| u64_from(one.ledger.len())).sum();
        let found = format!("{attempts} attempts and {ledger} orders of the ledger");
        let end = end.with_context(|| {
            format!(
                "it is cut off: {found} were recorded, and no end; the run was killed, or could not read the end \
                 of the sale, so there is nothing to judge"
            )
        })?;
        let has_end = |history: &History| !history.after.is_empty() || !history.gone.is_empty();
        ensure!(
            (attempts, ledger, self.histories.len())
                == (end.attempts, end.ledger, end.orders.len())
                && self.histories.iter().all(has_end),
            "lines are missing: {found} are in it, and {} and {} were written",
            end.attempts,
            end.ledger
        );
        for (history, orders) in self.histories.iter_mut().zip(end.orders) {
            history.interrupted = end.interrupted;
            // those that were not sent, since all buyers had given up
            if orders > history.orders.len() && orders <= MOST_REQUESTS {
                history.orders.resize(orders, Order::default());
            }
        }
        Ok(self)
    }
}
