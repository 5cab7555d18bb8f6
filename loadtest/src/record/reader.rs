//! Reads a file that was recorded, line by line.

use std::collections::BTreeMap;
use std::io::{self, Read};

use anyhow::{Context as _, Error, anyhow, bail};
use serde_json::Deserializer;

use super::{Attempt, EndLine, Line, Setup, VERSION};
use crate::checker::{History, Order, StockState, u64_from};
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
pub(crate) fn read(input: impl Read) -> anyhow::Result<Recorded> {
    let mut recorded: Option<Recorded> = None;
    let mut end = None;
    for (number, line) in (1..).zip(Deserializer::from_reader(input).into_iter()) {
        let line = match line {
            Ok(line) => line,
            // the last thing that a killed run wrote
            Err(error) if error.is_eof() && end.is_none() => break,
            Err(error) if error.is_io() => return Err(io::Error::from(error).into()),
            Err(error) => bail!("not a line of a recorded run: {error}"),
        };
        let read = match (&mut recorded, line) {
            (None, Line::Run(setup)) => Recorded::new(setup).map(|run| recorded = Some(run)),
            (None, _) => Err("the first line must be `run`".to_owned()),
            (Some(_), _) if end.is_some() => Err("nothing may follow `end`".to_owned()),
            (Some(_), Line::Run(_)) => Err("a second `run`".to_owned()),
            (Some(_), Line::End(line)) => {
                end = Some(line);
                Ok(())
            }
            (Some(recorded), Line::Attempt(attempt)) => recorded.attempt(attempt),
            (Some(recorded), Line::Order { item, entry }) => {
                recorded.item(item).map(|history| history.ledger.push(entry))
            }
            (Some(recorded), Line::State { item, instance, state }) => {
                recorded.state(item, instance, state)
            }
        };
        read.map_err(|what: String| anyhow!("line {number}: {what}"))?;
    }
    let recorded = recorded.context("it is empty: no run was recorded")?;
    recorded.whole(end).map_err(Error::msg)
}

impl Recorded {
    fn new(setup: Setup) -> Result<Self, String> {
        if !(1..=VERSION).contains(&setup.version) {
            return Err(format!("version {} is not known, only 1 to {VERSION}", setup.version));
        }
        if setup.items.is_empty() || setup.instances.is_empty() {
            return Err("a run has an item and an instance".to_owned());
        }
        if setup.rate.is_some_and(|rate| !RATES.contains(&rate)) {
            return Err(format!("a rate is from {} to {}", RATES.start(), RATES.end()));
        }
        Ok(Self { histories: setup.histories(), setup, unsettled: BTreeMap::new() })
    }

    fn item(&mut self, item: usize) -> Result<&mut History, String> {
        self.histories.get_mut(item).ok_or_else(|| format!("no item {item}"))
    }

    fn state(
        &mut self,
        item: usize,
        instance: usize,
        state: Option<StockState>,
    ) -> Result<(), String> {
        let url = self.setup.instances.get(instance).cloned();
        let url = url.ok_or_else(|| format!("no instance {instance}"))?;
        let history = self.item(item)?;
        match state {
            Some(state) => history.after.push((url, state)),
            None => history.gone.push(url),
        }
        Ok(())
    }

    fn attempt(&mut self, attempt: Attempt) -> Result<(), String> {
        let Attempt { order: id, item, change, quantity, to, sent, ended, outcome } = attempt;
        if let Some(why) = outcome.unsettled() {
            *self.unsettled.entry(why).or_default() += 1;
        }
        let is_possible = to < self.setup.instances.len() && sent <= ended;
        let history = self.item(item)?;
        let number = history.number(&id).filter(|number| *number < MOST_REQUESTS);
        let number = number.filter(|_| is_possible && quantity == history.quantity);
        let number = number.ok_or_else(|| format!("{id}: this is no attempt of this run"))?;
        if number >= history.orders.len() {
            history.orders.resize(number + 1, Order::default());
        }
        let order = &mut history.orders[number];
        let asked = match change {
            None => order,
            Some(_) if order.acknowledged().is_none_or(|at| sent < at) => {
                return Err(format!("{id} was changed before it was accepted"));
            }
            Some(event) => order.change(event),
        };
        if asked.attempts > 0 && (sent < asked.ended || asked.is_settled()) {
            let what = "was sent again before its attempt ended, or after its answer";
            return Err(format!("{id} {what}"));
        }
        asked.add(to, sent, ended, outcome);
        Ok(())
    }

    /// Checks that all is there that was written.
    fn whole(mut self, end: Option<EndLine>) -> Result<Self, String> {
        let orders = self.histories.iter().flat_map(|history| &history.orders);
        let attempts: u64 = orders.map(Order::all_attempts).sum();
        let ledger: u64 = self.histories.iter().map(|one| u64_from(one.ledger.len())).sum();
        let Some(end) = end else {
            return Err(format!(
                "it is cut off: {attempts} attempts and {ledger} orders of the ledger were recorded, and no \
                 end; the run was killed, or could not read the end of the sale, so there is nothing to judge"
            ));
        };
        let items = self.histories.len();
        let has_end = |history: &History| !history.after.is_empty() || !history.gone.is_empty();
        if (attempts, ledger, items) != (end.attempts, end.ledger, end.orders.len())
            || !self.histories.iter().all(has_end)
        {
            return Err(format!(
                "lines are missing: {attempts} attempts and {ledger} orders of the ledger are in it, and {} and \
                 {} were written",
                end.attempts, end.ledger
            ));
        }
        for (history, orders) in self.histories.iter_mut().zip(end.orders) {
            // those that were not sent, since all buyers had given up
            if orders > history.orders.len() && orders <= MOST_REQUESTS {
                history.orders.resize(orders, Order::default());
            }
        }
        Ok(self)
    }
}
