//! The results as tables. Each table has the command that repeats one of its rows.

use std::fmt::Write as _;

use fenced_lock::TokenLife;

use super::faults::Takeover;
use super::options::Fault;
use super::sale::Oversold;
use super::speed::Handovers;
use super::{Figures, Results};
use crate::articles;
use crate::experiment::{figure, float, rows, section, value_name};
use crate::locks::in_words;

/// All tables with rows.
pub(super) fn text(results: &Results) -> String {
    let all = &results.locks;
    let seed = format!("--seed {}", results.seed);
    let trials = format!("--trials {} {seed}", results.trials);
    let mut text = String::new();
    let mut add = |title: &str, mut table: String, command: &str| {
        if !table.is_empty() {
            let _ = write!(table, "\nA row: `make arena ARGS='--locks LOCK {command}'`\n");
        }
        section(&mut text, title, &table);
    };
    add("Locks", promises(all), "--only handovers");
    let command = format!("--only handovers,distance {seed}");
    add("Handovers", handovers(all), &command);
    add("Fairness and cost", fairness(all), "--only fairness,requests");
    let command = format!("--only takeover --faults FAULT {trials}");
    add("Takeover after a fault", takeovers(all), &command);
    let command = format!("--only oversold --faults FAULT {trials}");
    add("Units oversold", oversold(all), &command);
    if !results.flaws.is_empty() {
        let flaws = articles::table(&results.flaws) + articles::NOTES;
        section(&mut text, "What the articles' locks do", &flaws);
    }
    for one in all {
        for fault in &one.faults {
            let _ = writeln!(text, "FAULT under {}: {fault}", one.lock);
        }
    }
    text
}

fn or_dash(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), figure)
}

fn promises(all: &[Figures]) -> String {
    let row = |one: &Figures| {
        let promises = one.promises?;
        Some(format!("{} | {}", one.lock, in_words(promises).join(" | ")))
    };
    rows("lock | order | wake-up | token | end | loss", all.iter().filter_map(row))
}

fn handovers(all: &[Figures]) -> String {
    let pairs = all.iter().flat_map(|one| one.handovers.iter().map(move |at| (one.lock, at)));
    let row = |(lock, at): (&str, &Handovers)| {
        let Handovers { round_trip_ms, turns, p50_ms, p99_ms } = at;
        let (p50, p99) = (figure(*p50_ms), figure(*p99_ms));
        format!("{lock} | {round_trip_ms} | {turns} | {p50} | {p99}")
    };
    rows("lock | round trip ms | handovers | p50 ms | p99 ms", pairs.map(row))
}

fn fairness(all: &[Figures]) -> String {
    let head = "lock | overtaken | Jain's index | wait p50 ms | p99 ms | longest ms \
                | requests for a grant | requests/s, all waiting";
    let row = |one: &Figures| {
        let it = one.contest.as_ref()?;
        let fairness = [it.jain, it.wait_p50_ms, it.wait_p99_ms, it.longest_wait_ms];
        let cost = [it.requests_per_grant, it.idle_requests].map(or_dash).join(" | ");
        let (lock, fairness) = (one.lock, fairness.map(figure).join(" | "));
        Some(format!("{lock} | {} of {} | {fairness} | {cost}", it.overtaken, it.clients))
    };
    rows(head, all.iter().filter_map(row))
}

/// The takeovers. If one process keeps the lock, the time until the next grant says nothing when the fault hits that process.
fn takeovers(all: &[Figures]) -> String {
    let head = "lock | fault | trials | hit the holder | p50 s of those | longest s | never \
                | holder lost the lock | two holders | longest ms | same number given twice \
                | numbers restart: an operator must decide";
    let row = |one: &Figures, it: &Takeover| {
        // a killed process no longer holds the lock
        let (is_kept, is_dead) = (it.is_kept(), it.fault == Fault::Kill);
        let unless =
            |is_unknown: bool, cell: String| if is_unknown { "-".to_owned() } else { cell };
        let seconds =
            |millis: Option<f64>| millis.map_or("never".to_owned(), |millis| figure(millis / 1e3));
        [
            one.lock.to_owned(),
            value_name(&it.fault),
            it.trials.to_string(),
            unless(!it.hits_process(), it.hits.to_string()),
            unless(is_kept || it.hits == 0, seconds(it.p50_ms)),
            unless(is_kept, seconds(it.longest_ms)),
            unless(is_kept, it.never.to_string()),
            unless(!is_kept, (it.trials - it.never).to_string()),
            unless(is_dead, format!("{} of {}", it.overlaps, it.hits)),
            unless(is_dead, figure(it.longest_overlap_ms)),
            of_tokens(one, it, it.repeated_tokens),
            of_tokens(one, it, it.other_cluster),
        ]
        .join(" | ")
    };
    rows(head, all.iter().flat_map(|one| one.takeovers.iter().map(move |it| row(one, it))))
}

/// In how many trials the tokens of the grants had this fault; empty for a lock without tokens.
fn of_tokens(one: &Figures, takeover: &Takeover, count: usize) -> String {
    match one.promises.map(|promises| promises.token) {
        None | Some(TokenLife::None) => "-".to_owned(),
        Some(_) => format!("{count} of {}", takeover.trials),
    }
}

fn oversold(all: &[Figures]) -> String {
    let row = |one: &Figures, it: &Oversold| {
        let Oversold { fault, fence, trials, broken, most_units, slowest_ms } = it;
        let (lock, fault) = (one.lock, value_name(fault));
        let slowest = figure(float(*slowest_ms) / 1e3);
        format!("{lock} | {fault} | {fence} | {broken} of {trials} | {most_units} | {slowest}")
    };
    let head = "lock | fault | fence | oversold in | most units | slowest sale s";
    rows(head, all.iter().flat_map(|one| one.oversold.iter().map(move |it| row(one, it))))
}
