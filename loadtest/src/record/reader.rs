//! Reads a file that was recorded, line by line.

use std::io::Read;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Deserializer;

use super::{Attempt, EndLine, Line, Setup, VERSION};
use crate::checker::{History, Order, u64_from};
use crate::cli::{MOST_REQUESTS, RATES};

/// Reads a run.
///
/// # Errors
/// It cannot be read, a line is none, or it is not whole.
pub(crate) fn read(input: impl Read) -> Result<History> {
    let mut history: Option<History> = None;
    let mut end = None;
    for (number, line) in (1..).zip(Deserializer::from_reader(input).into_iter()) {
        let line = match line {
            Ok(line) => line,
            // the last thing that a killed run wrote
            Err(error) if error.is_eof() && end.is_none() => break,
            Err(error) => bail!("not a line of a recorded run: {error}"),
        };
        let at = || format!("line {number}");
        match (&mut history, line) {
            (None, Line::Run(setup)) => history = Some(begin(*setup).with_context(at)?),
            (Some(history), line) if end.is_none() => end = add(history, line).with_context(at)?,
            (None, _) => bail!("line {number}: the first line must be `run`"),
            (Some(_), _) => bail!("line {number}: nothing may follow `end`"),
        }
    }
    whole(history.context("it is empty: no run was recorded")?, end)
}

fn begin(setup: Setup) -> Result<History> {
    let Setup { version, rate, instances, .. } = &setup;
    ensure!(*version == VERSION, "version {version} is not known, only {VERSION}");
    ensure!(!instances.is_empty(), "a run has an instance");
    ensure!(rate.is_none_or(|rate| RATES.contains(&rate)), "a rate is {RATES:?}");
    Ok(History { setup, ..History::default() })
}

/// Adds a line; returns the last one.
fn add(history: &mut History, line: Line) -> Result<Option<EndLine>> {
    match line {
        Line::Run(_) => bail!("a second `run`"),
        Line::Attempt(attempt) => add_attempt(history, attempt)?,
        Line::Order(entry) => history.ledger.push(entry),
        Line::State { instance, state } => {
            let url = history.setup.instances.get(instance).context("no such instance")?.clone();
            match state {
                Some(state) => history.after.push((url, state)),
                None => history.gone.push(url),
            }
        }
        Line::End(end) => return Ok(Some(end)),
    }
    Ok(None)
}

fn add_attempt(history: &mut History, attempt: Attempt) -> Result<()> {
    let Attempt { order: id, change, quantity, to, sent, ended, outcome } = attempt;
    if let Some(why) = outcome.unsettled() {
        *history.unsettled.entry(why).or_default() += 1;
    }
    let Setup { instances, quantity: usual, .. } = &history.setup;
    let is_possible = to < instances.len() && sent <= ended && quantity == *usual;
    let number = history.number(&id).filter(|number| *number < MOST_REQUESTS && is_possible);
    let number = number.with_context(|| format!("{id}: this is no attempt of this run"))?;
    if number >= history.orders.len() {
        history.orders.resize(number + 1, Order::default());
    }
    let order = &mut history.orders[number];
    let settled = order.is_settled().then_some(order.ended);
    let asked = match change {
        Some(event) => order.change(event),
        None => order,
    };
    let is_first = asked.attempts == 0 || sent >= asked.ended && !asked.is_settled();
    let is_next = change.is_none() || settled.is_some_and(|settled| settled <= sent);
    ensure!(is_first && is_next, "{id} was sent again before an answer, or after the last one");
    asked.add(to, sent, ended, outcome);
    Ok(())
}

/// Checks that all is there that was written.
fn whole(mut history: History, end: Option<EndLine>) -> Result<History> {
    let attempts: u64 = history.orders.iter().map(Order::all_attempts).sum();
    let ledger = u64_from(history.ledger.len());
    let found = format!("{attempts} attempts and {ledger} orders of the ledger");
    let end = end.with_context(|| {
        format!(
            "it is cut off: {found} were recorded, and no end; the run was killed, or could not read the end \
             of the sale, so there is nothing to judge"
        )
    })?;
    let has_end = !history.after.is_empty() || !history.gone.is_empty();
    ensure!(
        (attempts, ledger) == (end.attempts, end.ledger) && has_end,
        "lines are missing: {found} are in it, and {} and {} were written",
        end.attempts,
        end.ledger
    );
    history.interrupted = end.interrupted;
    // those that were not sent, since all buyers had given up
    if end.orders > history.orders.len() && end.orders <= MOST_REQUESTS {
        history.orders.resize(end.orders, Order::default());
    }
    Ok(history)
}
