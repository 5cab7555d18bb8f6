//! A runtime that is kept busy.
#![allow(
    clippy::disallowed_methods,
    reason = "a thread of its own, and a busy loop by the real clock"
)]

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

/// How often to look for the file.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What the file asks for if it holds no time.
const DEFAULT_TIME: Duration = Duration::from_secs(5);

/// Longer than any test needs.
const LONGEST_TIME: Duration = Duration::from_mins(1);

/// Waits, on a thread of its own, until there is a file at `path`, and then keeps each worker of
/// the current runtime busy for as long as it says (`3s`); again whenever the file is made anew. The file
/// is removed when it begins.
///
/// # Panics
/// Outside of a Tokio runtime, and if no thread can be started.
pub fn on_file(path: PathBuf) {
    let runtime = Handle::current();
    let watch = move || {
        loop {
            thread::sleep(LOOK_EVERY);
            if let Some(time) = asked_for(&path) {
                starve(&runtime, time);
            }
        }
    };
    let thread = thread::Builder::new().name("starvation".into());
    thread.spawn(watch).expect("a thread can be started");
}

/// The time that the file asks for, if it is there.
fn asked_for(path: &Path) -> Option<Duration> {
    let text = std::fs::read_to_string(path).ok()?;
    std::fs::remove_file(path).ok()?;
    let time = humantime::parse_duration(text.trim()).unwrap_or(DEFAULT_TIME);
    Some(time.min(LONGEST_TIME))
}

/// Has a task spin on each worker. They begin one after the other as workers come by, and end together.
fn starve(runtime: &Handle, time: Duration) {
    let workers = runtime.metrics().num_workers();
    tracing::warn!(workers, ?time, "starving the runtime, as was asked for");
    let until = Instant::now() + time;
    for _ in 0..workers {
        runtime.spawn(async move {
            while Instant::now() < until {
                std::hint::spin_loop();
            }
        });
    }
    // the next file is for another time
    thread::sleep(time);
}
