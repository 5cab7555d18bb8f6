//! Faults at points of a tenure.
//!
//! A signal from outside rarely hits a process between two given steps. So an instance can stop or kill
//! itself there: `demo serve --fault-at before-write:stop:7` stops it (SIGSTOP) when it is about to write
//! to the store for the seventh time. The points are in the demo's own writer and lock backend; the
//! service has none.
//!
//! [`Point`] names the points, and [`Rule`] is the syntax of the flag. Each fault is logged as a warning
//! before it happens.

mod rule;

use std::process::Stdio;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Signal, getpid, kill_process};
use tokio::runtime::Handle;
use tokio::time::Instant;

pub use rule::{Action, Point, Rule, When};

/// Longer than the kernel takes to stop all threads of this process.
const STOPPING: Duration = Duration::from_millis(50);

/// How long a connection takes to send a request that it was given.
const SENDING: Duration = Duration::from_millis(2);

/// The faults that this process was asked for.
static RULES: Mutex<Vec<Rule>> = Mutex::new(Vec::new());

/// Follows these rules as well, in this process from now on.
pub fn follow(rules: Vec<Rule>) {
    RULES.lock().extend(rules);
}

/// Sets the only action that is carried out the next time that this process reaches its point; `None`: there is none.
pub fn ask_for(fault: Option<(Point, Action)>) {
    let mut rules = RULES.lock();
    rules.retain(|rule| rule.when != When::Next);
    rules.extend(fault.map(|(point, action)| Rule::new(point, action, When::Next)));
}

/// Counts a pass of `point`. Returns what is due there now.
fn due(point: Point) -> Vec<Action> {
    let mut due = Vec::new();
    RULES.lock().retain_mut(|rule| {
        let is_due = rule.point == point && rule.pass();
        if is_due {
            tracing::warn!(?point, action = ?rule.action, "a fault that was asked for");
            due.push(rule.action);
        }
        !is_due || rule.when != When::Next
    });
    due
}

/// Carries out the faults that are due at `point`. Whether there were any.
pub async fn at(point: Point) -> bool {
    let due = due(point);
    for action in &due {
        act(*action).await;
    }
    !due.is_empty()
}

/// Awaits `request`, with [`Point::AfterSend`] between sending it and reading its answer.
pub async fn once_sent<F: Future>(request: F) -> F::Output {
    if RULES.lock().iter().all(|rule| rule.point != Point::AfterSend) {
        return request.await;
    }
    let mut request = std::pin::pin!(request);
    // the first poll hands it to the connection, whose task writes it
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
        Action::Stop(time) => match time.map_or(Ok(()), wake_after) {
            Ok(()) => stop(),
            // nothing would wake it
            Err(error) => tracing::error!(%error, "not stopped: the alarm cannot be set"),
        },
        Action::Kill => kill_now(),
        Action::Pause(time) => tokio::time::sleep(time).await,
        Action::Starve(time) => starve(time),
    }
}

#[allow(clippy::disallowed_methods, reason = "nothing may run until the signal takes effect")]
fn stop() {
    signal_self(Signal::STOP);
    // the signal may have been given to another thread, so this one must not go on yet
    std::thread::sleep(STOPPING);
}

/// Has a task spin on each worker of the runtime. They begin one after the other as workers come by, and end together.
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

/// Starts a process that sends SIGCONT to this one after `time`, in whole seconds.
fn wake_after(time: Duration) -> std::io::Result<()> {
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    let script = r#"sleep "$1"; kill -CONT "$2""#;
    let mut alarm = tokio::process::Command::new("/bin/sh");
    alarm
        .args(["-c", script, "lab-alarm", &seconds.to_string()])
        .arg(std::process::id().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Ctrl-C in the terminal must not end it
        .process_group(0);
    // tokio reaps it
    alarm.spawn().map(drop)
}

/// Ends this process with SIGKILL.
pub fn kill_now() -> ! {
    signal_self(Signal::KILL);
    std::process::abort()
}

fn signal_self(signal: Signal) {
    kill_process(getpid(), signal).expect("a process may signal itself");
}
