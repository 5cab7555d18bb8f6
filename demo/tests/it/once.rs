//! The demo as its users run it: verdicts, error messages, and nothing left behind.

use std::os::unix::fs::PermissionsExt as _;

use rustix::process::{Pid, Signal, kill_process};
use testkit::or_left_out;
use testkit::ports::reserve;
use testkit::probe;
use testkit::processes::processes;
use testkit::server::find_program;
use testkit::wait::eventually;
use tokio::process::Command;

use crate::launch::{ALL, Demo, PROGRAM, SECOND};

/// The end of a demo that left nothing behind, and its output.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    said: String,
    stderr: String,
}

impl Ended {
    /// Its output in one line.
    fn words(&self) -> String {
        self.said.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

/// Runs the demo with these flags to its end.
async fn ended(args: &[&str]) -> Ended {
    ended_with(args, |_| {}).await
}

/// The same, with a change of its command.
async fn ended_with(args: &[&str], change: impl FnOnce(&mut Command)) -> Ended {
    let mut demo = Demo::start_at(reserve(&ALL), args, change);
    let code = demo.end().await.code();
    demo.assert_everything_is_gone();
    Ended { code, stderr: demo.stderr(), said: demo.said }
}

/// Goal: the demo keeps the first promise of the project, with its numbers.
#[tokio::test]
async fn once_passes() {
    let demo = ended(&["--once"]).await;
    assert_eq!(demo.code, Some(0), "{demo:?}");
    let verdict = "PASS 300 units, 500 buyers, 2 instances. 300 of 300 sold, 200 told sold out: no unit \
                   was sold twice.";
    assert!(demo.words().contains(verdict), "{demo:?}");
    assert_eq!(demo.words().matches("300 of 300 sold").count(), 1, "{demo:?}");
    assert_eq!(demo.stderr, "");
    assert!(!demo.said.contains('\x1b'), "colour is for terminals");
}

/// Goal: with `--forward`, orders go to the instance that holds the lock; where there is no lock, the flag is refused.
#[tokio::test]
async fn orders_go_to_the_holder() {
    let demo = ended(&["--once", "--forward"]).await;
    assert_eq!(demo.code, Some(0), "{demo:?}");
    for said in ["go to the instance that holds the lock", "2 instances. 300 of 300 sold"] {
        assert!(demo.words().contains(said), "{demo:?}");
    }
    let demo = ended(&["--once", "--forward", "--lock=no-lock"]).await;
    assert_eq!(demo.code, Some(2), "{demo:?}");
    assert!(demo.stderr.contains("--forward needs the guard etcd"), "{demo:?}");
}

/// Goal: exit status, verdict and number of sold units agree, and the script alone sells right. Whether a sale without a shared
/// lock sells a unit twice is up to chance; the tests of the controls hold a writer, and so sell a unit twice for certain.
#[tokio::test]
async fn without_a_lock_or_with_a_local_one_it_says_what_became_of_it() {
    for lock in ["no-lock", "local", "atomic-script"] {
        let demo = ended(&["--once", "--lock", lock]).await;
        let said = demo.words();
        let (verdict, after) = said.split_once(" 300 units, 500 buyers, 2 instances. ").unwrap();
        let sold: u64 = after.split(' ').next().unwrap().parse().unwrap();
        let told = match sold.checked_sub(300).unwrap() {
            0 => "300 of 300 sold, 200 told sold out".to_owned(),
            excess => {
                format!("{sold} sold of 300: {excess} too many. That is what happens without")
            }
        };
        assert!(after.starts_with(&told), "{said}");
        assert!(lock != "atomic-script" || sold == 300, "{said}");
        let (code, word) = if sold > 300 { (1, "FAIL") } else { (0, "PASS") };
        assert!(demo.code == Some(code) && verdict.ends_with(word), "{demo:?}");
    }
}

/// Goal: the demo serves until Ctrl-C, `kill`, or the end of its terminal, and then leaves nothing, also after a second signal.
/// On a terminal of 80 columns no line wraps, and the last line says where the page is. With `--holds` the sale after the verdict
/// has holds.
#[tokio::test]
async fn signals_leave_nothing() {
    for (signal, is_impatient) in
        [(Signal::INT, false), (Signal::TERM, false), (Signal::HUP, false), (Signal::INT, true)]
    {
        let mut demo = Demo::serving(&["--holds"]).await;
        assert!(!demo.is_everything_gone());
        let stock = probe::http(axum::http::Method::GET, demo.port, "/stock", "").await.unwrap();
        assert!(stock.1.contains("\"hold_seconds\":120"), "{stock:?}");
        let mut lines = demo.said.lines().filter(|line| !line.starts_with("Logs: "));
        assert!(lines.clone().all(|line| line.chars().count() <= 80), "{}", demo.said);
        let page = format!("See the sale again, slowly: http://127.0.0.1:{}", demo.port);
        assert!(lines.next_back().is_some_and(|line| line.ends_with(&page)), "{}", demo.said);
        demo.signal(signal);
        if is_impatient {
            demo.until_it_says("Stopping").await;
            demo.signal(Signal::INT);
        }
        let status = demo.end().await;
        assert_eq!(status.code(), Some(0), "{}{}", demo.said, demo.stderr());
        assert!(demo.said.contains("Everything is stopped and removed."), "{}", demo.said);
        demo.assert_everything_is_gone();
    }
}

/// Goal: a signal that comes while servers are started has the same effect as a later one.
#[tokio::test]
async fn signal_before_the_verdict_leaves_nothing() {
    for first_words in ["starting", "etcd answers", "500 buyers come"] {
        let mut demo = Demo::start(&["--once"]);
        demo.until_it_says(first_words).await;
        demo.signal(Signal::TERM);
        let status = demo.end().await;
        assert_eq!(status.code(), Some(143), "{first_words}: {}{}", demo.said, demo.stderr());
        demo.assert_everything_is_gone();
    }
}

/// Goal: an instance that dies is reported, and the other one goes on selling. SIGKILL, which the demo cannot notice, leaves
/// nothing either.
#[tokio::test]
async fn dead_instance_is_reported() {
    let mut demo = Demo::serving(&[]).await;
    // the suggested commands work, in this order
    let suggested = demo.said.lines().filter_map(|line| line.trim().strip_prefix("curl "));
    let suggested: Vec<_> = suggested.map(str::to_owned).collect();
    assert!(suggested.len() > 3, "{}", demo.said);
    let curl = or_left_out(find_program("FLASH_SALE_CURL", &["curl"]), "curl is not installed");
    for flags in suggested.into_iter().filter(|_| curl.is_some()) {
        let line = format!("curl --fail --silent --show-error {flags}");
        let output = Command::new("sh").args(["-c", &line]).output().await.unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
    }
    let listen = format!("--listen=127.0.0.1:{}", demo.port);
    // its guardian is a shell that has the same arguments
    let mut found = processes(&listen);
    found.retain(|(_, command)| command.starts_with(PROGRAM));
    assert_eq!(found.len(), 1, "{found:?}");
    kill_process(Pid::from_raw(found[0].0).unwrap(), Signal::KILL).unwrap();
    demo.until_it_says(&format!("instance {} has ended", demo.port)).await;
    let answer = probe::http(axum::http::Method::GET, demo.port + SECOND, "/readyz", "").await;
    assert_eq!(answer.unwrap().0, 200);
    demo.signal(Signal::KILL);
    demo.end().await;
    eventually("nothing is left", async || demo.is_everything_gone()).await;
}

/// Goal: a taken port is reported before anything is started.
#[tokio::test]
async fn a_taken_port_is_reported() {
    let port = reserve(&ALL);
    let taken = port + SECOND;
    let listener = std::net::TcpListener::bind(("127.0.0.1", taken)).unwrap();
    let mut demo = Demo::start_at(port, &["--once"], |_| {});
    let status = demo.end().await;
    let message =
        format!("port {taken} is not free: stop what listens there or choose another with --port");
    assert!(demo.stderr().contains(&message), "{}", demo.stderr());
    assert_eq!((status.code(), demo.said.as_str()), (Some(2), ""));
    drop(listener);
    demo.assert_everything_is_gone();
}

/// Goal: a malformed log filter gets a sentence and no verdict.
#[tokio::test]
async fn what_cannot_be_is_no_verdict() {
    let demo = ended_with(&["--once"], |command| {
        command.env("RUST_LOG", "demo=loud");
    });
    let demo = demo.await;
    let sentence = "demo: RUST_LOG is \"demo=loud\", and a filter is error, warn, info,";
    assert!(demo.code == Some(2) && demo.stderr.contains(sentence), "{demo:?}");
    assert!(demo.said.is_empty(), "{demo:?}");
}

/// Goal: without etcd, the message says how to install it. A failure half-way is reported with its cause, and all processes are
/// gone. Method: at first no program is on the `PATH`; then there are etcd and a Redis that does not start.
#[tokio::test]
async fn a_missing_etcd_and_a_redis_that_fails_are_reported() {
    let programs = tempfile::tempdir().unwrap();
    let fails = async |all_words: &[&str]| {
        let demo = ended_with(&["--once"], |command| {
            command.env("PATH", programs.path());
        });
        let demo = demo.await;
        assert_eq!(demo.code, Some(2), "{demo:?}");
        for words in all_words {
            assert!(demo.stderr.contains(words), "{words}: {demo:?}");
        }
    };
    fails(&["is not installed", "make setup", "apt-get install"]).await;
    let path = std::env::var_os("PATH").unwrap();
    let etcd = std::env::split_paths(&path).map(|dir| dir.join("etcd")).find(|etcd| etcd.is_file());
    std::os::unix::fs::symlink(etcd.unwrap(), programs.path().join("etcd")).unwrap();
    let redis = programs.path().join("redis-server");
    std::fs::write(&redis, "#!/bin/sh\necho the disk is on fire; exit 3\n").unwrap();
    std::fs::set_permissions(redis, std::fs::Permissions::from_mode(0o755)).unwrap();
    fails(&["Redis ended before it answered", "exit status: 3", "the disk is on fire"]).await;
}
