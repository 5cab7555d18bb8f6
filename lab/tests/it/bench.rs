//! The bench in its short form: everything is measured once. The tests assert counts, never times.

use std::time::Duration;

use serde_json::Value;
use testkit::processes::processes;
use testkit::wait::within;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::{ended, lab, results};

/// The short form takes much longer than any other test here, and more so on a busy machine.
const RUN_DEADLINE: Duration = Duration::from_mins(3);

const CONTENDERS: [&str; 6] =
    ["combined", "forwarded", "batched-script", "atomic-script", "etcd-recipe", "no-store"];

/// The load of this measure and contender, of which there is one.
fn only_load<'a>(results: &'a Value, measure: &str, contender: &str) -> Option<&'a Value> {
    let mut cases = results["cases"].as_array().unwrap().iter();
    let case = cases.find(|case| case["measure"] == measure && case["contender"] == contender)?;
    assert_eq!(case["loads"].as_array().unwrap().len(), 1, "{measure} of {contender}");
    Some(&case["loads"][0])
}

/// Goal: every measure is taken, every request is answered and accounted for, the results are
/// written as data and tables, and nothing that was started is left behind.
#[tokio::test]
async fn short_run_measures_everything() {
    let (temp, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let out = out.path().join("made");
    let mut command = lab(temp.path(), &["bench", "--short"]);
    command.arg("--out").arg(&out);
    let (status, said) = ended(command, RUN_DEADLINE).await;
    assert_eq!(status, Some(0), "{said}");

    let results = results(&out);
    assert_eq!(results["faults"], Value::Array(Vec::new()), "{said}");
    for contender in CONTENDERS {
        let load = only_load(&results, "throughput", contender).unwrap();
        assert_eq!(load["acknowledged"], load["requests"], "{contender}: {load}");
        assert_eq!((&load["failed"], &load["unknown"]), (&0.into(), &0.into()), "{contender}");
        if contender != "no-store" {
            let burst = only_load(&results, "burst", contender).unwrap();
            assert_eq!((&burst["acknowledged"], &burst["sold_out"]), (&6.into(), &4.into()));
            assert_eq!(load["instances"].as_object().unwrap().len(), 2, "{contender}: {load}");
        }
        let sold_out = only_load(&results, "sold-out", contender);
        match contender {
            "no-store" => assert_eq!(sold_out.unwrap()["acknowledged"], 60),
            "combined" | "forwarded" | "batched-script" | "atomic-script" => {
                let sold_out = sold_out.unwrap();
                let counts = (&sold_out["acknowledged"], &sold_out["sold_out"]);
                assert_eq!(counts, (&6.into(), &54.into()), "{contender}");
            }
            _ => assert!(sold_out.is_none(), "{contender}"),
        }
        let handovers = only_load(&results, "handovers", contender);
        assert_eq!(handovers.is_some(), ["combined", "etcd-recipe"].contains(&contender));
        if cfg!(target_os = "linux") {
            let spent = load["cpu_seconds"].as_object().unwrap();
            let names: Vec<_> = spent.keys().map(String::as_str).collect();
            assert_eq!(names, ["etcd", "instances", "loadtest", "redis"]);
        }
    }

    let cases = results["cases"].as_array().unwrap();
    let of = |measure| cases.iter().filter(move |case| case["measure"] == measure);
    assert_eq!(of("distance").count(), 12, "four contenders: two distances, few connections");
    assert_eq!(of("paced").count(), 4, "the same");
    for case in of("distance").chain(of("paced")) {
        let load = &case["loads"][0];
        assert_eq!((&load["pass"], &load["acknowledged"]), (&true.into(), &load["requests"]));
    }

    let tables = std::fs::read_to_string(out.join("tables.md")).unwrap();
    assert!(said.contains(&tables), "the tables are printed as well");
    let left: Vec<_> = std::fs::read_dir(temp.path()).unwrap().collect();
    let alive = processes(&temp.path().to_string_lossy());
    assert!(left.is_empty() && alive.is_empty(), "{left:?} {alive:?}");
}

/// Goal: one measure of one contender runs alone; if the bench cannot go on, it writes what it has measured. Method: its
/// directory is moved away after the first round, so that no instance can open its log.
#[tokio::test]
async fn one_measure_alone_and_what_was_measured_before_a_failure() {
    let (temp, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut command = lab(temp.path(), &["bench", "--short", "--only=burst", "--rounds=3"]);
    command.arg("--contenders=atomic-script").arg("--out").arg(out.path());
    let mut bench = command.spawn().unwrap();
    let mut said = BufReader::new(bench.stderr.take().unwrap()).lines();
    while let Some(line) = within("it goes on", said.next_line()).await.unwrap() {
        if line.contains("round 2 of 3") {
            let dir = std::fs::read_dir(temp.path()).unwrap().next().unwrap().unwrap();
            std::fs::rename(dir.path(), temp.path().join("away")).unwrap();
        }
    }
    assert_eq!(bench.wait().await.unwrap().code(), Some(1));
    let results = results(out.path());
    let cases = results["cases"].as_array().unwrap();
    assert!(cases.len() == 1 && cases[0]["measure"] == "burst", "{cases:?}");
    assert!(!cases[0]["loads"].as_array().unwrap().is_empty());
    assert!(results["faults"][0].as_str().unwrap().starts_with("stopped: "), "{results}");
}
