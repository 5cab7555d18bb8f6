//! The results as tables, each with the command that repeats a row of it.

use std::fmt::Write as _;

use demo::locks::in_words;
use fenced_lock::{Clock, Ends, Promises, TokenLife, Wake};

use super::faults::Takeover;
use super::options::Fault;
use super::sale::Oversold;
use super::{Figures, Results};
use crate::experiment::{figure, float, rows, section};

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
    add("The sale", speed(all), "--only load,burst");
    let command = format!("--only takeover --faults FAULT {trials}");
    add("Takeover after a fault", takeovers(all), &command);
    add("Two holders at once", overlaps(all), &command);
    let command = format!("--only oversold --faults FAULT {trials}");
    add("Units oversold", oversold(all), &command);
    for one in all {
        for what in &one.left_out {
            let _ = writeln!(text, "LEFT OUT under {}: {what}", one.lock);
        }
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
    let head = ["lock", "order", "wake-up", "token", "end", "loss", "needs"];
    let row = |one: &Figures| {
        let [order, wake, token, ends, loss] = in_words(one.promises).map(str::to_owned);
        [one.lock.to_owned(), order, wake, token, ends, loss, needs(one.lock, one.promises)]
    };
    rows(head, all.iter().map(row))
}

/// What a lock depends on.
fn needs(lock: &str, Promises { token, wake, ends, .. }: Promises) -> String {
    let mut all = Vec::new();
    if lock.starts_with("postgres") {
        // the tokens are as durable as this
        all.push("fsync, and a synchronous standby");
    }
    if ends == Ends::Lease(Clock::Wall) {
        all.push("the server's wall clock");
    }
    match token {
        TokenLife::Volatile => all.push("writes that survive a failover"),
        TokenLife::None => all.push("another fence"),
        TokenLife::Durable => {}
    }
    if wake == Wake::ServerWait {
        all.push("a connection for each waiter");
    }
    if ends == Ends::Process {
        all.push("one machine");
    }
    if all.is_empty() { "-".to_owned() } else { all.join(", ") }
}

fn handovers(all: &[Figures]) -> String {
    let head = ["lock", "round trip ms", "handovers", "p50 ms", "p99 ms"];
    let cells = |one: &Figures| {
        let lock = one.lock;
        let row = move |at: &super::Handovers| {
            [
                lock.to_owned(),
                at.round_trip_ms.to_string(),
                at.turns.to_string(),
                figure(at.p50_ms),
                or_dash(at.p99_ms),
            ]
        };
        one.handovers.iter().map(row).collect::<Vec<_>>()
    };
    rows(head, all.iter().flat_map(cells))
}

fn fairness(all: &[Figures]) -> String {
    let head = [
        "lock",
        "overtaken",
        "Jain's index",
        "wait p50 ms",
        "p99 ms",
        "longest ms",
        "gave up",
        "requests for a grant",
        "requests/s, all waiting",
    ];
    let measured = all.iter().filter(|one| one.overtaken.is_some() || one.contest.is_some());
    rows(
        head,
        measured.map(|one| {
            let contest = one.contest.as_ref();
            let of = |value: fn(&super::Contest) -> f64| or_dash(contest.map(value));
            let waiters = one.waiters;
            [
                one.lock.to_owned(),
                one.overtaken.map_or("-".to_owned(), |count| format!("{count} of {waiters}")),
                of(|contest| contest.jain),
                of(|contest| contest.wait_p50_ms),
                of(|contest| contest.wait_p99_ms),
                of(|contest| contest.longest_wait_ms),
                contest.map_or("-".to_owned(), |contest| contest.gave_up.to_string()),
                or_dash(contest.and_then(|contest| contest.requests_per_grant)),
                or_dash(one.idle_requests),
            ]
        }),
    )
}

fn speed(all: &[Figures]) -> String {
    let head = [
        "lock",
        "orders/s, combined",
        "orders/s, a lock for each",
        "handovers/s",
        "500 buyers, 300 units: ms",
    ];
    let measured = all.iter().filter(|one| one.speed.is_some() || one.burst_ms.is_some());
    rows(
        head,
        measured.map(|one| {
            [
                one.lock.to_owned(),
                or_dash(one.speed.map(|speed| speed.combined)),
                or_dash(one.speed.map(|speed| speed.single)),
                or_dash(one.speed.map(|speed| speed.handovers)),
                or_dash(one.burst_ms),
            ]
        }),
    )
}

