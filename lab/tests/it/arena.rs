//! The arena in its short form. What is asserted are counts, never times.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

/// A pause outlasts a lease, and there is one for each lock and fence.
const RUN_DEADLINE: Duration = Duration::from_mins(3);

/// Goal: under a lock without tokens, a paused holder oversells without a fence, and the store's fence prevents
/// it; a lock that ends with its process keeps the others waiting; the results are written, and nothing is left
/// behind.
#[tokio::test]
async fn short_run_shows_what_each_fence_is_worth() {
    let (temp, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
    command.args(["arena", "--short", "--locks", "redlock,file"]);
    command.arg("--out").arg(out.path()).env("TMPDIR", temp.path());
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(RUN_DEADLINE, command.output()).await.expect("it ends").unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");

    let results = std::fs::read(out.path().join("results.json")).unwrap();
    let results: Value = serde_json::from_slice(&results).unwrap();
    let oversold: Vec<_> = results.as_array().unwrap().iter().flat_map(oversold).collect();
    let expected = [
        ("redlock store", 0),
        ("redlock none", 1),
        ("file lock", 0),
        ("file none", 0),
        ("file store", 0),
    ];
    assert_eq!(oversold, expected.map(|(which, trials)| (which.to_owned(), trials)), "{said}");
    for lock in results.as_array().unwrap() {
        assert_eq!(lock["faults"], Value::Array(Vec::new()), "{said}");
        assert!(lock["handover_p99_ms"].is_f64() && lock["burst_ms"].is_f64(), "{said}");
    }
    assert_eq!(results[1]["overtaken"], 0, "files are first come, first served");
    assert!(said.contains("## Oversold while the holder is paused"), "{said}");
    assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0);
}

/// In how many trials of each fence units were oversold.
fn oversold(lock: &Value) -> Vec<(String, u64)> {
    let name = lock["lock"].as_str().unwrap();
    let of = |paused: &Value| {
        let fence = paused["fence"].as_str().unwrap();
        (format!("{name} {fence}"), paused["oversold"].as_u64().unwrap())
    };
    lock["paused"].as_array().unwrap().iter().map(of).collect()
}
