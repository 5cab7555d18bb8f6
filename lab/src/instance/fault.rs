//! Faults at points of a tenure.
//!
//! A signal from outside rarely hits a process between two given steps, so an instance can stop or kill itself at such a point.
//! With `lab serve --fault-at before-write:stop:/tmp/now` it stops (SIGSTOP) when it is about to write to the store and this file
//! exists. The points are in the laboratory's own writer and lock backend; the service has none.
//!
//! [`Point`] names the points, and [`Rule`] is the syntax of the flag. Each fault is logged as a warning before it happens.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use parking_lot::Mutex;
use testkit::signals::{kill_now, stop};
use tokio::runtime::Handle;
use tokio::sync::RwLock;
use tokio::time::Instant;

/// More time than a connection takes to send a request.
const SENDING: Duration = Duration::from_millis(2);

/// The error for a text that is not a rule.
const FORM: &str = "a fault is written POINT:ACTION:FILE, such as before-write:stop:/tmp/now; POINT is \
    after-grant, before-write, after-send, between-writes, after-answer or before-release; ACTION is stop, \
    kill, pause=TIME or starve=TIME; it happens at the next pass once FILE exists, which is then removed";

/// A point of a tenure, in the order in which a tenure reaches them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Point {
    /// The lock was granted, and its first batch is about to run: nothing is written under this grant yet.
    AfterGrant,
    /// The batch is about to be written: with the fence, the script is about to be sent; without it, this is between GET and SET.
    BeforeWrite,
    /// The batch was sent, and its answer is not read yet.
    AfterSend,
    /// Between the stock and the ledger. Reached only without `atomic-ledger`, because then two commands write them.
    BetweenWrites,
    /// The store has answered, and no buyer has an answer.
    AfterAnswer,
    /// The buyers were answered, and the claim is about to be released or handed over.
    BeforeRelease,
}

/// The effect of a fault at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The whole process stops (SIGSTOP) until SIGCONT.
    Stop,
    /// The process is killed (SIGKILL).
    Kill,
    /// The task at the point waits, and so does each other task that reaches a point meanwhile. The rest of the process goes on.
    Pause(Duration),
    /// Every worker of the runtime is busy for this time.
    Starve(Duration),
}

/// A fault, `POINT:ACTION:FILE`.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The point.
    pub point: Point,
    /// The action.
    pub action: Action,
    /// The fault happens the next time the point is passed after this file was created. It removes the file first, to show that
    /// the point was reached. The file can then be created again.
    pub file: PathBuf,
}

impl Rule {
    /// Whether the fault is due at this pass.
    fn is_due(&self) -> bool {
        // only one of several tasks can remove the file
        std::fs::remove_file(&self.file).is_ok()
    }
}

impl FromStr for Rule {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let mut parts = text.splitn(3, ':');
        let mut part = || parts.next().filter(|part| !part.is_empty()).ok_or(FORM);
        let point = Point::from_str(part()?, false).map_err(|_| FORM)?;
        let action = action(part()?).ok_or(FORM)?;
        Ok(Self { point, action, file: part()?.into() })
    }
}

fn action(text: &str) -> Option<Action> {
    let (name, time) = text.split_once('=').map_or((text, None), |(name, time)| (name, Some(time)));
    let time = time.map(humantime::parse_duration).transpose().ok()?;
    match (name, time) {
        ("stop", None) => Some(Action::Stop),
        ("kill", None) => Some(Action::Kill),
        ("pause", Some(time)) => Some(Action::Pause(time)),
        ("starve", Some(time)) => Some(Action::Starve(time)),
        _ => None,
    }
}

/// The faults with which this process was started.
static RULES: Mutex<Vec<Rule>> = Mutex::new(Vec::new());

/// A task that [pauses](Action::Pause) holds it.
static PAUSED: RwLock<()> = RwLock::const_new(());

pub(super) fn follow(rules: Vec<Rule>) {
    RULES.lock().extend(rules);
}

/// The actions that are due at a pass of `point`.
fn due(point: Point) -> Vec<Action> {
    let rules = RULES.lock().clone();
    let due = rules.into_iter().filter(|rule| rule.point == point && rule.is_due());
    let due: Vec<_> = due.map(|rule| rule.action).collect();
    if !due.is_empty() {
        tracing::warn!(?point, ?due, "a fault that was asked for");
    }
    due
}

/// Carries out the faults that are due at `point`, if any.
pub(super) async fn at(point: Point) {
    for action in due(point) {
        act(action).await;
    }
    drop(PAUSED.read().await);
}

/// Awaits `request`, with [`Point::AfterSend`] between sending it and reading its answer.
pub(super) async fn once_sent<F: Future>(request: F) -> F::Output {
    if RULES.lock().iter().all(|rule| rule.point != Point::AfterSend) {
        let output = request.await;
        drop(PAUSED.read().await);
        return output;
    }
    let mut request = std::pin::pin!(request);
    // the first poll hands the request to the connection, whose task writes it
    let polled = futures_util::poll!(request.as_mut());
    tokio::time::sleep(SENDING).await;
    at(Point::AfterSend).await;
    match polled {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => request.await,
    }
}

async fn act(action: Action) {
    match action {
        Action::Stop => stop(),
        Action::Kill => kill_now(),
        Action::Pause(time) => {
            let _paused = PAUSED.write().await;
            tokio::time::sleep(time).await;
        }
        Action::Starve(time) => starve(time),
    }
}

/// Makes a task spin on each worker of the runtime. They begin when workers take them, and end together.
fn starve(time: Duration) {
    let until = Instant::now() + time;
    for _ in 0..Handle::current().metrics().num_workers() {
        tokio::spawn(async move {
            while Instant::now() < until {
                std::hint::spin_loop();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the answer to a wrong rule names everything that is allowed.
    #[test]
    fn each_point_can_be_named_and_what_is_no_rule_gets_a_sentence() {
        for point in Point::value_variants() {
            let name = point.to_possible_value().expect("no variant is skipped");
            let rule: Rule = format!("{}:stop:now", name.get_name()).parse().expect("a rule");
            assert_eq!(rule.point, *point);
            assert!(FORM.contains(name.get_name()), "{point:?}");
        }
        for rest in ["", "stop", "stop:", "halt:now", "stop=1s:now", "pause:now", "pause=x:now"] {
            let text = format!("before-write:{rest}");
            assert_eq!(text.parse::<Rule>().err(), Some(FORM), "{text}");
        }
        assert_eq!("nowhere:stop:now".parse::<Rule>().err(), Some(FORM));
    }
}
