//! The laboratory, as its users run it, against real servers.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::large_futures, reason = "the stack of a test has room for them")]

mod arena;
mod articles;
mod bench;
#[cfg(fenced_lock_chaos)]
mod chaos;
mod controls;
#[cfg(fenced_lock_chaos)]
mod simulated_store;
mod store_fence;
#[allow(dead_code, reason = "the service's own tests need more of it")]
#[path = "../../../tests/it/support/mod.rs"]
mod support;

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

/// `lab` with these arguments. All that it starts and leaves is in `temp`.
fn lab(temp: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
    command.args(args).env("TMPDIR", temp).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Its status, and all that it said.
async fn ended(mut command: Command, patience: Duration) -> (Option<i32>, String) {
    let output = timeout(patience, command.output()).await.expect("it ends").unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

/// The results in this directory.
fn results(out: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(out.join("results.json")).unwrap()).unwrap()
}

/// Goal: a malformed log filter gets a sentence, and no result.
#[tokio::test]
async fn a_wrong_filter_is_no_result() {
    let temp = tempfile::tempdir().unwrap();
    let mut bench = lab(temp.path(), &["bench"]);
    bench.env("RUST_LOG", "lab=loud");
    let (status, said) = ended(bench, Duration::from_mins(1)).await;
    assert_eq!(status, Some(2), "{said}");
    assert!(said.contains("a filter is error, warn, info,"), "{said}");
}
