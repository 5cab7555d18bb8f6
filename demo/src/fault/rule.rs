//! How a fault is asked for: at which point, what, and when.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;

/// The error for anything that is not a rule.
const FORM: &str = "a fault is written POINT:ACTION:WHEN, such as before-write:stop:7; POINT is \
    after-grant, before-write, after-send, between-writes, after-answer or before-release; ACTION is stop, \
    stop=TIME, kill, pause=TIME or starve=TIME; WHEN is a number (that pass alone) or file=PATH (the next pass once that \
    file exists, which is then removed)";

/// A point of a tenure, in the order in which it reaches them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Point {
    /// The lock was granted, and its first batch is about to run: nothing is written under it yet.
    AfterGrant,
    /// The batch is about to be written: with the fence, the script is about to be sent; without it, this
    /// is between GET and SET.
    BeforeWrite,
    /// The batch was sent, and its answer was not read.
    AfterSend,
    /// Between the stock and the ledger. Reached only without `atomic-ledger`, where these are two commands.
    BetweenWrites,
    /// The store has answered, and no buyer has.
    AfterAnswer,
    /// The buyers were answered, and the claim is about to be released or handed over.
    BeforeRelease,
}

/// What happens at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The whole process stops (SIGSTOP): for this time, rounded up to whole seconds, or until SIGCONT.
    Stop(Option<Duration>),
    /// The process is killed (SIGKILL).
    Kill,
    /// Only the task at the point waits; the rest of the process goes on.
    Pause(Duration),
    /// Every worker of the runtime is busy for this time.
    Starve(Duration),
}

/// At which passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum When {
    /// At this one, counted from 1 since the start of the process.
    Pass(u64),
    /// At the next one after this file was created. It is removed first, which shows that the point was
    /// reached, and can be created again.
    File(PathBuf),
    /// At the next one, and at no later one.
    Next,
}

/// A fault, `POINT:ACTION:WHEN`.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Where it happens.
    pub point: Point,
    /// What happens.
    pub action: Action,
    /// At which passes.
    pub when: When,
    /// How often the point was passed since the start of the process.
    passes: u64,
}

impl Rule {
    pub(super) fn new(point: Point, action: Action, when: When) -> Self {
        Self { point, action, when, passes: 0 }
    }

    /// Counts a pass. Whether the fault is due.
    pub(super) fn pass(&mut self) -> bool {
        self.passes += 1;
        match &self.when {
            When::Pass(due) => self.passes == *due,
            // of several tasks, one removes it
            When::File(path) => std::fs::remove_file(path).is_ok(),
            When::Next => true,
        }
    }
}

impl FromStr for Rule {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let mut parts = text.splitn(3, ':');
        let mut part = || parts.next().ok_or(FORM);
        let point = Point::from_str(part()?, false).map_err(|_| FORM)?;
        let action = action(part()?).ok_or(FORM)?;
        let when = when(part()?).ok_or(FORM)?;
        Ok(Self::new(point, action, when))
    }
}

fn action(text: &str) -> Option<Action> {
    let (name, time) = text.split_once('=').map_or((text, None), |(name, time)| (name, Some(time)));
    let time = time.map(humantime::parse_duration).transpose().ok()?;
    match (name, time) {
        ("stop", time) => Some(Action::Stop(time)),
        ("kill", None) => Some(Action::Kill),
        ("pause", Some(time)) => Some(Action::Pause(time)),
        ("starve", Some(time)) => Some(Action::Starve(time)),
        _ => None,
    }
}

fn when(text: &str) -> Option<When> {
    if let Some(path) = text.strip_prefix("file=") {
        return (!path.is_empty()).then(|| When::File(path.into()));
    }
    text.parse().ok().filter(|pass| *pass > 0).map(When::Pass)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a number is one pass, and a file is used up by one pass and can be made again.
    #[test]
    fn a_rule_is_due_when_it_says() {
        let mut rule: Rule = "before-write:stop:3".parse().expect("a rule");
        let due: Vec<_> = (1..=9).filter(|_| rule.pass()).collect();
        assert_eq!(due, [3]);
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("now: or never");
        let rule = format!("after-send:pause=5ms:file={}", path.display());
        let mut rule: Rule = rule.parse().expect("a rule");
        assert_eq!(rule.action, Action::Pause(Duration::from_millis(5)));
        assert!(!rule.pass());
        for _ in 0..2 {
            std::fs::write(&path, "").expect("it can be made");
            assert!(rule.pass());
            assert!(!path.exists() && !rule.pass());
        }
    }

    #[test]
    fn each_point_can_be_named_and_what_is_no_rule_gets_a_sentence() {
        for point in Point::value_variants() {
            let name = point.to_possible_value().expect("no variant is skipped");
            let rule: Rule = format!("{}:stop:1", name.get_name()).parse().expect("a rule");
            assert_eq!(rule.point, *point);
            assert!(FORM.contains(name.get_name()), "{point:?}");
        }
        for text in ["", "before-write", "before-write:stop", "nowhere:stop:1"] {
            assert_eq!(text.parse::<Rule>().err(), Some(FORM), "{text}");
        }
        for rest in ["halt:1", "stop:0", "stop:file=", "stop=x:1", "pause:1", "kill=1s:1"] {
            let text = format!("before-write:{rest}");
            assert_eq!(text.parse::<Rule>().err(), Some(FORM), "{text}");
        }
    }
}
