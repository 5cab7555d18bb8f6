//! The processes of this machine.

use std::path::Path;

/// The process ids and command lines of all processes that have `text` in one of their arguments,
/// or, if readable, in their environment.
pub fn processes(text: &str) -> Vec<(i32, String)> {
    let own = i32::try_from(std::process::id()).unwrap();
    let mut all = if Path::new("/proc/self/cmdline").exists() { from_proc() } else { from_ps() };
    all.retain(|(pid, words)| *pid != own && words.contains(text));
    all
}

/// Reads `/proc`, because a minimal Linux has no `ps`.
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