/// What stops a sale under the lock's own fence.
const RESTARTED: &str = "numbers restart: an operator must decide";

fn takeovers(all: &[Figures]) -> String {
    let head = [
        "lock",
        "fault",
        "trials",
        "hit the holder",
        "p50 s of those",
        "longest s",
        "never",
        RESTARTED,
    ];
    let served = |takeover: &Takeover| !takeover.is_kept();
    rows(
        head,
        of_each(all, served, |one, takeover| {
            let seconds = |millis: Option<f64>| {
                millis.map_or("never".to_owned(), |millis| figure(millis / 1e3))
            };
            [
                one.lock.to_owned(),
                takeover.fault.name(),
                takeover.trials.to_string(),
                if takeover.hits_process() { takeover.hits.to_string() } else { "-".to_owned() },
                if takeover.hits == 0 { "-".to_owned() } else { seconds(takeover.p50_ms) },
                seconds(takeover.longest_ms),
                takeover.never.to_string(),
                of_tokens(one, takeover, takeover.other_cluster),
            ]
        }),
    )
}

fn overlaps(all: &[Figures]) -> String {
    let head = [
        "lock",
        "fault",
        "holder lost the lock",
        "two holders",
        "at 95 %",
        "longest ms",
        "same number given twice",
        RESTARTED,
    ];
    // a process that was killed holds nothing
    let lives = |takeover: &Takeover| takeover.fault != Fault::Kill;
    rows(
        head,
        of_each(all, lives, |one, takeover| {
            let (trials, hits) = (takeover.trials, takeover.hits);
            let of_hits = if takeover.hits_process() { " that hit the holder" } else { "" };
            let lost = format!("{} of {trials}", trials - takeover.never);
            [
                one.lock.to_owned(),
                takeover.fault.name(),
                if takeover.is_kept() { lost } else { "-".to_owned() },
                format!("{} of {hits}{of_hits}", takeover.overlaps),
                bound(takeover.overlaps, hits),
                figure(takeover.longest_overlap_ms),
                of_tokens(one, takeover, takeover.repeated_tokens),
                of_tokens(one, takeover, takeover.other_cluster),
            ]
        }),
    )
}

/// In how many trials something happened to the numbers of grants, for a lock that has them.
fn of_tokens(one: &Figures, takeover: &Takeover, count: usize) -> String {
    match one.promises.token {
        TokenLife::None => "-".to_owned(),
        _ => format!("{count} of {}", takeover.trials),
    }
}

fn of_each<const N: usize>(
    all: &[Figures],
    is_shown: impl Fn(&Takeover) -> bool,
    row: impl Fn(&Figures, &Takeover) -> [String; N],
) -> Vec<[String; N]> {
    let pairs = all.iter().flat_map(|one| one.takeovers.iter().map(move |it| (one, it)));
    pairs.filter(|(_, it)| is_shown(it)).map(|(one, it)| row(one, it)).collect()
}

fn oversold(all: &[Figures]) -> String {
    let head = ["lock", "fault", "fence", "oversold in", "at 95 %", "most units", "slowest sale s"];
    let row = |one: &Figures, it: &Oversold| {
        let (oversold, trials) = (it.broken as usize, it.trials as usize);
        [
            one.lock.to_owned(),
            it.fault.name(),
            it.fence.to_owned(),
            format!("{oversold} of {trials}"),
            bound(oversold, trials),
            it.most_units.to_string(),
            figure(it.slowest_ms / 1e3),
        ]
    };
    rows(head, all.iter().flat_map(|one| one.oversold.iter().map(move |it| row(one, it))))
}

/// What trials prove in which nothing happened: with none of n, the rate is at most 3/n (the rule of three).
fn bound(seen: usize, trials: usize) -> String {
    if seen > 0 || trials == 0 {
        return "-".to_owned();
    }
    format!("<= {}", figure((3.0 / float(trials)).min(1.0)))
}
