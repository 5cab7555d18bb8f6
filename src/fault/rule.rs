//! How a fault is asked for.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::ValueEnum;

use super::Point;

/// What is said to a rule that is none.
const FORM: &str = "a fault is written POINT:ACTION:WHEN, such as before-write:stop:7; POINT is \
    after-grant, before-write, after-send, between-writes, after-answer or before-release; ACTION is stop, \
    stop=TIME, kill or pause=TIME; WHEN is a number (that pass alone), every=N, or file=PATH (the next pass once that \
    file exists, which is then removed)";

/// The longest pause that can be asked for.
const LONGEST_PAUSE: Duration = Duration::from_mins(10);

/// What happens at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The whole process stops (SIGSTOP) until it is told to go on (SIGCONT).
    Stop,
    /// The whole process stops, and goes on after this time, in whole seconds.
    StopFor(Duration),
    /// The process is killed (SIGKILL).
    Kill,
    /// Only the one who passes waits there; the rest of the process goes on.
    Pause(Duration),
}

/// On which passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum When {
    /// On this one alone, counted from 1 and from the start of the process.
    Pass(u64),
    /// On each that is a multiple of this.
    Every(u64),
    /// On the next one after this file was made, which is removed before anything happens: that
    /// it is gone tells that the point was reached. It can be made any number of times.
    File(PathBuf),
}

/// One fault that is asked for: `POINT:ACTION:WHEN`. Clones share their count of passes.
#[derive(Clone, Debug)]
pub struct Rule {
    point: Point,
    action: Action,
    when: When,
    passes: Arc<AtomicU64>,
}

impl Rule {
    /// Where.
    pub fn point(&self) -> Point {
        self.point
    }

    /// What.
    pub fn action(&self) -> Action {
        self.action
    }

    /// On which passes.
    pub fn when(&self) -> &When {
        &self.when
    }

    /// Counts a pass, and returns its number if the fault is due.
    pub(super) fn pass(&self) -> Option<u64> {
        let pass = self.passes.fetch_add(1, Ordering::Relaxed) + 1;
        let is_due = match &self.when {
            When::Pass(due) => pass == *due,
            When::Every(count) => pass.is_multiple_of(*count),
            // of several that pass at once, one removes it
            When::File(path) => std::fs::remove_file(path).is_ok(),
        };
        is_due.then_some(pass)
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
        Ok(Self { point, action, when, passes: Arc::default() })
    }
}

fn action(text: &str) -> Option<Action> {
    match text {
        "stop" => Some(Action::Stop),
        "kill" => Some(Action::Kill),
        _ => {
            let (action, time) = text.split_once('=')?;
            let time = humantime::parse_duration(time).ok().filter(|t| *t <= LONGEST_PAUSE)?;
            match action {
                "pause" => Some(Action::Pause(time)),
                "stop" => Some(Action::StopFor(time)),
                _ => None,
            }
        }
    }
}

fn when(text: &str) -> Option<When> {
    let number = |text: &str| text.parse().ok().filter(|number| *number > 0);
    if let Some(path) = text.strip_prefix("file=") {
        return (!path.is_empty()).then(|| When::File(path.into()));
    }
    match text.strip_prefix("every=") {
        Some(count) => number(count).map(When::Every),
        None => number(text).map(When::Pass),
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stop => f.write_str("stop"),
            Self::StopFor(time) => write!(f, "stop={}", humantime::format_duration(*time)),
            Self::Kill => f.write_str("kill"),
            Self::Pause(time) => write!(f, "pause={}", humantime::format_duration(*time)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(rule: &str, passes: usize) -> Vec<u64> {
        let rule: Rule = rule.parse().expect("a rule");
        (0..passes).filter_map(|_| rule.pass()).collect()
    }

    #[test]
    fn a_rule_is_due_when_it_says() {
        assert_eq!(due("before-write:stop:3", 9), [3]);
        assert_eq!(due("after-grant:kill:every=4", 9), [4, 8]);
    }

    /// Goal: a file is used up by one pass, and can be made again.
    #[test]
    fn a_file_asks_for_one_pass() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("now: or never");
        let rule = format!("after-send:pause=5ms:file={}", path.display());
        let rule: Rule = rule.parse().expect("a rule");
        assert_eq!(rule.action(), Action::Pause(Duration::from_millis(5)));
        assert_eq!(rule.pass(), None);
        for pass in [2, 4] {
            std::fs::write(&path, "").expect("it can be made");
            assert_eq!(rule.pass(), Some(pass));
            assert!(!path.exists());
            assert_eq!(rule.pass(), None);
        }
    }

    #[test]
    fn each_point_can_be_named() {
        for point in Point::value_variants() {
            let rule: Rule = format!("{point}:stop:1").parse().expect("a rule");
            assert_eq!(rule.point(), *point);
            assert!(FORM.contains(point.name()), "{point}");
        }
    }

    #[test]
    fn what_is_no_rule_gets_a_sentence() {
        for text in [
            "",
            "before-write",
            "before-write:stop",
            "nowhere:stop:1",
            "before-write:halt:1",
            "before-write:stop:0",
            "before-write:stop:every=0",
            "before-write:stop:file=",
            "before-write:stop=x:1",
            "before-write:pause:1",
            "before-write:pause=1h:1",
        ] {
            assert_eq!(text.parse::<Rule>().err(), Some(FORM), "{text}");
        }
    }
}
