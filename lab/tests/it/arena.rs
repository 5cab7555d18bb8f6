//! The arena in its short form. The tests assert counts, never times.

use std::time::Duration;

use serde_json::Value;

use super::{ended, lab, results};

/// The run pauses holders for longer than a lease, once for each lock and each fence.
const RUN_DEADLINE: Duration = Duration::from_mins(3);

/// Runs the arena, with a directory for all that it starts and one for its results. Returns the results of the locks, and what it
/// said.
async fn run(flags: &[&str]) -> (Vec<Value>, String) {
    let (temp, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut command = lab(temp.path(), &["arena", "--short"]);
    command.args(flags).arg("--out").arg(out.path());
    let (status, said) = ended(command, RUN_DEADLINE).await;
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0, "{said}");
    let results = results(out.path());
    let tables = std::fs::read_to_string(out.path().join("tables.md")).unwrap();
    assert!(!tables.contains("NaN"), "{tables}");
    let locks = results["locks"].as_array().unwrap().clone();
    for lock in &locks {
        assert_eq!(lock["faults"], Value::Array(Vec::new()), "{said}");
    }
    (locks, said)
}

/// Goal: under a lock without tokens, a paused holder oversells without a fence, and the store's fence prevents
/// it; a lock that ends with its process keeps the others waiting.
#[tokio::test]
async fn short_run_shows_what_each_fence_is_worth() {
    let of = async |lock| run(&["--locks", lock, "--only", "oversold", "--faults", "pause"]).await;
    let ((redlock, said), (file, _)) = tokio::join!(of("redlock"), of("file"));
    let oversold: Vec<_> = redlock.iter().chain(&file).flat_map(oversold).collect();
    let expected = [
        ("redlock store", 0),
        ("redlock none", 1),
        ("file lock", 0),
        ("file none", 0),
        ("file store", 0),
    ];
    assert_eq!(oversold, expected.map(|(which, trials)| (which.to_owned(), trials)), "{said}");
    assert!(said.contains("## Units oversold"), "{said}");
}

/// In how many trials of each fence units were oversold.
fn oversold(lock: &Value) -> Vec<(String, u64)> {
    let name = lock["lock"].as_str().unwrap();
    let of = |trials: &Value| {
        let fence = trials["fence"].as_str().unwrap();
        (format!("{name} {fence}"), trials["broken"].as_u64().unwrap())
    };
    lock["oversold"].as_array().unwrap().iter().map(of).collect()
}

/// Goal: each measure of handovers, fairness and cost has its figure; a lock that pushes serves first come, first served; a lock
/// without servers has neither distance nor requests.
#[tokio::test]
async fn short_run_measures_each_lock() {
    let measures = "handovers,distance,fairness,requests";
    let (locks, said) = run(&["--locks", "redis,file", "--only", measures]).await;
    for (lock, distances) in locks.iter().zip([3, 1]) {
        assert_eq!(lock["handovers"].as_array().unwrap().len(), distances, "{said}");
        // the two sessions take turns: each grant is a handover
        let mut handovers = lock["handovers"].as_array().unwrap().iter();
        assert!(handovers.all(|at| at["turns"] == 20), "{said}");
        assert_eq!(lock["contest"]["overtaken"], 0, "{said}");
        assert!(lock["contest"]["jain"].as_f64().unwrap() > 0.5, "{said}");
    }
    let [redis, file] = locks.as_slice() else { panic!("{said}") };
    // at least one request to ask and one to give back
    let requests = redis["contest"]["requests_per_grant"].as_f64().unwrap();
    assert!((1.5..50.0).contains(&requests), "{said}");
    assert!(redis["contest"]["idle_requests"].is_f64(), "{said}");
    assert!(file["contest"]["idle_requests"].is_null(), "{said}");
    assert_eq!(said.matches("A row: `make arena ARGS='--locks LOCK --only").count(), 3, "{said}");
}

/// Goal: a lock with a lease passes on from a killed process, and works again after its server died; a failover takes it from its
/// holder; a file lock is never taken from a stopped process.
#[tokio::test]
async fn short_run_shows_what_each_fault_does() {
    let hit = async |lock, faults| {
        run(&["--locks", lock, "--only", "takeover", "--seed", "7", "--faults", faults]).await
    };
    let ((redis, said), (file, said_of_file)) = tokio::join!(
        hit("redis", "kill,partition,server,failover"),
        hit("file", "kill,pause,partition,server"),
    );
    let said = format!("{said}{said_of_file}");
    let ([redis], [file]) = (redis.as_slice(), file.as_slice()) else { panic!("{said}") };
    let names = |lock: &Value| -> Vec<String> {
        let all = lock["takeovers"].as_array().unwrap().iter();
        all.map(|it| it["fault"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(redis), ["kill", "partition", "server", "failover"], "{said}");
    let of = |lock: &Value, fault: &str| -> Value {
        let all = lock["takeovers"].as_array().unwrap().iter();
        all.clone().find(|it| it["fault"] == fault).cloned().unwrap_or_else(|| panic!("{said}"))
    };
    for fault in ["kill", "server", "failover"] {
        assert_eq!(of(redis, fault)["never"], 0, "{fault}: {said}");
    }
    // a holder that is cut off holds the lock at first, and stops in time
    assert_eq!(of(redis, "partition")["hits"], 1, "{said}");
    assert_eq!(of(redis, "partition")["overlaps"], 0, "{said}");
    // the replica was promoted: its tokens cannot be compared with the earlier ones
    assert_eq!(of(redis, "failover")["other_cluster"], 1, "{said}");
    assert_eq!(of(redis, "kill")["other_cluster"], 0, "{said}");
    assert_eq!(names(file), ["kill", "pause"], "{said}");
    assert_eq!(of(file, "kill")["never"], 0, "{said}");
    assert_eq!(of(file, "pause")["never"], 1, "{said}");
    assert!(of(file, "pause")["p50_ms"].is_null(), "{said}");
    assert_eq!(of(file, "pause")["overlaps"], 0, "{said}");
}

/// Goal: after a failover to a standby of PostgreSQL, the tokens belong to another cluster, which shows that their numbers cannot
/// be compared with the earlier ones; with a synchronous standby no two hold the lock at once.
#[tokio::test]
async fn short_run_fails_postgres_over() {
    if !testkit::postgres::can_test() {
        return;
    }
    let faults = "failover,sync-failover";
    let (locks, said) =
        run(&["--locks", "postgres", "--only", "takeover", "--faults", faults]).await;
    let takeovers = locks[0]["takeovers"].as_array().unwrap();
    let [lagging, synchronous] = takeovers.as_slice() else { panic!("{said}") };
    assert_eq!(lagging["fault"], "failover", "{said}");
    assert_eq!(lagging["never"], 0, "{said}");
    assert_eq!(synchronous["fault"], "sync-failover", "{said}");
    assert_eq!(synchronous["overlaps"], 0, "{said}");
    assert!(takeovers.iter().all(|it| it["repeated_tokens"] == 0), "{said}");
    assert!(takeovers.iter().all(|it| it["other_cluster"] == 1), "{said}");
}
