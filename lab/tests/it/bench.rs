//! The bench in its short form: everything is measured once. What is asserted are counts, never times.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use testkit::processes::processes;
use tokio::process::Command;
use tokio::time::timeout;

const PROGRAM: &str = env!("CARGO_BIN_EXE_lab");

/// Everything once takes much longer than anything else here, and more so on a busy machine.
const RUN_DEADLINE: Duration = Duration::from_mins(3);

const CONTENDERS: [&str; 6] =
    ["atomic-script", "combined", "etcd-recipe", "etcd-rpc", "no-store", "request"];

/// Runs `lab bench` and returns its status and what it said, all together.
async fn bench(temp: &Path, out: &Path, flags: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(PROGRAM);
    command.arg("bench").args(flags).arg("--out").arg(out).env("TMPDIR", temp);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(RUN_DEADLINE, command.output()).await.expect("it ends").unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

/// Goal: every measure is taken, every request is answered and accounted for, the results are
/// written as data, tables and plots, and nothing that was started is left behind.
#[tokio::test]
async fn short_run_measures_everything() {
    let (temp, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let out = out.path().join("made");
    let (status, said) = bench(temp.path(), &out, &["--short"]).await;
    assert_eq!(status, Some(0), "{said}");

    let results = std::fs::read(out.join("results.json")).unwrap();
    let results: Value = serde_json::from_slice(&results).unwrap();
    assert_eq!(results["faults"], Value::Array(Vec::new()), "{said}");
    let rounds = results["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), 1);
    assert!(rounds[0]["etcd"]["commit_and_notification"]["median"].is_f64());
    let mut contenders = Vec::new();
    for turn in rounds[0]["turns"].as_array().unwrap() {
        let contender = turn["contender"].as_str().unwrap();
        contenders.push(contender);
        let load = &turn["throughput"];
        let settled = if contender == "no-store" { "answered" } else { "acknowledged" };
        assert_eq!(load[settled], load["requests"], "{contender}: {load}");
        assert_eq!((&load["failed"], &load["unknown"]), (&0.into(), &0.into()), "{contender}");
        if contender != "no-store" {
            let burst = &turn["burst"];
            assert_eq!((&burst["acknowledged"], &burst["sold_out"]), (&6.into(), &4.into()));
            assert_eq!(load["instances"].as_object().unwrap().len(), 2, "{contender}: {load}");
        }
        let sold_out = &turn["sold_out"];
        match contender {
            "no-store" => assert_eq!(sold_out["answered"], 60),
            "combined" | "atomic-script" => {
                let counts = (&sold_out["acknowledged"], &sold_out["sold_out"]);
                assert_eq!(counts, (&6.into(), &54.into()), "{contender}");
            }
            _ => assert!(sold_out.is_null(), "{contender}"),
        }
        let shows_handovers = ["combined", "request", "etcd-recipe"].contains(&contender);
        assert_eq!(turn["handovers"].is_object(), shows_handovers, "{contender}");
    }
    contenders.sort_unstable();
    assert_eq!(contenders, CONTENDERS);

    let sweeps = results["sweeps"].as_array().unwrap();
    let swept: Vec<_> = sweeps.iter().map(|sweep| sweep["measure"].as_str().unwrap()).collect();
    assert_eq!(swept, ["requests", "connections", "instances", "items"]);
    for point in sweeps.iter().flat_map(|sweep| sweep["points"].as_array().unwrap()) {
        for load in point["loads"].as_array().unwrap() {
            assert_eq!((&load["pass"], &load["acknowledged"]), (&true.into(), &load["requests"]));
        }
    }
    let distances = results["distances"].as_array().unwrap();
    let shares: Vec<_> = distances.iter().map(|distance| &distance["share"]).collect();
    assert_eq!(shares, [&Value::Null, &Value::Null, &0.5.into(), &0.5.into()]);
    for (distance, contender) in
        distances.iter().flat_map(|distance| [(distance, "guarded"), (distance, "unguarded")])
    {
        let load = &distance[contender][0];
        assert_eq!((&load["pass"], &load["acknowledged"]), (&true.into(), &load["requests"]));
    }
    if cfg!(target_os = "linux") {
        let memory = &results["memory"];
        assert_eq!((&memory["orders"], &memory["load"]["acknowledged"]), (&50.into(), &50.into()));
        for turn in rounds[0]["turns"].as_array().unwrap() {
            let spent = turn["throughput"]["cpu_seconds"].as_object().unwrap();
            let names: Vec<_> = spent.keys().map(String::as_str).collect();
            assert_eq!(names, ["etcd", "instances", "loadtest", "redis"]);
        }
    }

    let tables = std::fs::read_to_string(out.join("tables.md")).unwrap();
    assert!(said.contains(&tables), "the tables are printed as well");
    for name in
        ["throughput", "burst", "handovers", "requests", "connections", "instances", "items"]
    {
        let plot = std::fs::read_to_string(out.join(format!("{name}.svg"))).unwrap();
        assert!(plot.starts_with("<svg ") && plot.ends_with("</svg>\n"), "{name}: {plot}");
    }
    let left: Vec<_> = std::fs::read_dir(temp.path()).unwrap().collect();
    let alive = processes(&temp.path().to_string_lossy());
    assert!(left.is_empty() && alive.is_empty(), "{left:?} {alive:?}");
}

/// Goal: one measure of one contender alone, and no plot without figures.
#[tokio::test]
async fn one_measure_alone() {
    let (temp, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let flags = ["--short", "--only", "burst", "--contenders", "atomic-script", "--rounds", "2"];
    let (status, said) = bench(temp.path(), out.path(), &flags).await;
    assert_eq!(status, Some(0), "{said}");
    let mut files: Vec<_> = std::fs::read_dir(out.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort_unstable();
    assert_eq!(files, ["burst.svg", "results.json", "tables.md"]);
    let results = std::fs::read(out.path().join("results.json")).unwrap();
    let results: Value = serde_json::from_slice(&results).unwrap();
    let rounds = results["rounds"].as_array().unwrap();
    assert!(rounds.len() == 2 && rounds.iter().all(|round| round["turns"][0]["burst"].is_object()));
}
