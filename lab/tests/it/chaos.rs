//! The fault suite, as its users run it: a few scenarios and their controls.

use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use testkit::processes::processes;
use testkit::wait::eventually;
use tokio::process::Command;
use tokio::time::timeout;

use super::{ended, lab, results};

/// A short run takes about a minute; with many tests beside it, it may take more than twice that.
const PATIENCE: Duration = Duration::from_mins(8);

fn suite(temp: &Path, args: &[&str]) -> Command {
    let mut command = lab(temp, &["chaos"]);
    command.args(args).arg("--out").arg(temp.join("out"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("FLASH_SALE_") || name.starts_with("CHAOS_") {
            command.env_remove(&*name);
        }
    }
    command
}

/// Goal: under the faults of a short run nothing is lost; without each safeguard something is lost.
#[tokio::test]
async fn scenarios_hold_and_controls_fail() {
    let temp = tempfile::tempdir().unwrap();
    let (status, said) = ended(suite(temp.path(), &["--short", "--seed", "1"]), PATIENCE).await;
    assert_eq!(status, Some(0), "{said}");

    let results = results(&temp.path().join("out"));
    let cases = results["cases"].as_array().unwrap();
    let (scenarios, controls): (Vec<_>, Vec<_>) =
        cases.iter().partition(|case| case["without"].is_null());
    assert!(scenarios.len() >= 4, "{said}");
    for scenario in scenarios {
        let run = &scenario["run"]["Ok"];
        assert!(run["times"].as_u64().unwrap() > 0, "{scenario}");
        let counts = ["acknowledged", "sold_out", "held_out"];
        let [sold, sold_out, held_out] = counts.map(|it| run["counts"][it].as_u64().unwrap());
        let refused = sold_out + held_out;
        assert!(sold > 100 && refused > 100 && sold + refused > 1000, "{scenario}");
        assert_eq!(run["findings"].as_array().unwrap().len(), 0, "{scenario}");
        assert!(controls.iter().any(|control| control["name"] == scenario["name"]), "{scenario}");
    }
    for control in controls {
        let breaks = control["breaks"].as_array().unwrap();
        let found = control["run"]["Ok"]["findings"].as_array().unwrap();
        assert!(found.iter().any(|found| breaks.contains(&found["invariant"])), "{control}");
    }
    let kept = std::fs::read_dir(temp.path().join("out")).unwrap().count();
    assert_eq!(kept, 2, "results.json and tables.md: histories of good runs are not kept");
}

/// Goal: a run that a signal ends in the middle leaves nothing behind.
#[tokio::test]
async fn interrupt_leaves_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let suite = suite(temp.path(), &["--only", "holder-killed,answer-swallowed"]).spawn().unwrap();
    let path = temp.path().to_string_lossy().into_owned();
    eventually("orders are sent", async || {
        processes(&path).iter().any(|(_, command)| command.contains("--history"))
    })
    .await;
    let pid = Pid::from_raw(suite.id().unwrap().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let output = timeout(PATIENCE, suite.wait_with_output()).await.expect("it ends").unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    let left = processes(&path);
    assert!(left.is_empty(), "{left:?}");
    let files: Vec<_> = std::fs::read_dir(temp.path()).unwrap().flatten().collect();
    assert!(files.iter().all(|file| file.file_name() == "out"), "{files:?}");
}
