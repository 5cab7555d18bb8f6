//! Faults at points of a tenure.
//!
//! A signal from outside rarely hits a process between two given steps. So an instance can stop or kill
//! itself there: `demo serve --fault-at before-write:stop:7` stops it (SIGSTOP) when it is about to write
//! to the store for the seventh time. The points are in the lab's own writer and lock backend; the
//! service has none.
//!
//! [`Point`] names the points, and [`Rule`] is the syntax of the flag. Each fault is logged as a warning
//! before it happens.

mod rule;
#[cfg(feature = "chaos")]
pub mod starvation;

use std::process::Stdio;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Signal, getpid, kill_process};

pub use rule::{Action, Point, Rule, When};

/// Longer than the kernel takes to stop all threads of this process.
const STOPPING: Duration = Duration::from_millis(50);

/// How long a request that was handed to its connection takes to be on its way.
const SENDING: Duration = Duration::from_millis(2);

/// The rules of `--fault-at`, for this whole process.
static RULES: OnceLock<Vec<Rule>> = OnceLock::new();

/// Follows `rules` in this process from now on. Only the first call counts.
pub fn follow(rules: Vec<Rule>) {
    if !rules.is_empty() {
        drop(RULES.set(rules));
    }
}

/// The fault that the page's controls asked for, and whether there is one.
static ASKED: Mutex<Option<(Point, Action)>> = Mutex::new(None);
static IS_ASKED: AtomicBool = AtomicBool::new(false);

/// Carries out the action the next time that this process reaches the point; `None` cancels it.
pub fn ask_for(fault: Option<(Point, Action)>) {
    let mut asked = ASKED.lock();
    *asked = fault;
    IS_ASKED.store(fault.is_some(), Ordering::Relaxed);
}

/// Takes the fault that was asked for, if it is for `point`.
fn take_asked(point: Point) -> Option<Action> {
    let mut asked = ASKED.lock();
    let (_, action) = asked.take_if(|(at, _)| *at == point)?;
    IS_ASKED.store(false, Ordering::Relaxed);
    Some(action)
}

/// Whether a fault is asked for at `point`.
fn is_armed(point: Point) -> bool {
    IS_ASKED.load(Ordering::Relaxed)
        || RULES.get().is_some_and(|rules| rules.iter().any(|rule| rule.point == point))
}

/// Carries out the faults that are due at `point`. Costs one load from memory if there is none.
#[inline]
pub async fn at(point: Point) {
    if is_armed(point) {
        carry_out(point).await;
    }
}

/// Awaits `request`, with [`Point::AfterSend`] between sending it and reading its answer.
pub async fn once_sent<F: Future>(request: F) -> F::Output {
    if !is_armed(Point::AfterSend) {
        return request.await;
    }
    let mut request = std::pin::pin!(request);
    // the first poll hands it to the connection, whose task writes it
    let polled = futures_util::poll!(request.as_mut());
    tokio::time::sleep(SENDING).await;
    carry_out(Point::AfterSend).await;
    match polled {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => request.await,
    }
}

async fn carry_out(point: Point) {
    for rule in RULES.get().into_iter().flatten().filter(|rule| rule.point == point) {
        let Some(pass) = rule.pass() else { continue };
        tracing::warn!(%point, pass, action = %rule.action, "a fault that was asked for");
        act(rule.action).await;
    }
    if let Some(action) = take_asked(point) {
        tracing::warn!(%point, %action, "a fault that was asked for");
        act(action).await;
    }
}

#[allow(clippy::disallowed_methods, reason = "nothing may run until the signal takes effect")]
async fn act(action: Action) {
    match action {
        Action::Stop => stop(),
        Action::StopFor(time) => match wake_after(time) {
            Ok(()) => stop(),
            // nothing would wake it
            Err(error) => tracing::error!(%error, "not stopped: the alarm cannot be set"),
        },
        Action::Kill => {
            signal_self(Signal::KILL);
            std::thread::sleep(Duration::MAX);
        }
        Action::Pause(time) => tokio::time::sleep(time).await,
    }
}

#[allow(clippy::disallowed_methods, reason = "nothing may run until the signal takes effect")]
fn stop() {
    signal_self(Signal::STOP);
    // the signal may have been given to another thread, so this one must not go on yet
    std::thread::sleep(STOPPING);
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
