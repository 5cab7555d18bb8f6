//! What several areas need.

pub(crate) mod copies;
pub(crate) mod etcd;
pub(crate) mod ports;
pub(crate) mod store;

use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How long a condition may take to come true: generous, for a machine with much to do.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Asks every 20 ms until the answer is yes; panics with `what` after [`DEADLINE`].
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition().await {
        assert!(Instant::now() < deadline, "not within {DEADLINE:?}: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Waits for `future`; panics with `what` after [`DEADLINE`].
pub(crate) async fn within<F: Future>(what: &str, future: F) -> F::Output {
    let ended = tokio::time::timeout(DEADLINE, future).await;
    ended.unwrap_or_else(|_| panic!("not within {DEADLINE:?}: {what}"))
}

/// Whether a process of this id exists, one that has ended but was not waited for included.
pub(crate) fn process_exists(pid: u32) -> bool {
    let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::test_kill_process(pid).is_ok()
}

/// The process ids and command lines of all processes that have `text` in one of their arguments,
/// or, where the system tells, in their environment.
pub(crate) fn processes(text: &str) -> Vec<(i32, String)> {
    let own = i32::try_from(std::process::id()).unwrap();
    let mut all = if Path::new("/proc/self/cmdline").exists() { from_proc() } else { from_ps() };
    all.retain(|(pid, words)| *pid != own && words.contains(text));
    all
}

/// A minimal Linux has no `ps`.
fn from_proc() -> Vec<(i32, String)> {
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let words = |pid: i32| {
        // a process may end meanwhile
        let read = |file| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let words = [read("cmdline"), read("environ")].concat();
        (pid, String::from_utf8_lossy(&words).replace('\0', " "))
    };
    pids.map(words).collect()
}

fn from_ps() -> Vec<(i32, String)> {
    // `e` shows the environment behind the arguments
    let output =
        std::process::Command::new("ps").args(["axeww", "-o", "pid=,command="]).output().unwrap();
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let split = |line: &str| {
        let (pid, command) = line.trim_start().split_once(' ')?;
        Some((pid.parse().ok()?, command.to_owned()))
    };
    lines.lines().filter_map(split).collect()
}
