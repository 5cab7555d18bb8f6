//! Faults at points of the service's own choosing.
//!
//! A signal from outside rarely hits a process between two given steps. So an instance can be told to
//! stop or kill itself when it gets there: `flash-sale serve --demo --fault-at before-write:stop:7` stops
//! it (SIGSTOP) the seventh time that it is about to write to the store. Only a service that was started
//! with `--demo` takes that flag.
//!
//! [`Point`] names the points and [`Rule`] says how a rule is written. Each fault that is carried out is
//! a warning in the log first.

mod point;
mod rule;
#[cfg(feature = "chaos")]
pub mod starvation;

use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};

pub use point::Point;
pub use rule::{Action, Rule, When};

/// Longer than the kernel takes to stop all threads of this process.
const STOPPING: Duration = Duration::from_millis(50);

/// How long a request that was handed to its connection takes to be on its way.
const SENDING: Duration = Duration::from_millis(2);

/// What was asked for at the start, for this whole process.
static RULES: OnceLock<Vec<Rule>> = OnceLock::new();

/// Has this process follow `rules` from now on. Only the first call counts.
pub fn follow(rules: Vec<Rule>) {
    if !rules.is_empty() {
        // a second call changes nothing
        drop(RULES.set(rules));
    }
}

/// Whether a fault is asked for at `point`.
fn is_armed(point: Point) -> bool {
    RULES.get().is_some_and(|rules| rules.iter().any(|rule| rule.point() == point))
}

/// Carries out the faults that are due at `point`. Without any, it is one load from memory.
#[inline]
pub(crate) async fn at(point: Point) {
    if is_armed(point) {
        carry_out(point).await;
    }
}

/// The output of `request`, with [`Point::AfterSend`] between sending it and looking at its answer.
pub(crate) async fn once_sent<F: Future>(request: F) -> F::Output {
    if !is_armed(Point::AfterSend) {
        return request.await;
    }
    let mut request = std::pin::pin!(request);
    // the first poll hands it over to the connection, whose task writes it meanwhile
    let polled = futures_util::poll!(request.as_mut());
    tokio::time::sleep(SENDING).await;
    carry_out(Point::AfterSend).await;
    match polled {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => request.await,
    }
}

async fn carry_out(point: Point) {
    for rule in RULES.get().into_iter().flatten().filter(|rule| rule.point() == point) {
        let Some(pass) = rule.pass() else { continue };
        tracing::warn!(%point, pass, action = %rule.action(), "a fault that was asked for");
        match rule.action() {
            Action::Stop => {
                signal_self(Signal::STOP);
                // the signal may have been given to another thread, so this one must not go on yet
                std::thread::sleep(STOPPING);
            }
            Action::Kill => {
                signal_self(Signal::KILL);
                std::thread::sleep(Duration::MAX);
            }
            Action::Pause(time) => tokio::time::sleep(time).await,
        }
    }
}

fn signal_self(signal: Signal) {
    kill_process(getpid(), signal).expect("a process may signal itself");
}
