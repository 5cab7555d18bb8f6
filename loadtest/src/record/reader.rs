//! Reads a file that was recorded, line by line.

use std::io::Read;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Deserializer;

use super::{Attempt, EndLine, FORMAT, Line, Setup};
use crate::checker::{History, Order, u64_from};
use crate::cli::{MOST_REQUESTS, RATES};

/// Reads a run.
///
/// # Errors
/// The file cannot be read, contains something else than a line, or is not whole.
pub(crate) fn read(input: impl Read) -> Result<History> {
    let mut history = History::default();
    let mut end = None;
    for (number, line) in (1_u64..).zip(Deserializer::from_reader(input).into_iter()) {
        let line = match line {
            Ok(line) => line,
            // the incomplete last line of a killed run
            Err(error) if error.is_eof() && end.is_none() => break,
            Err(error) => bail!("not a line of a recorded run: {error}"),
        };
        let at = || format!("line {number}");
        let is_first = matches!(line, Line::Run(_));
        ensure!(is_first == (number == 1), "line {number}: `run` is the first line, and no other");
        ensure!(end.is_none(), "line {number}: nothing may follow `end`");
        end = add(&mut history, line).with_context(at)?;
    }
    ensure!(!history.setup.run.is_empty(), "it is empty: no run was recorded");
    whole(history, end)
}

/// Adds a line to the history; returns the line if it is the last one.
fn add(history: &mut History, line: Line) -> Result<Option<EndLine>> {
    match line {
        Line::Run(setup) => {
            let Setup { format, urls, plan, .. } = &*setup;
            ensure!(*format == FORMAT, "format {format} is not known, only {FORMAT}");
            ensure!(!urls.is_empty(), "a run has an instance");
            ensure!(plan.rate.is_none_or(|rate| RATES.contains(&rate)), "a rate is {RATES:?}");
            history.setup = *setup;
        }
        Line::Attempt(attempt) => add_attempt(history, attempt)?,
        Line::Order(entry) => history.ledger.push(entry),
        Line::State { instance, state } => {
            let url = history.setup.urls.get(instance).context("no such instance")?.clone();
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
    let Setup { urls, plan, .. } = &history.setup;
    let is_possible = to < urls.len() && sent <= ended && quantity == plan.quantity;
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
    let is_first = asked.attempts == 0 || sent >= asked.ended && asked.is_open();
    let is_next = change.is_none() || settled.is_some_and(|settled| settled <= sent);
    ensure!(is_first && is_next, "{id} was sent again before an answer, or after the last one");
    asked.add(to, sent, ended, outcome);
    Ok(())
}

/// Checks that every line that was written is there.
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
    // add the orders that were not sent because all buyers had given up
    if end.orders > history.orders.len() && end.orders <= MOST_REQUESTS {
        history.orders.resize(end.orders, Order::default());
    }
    Ok(history)
}
