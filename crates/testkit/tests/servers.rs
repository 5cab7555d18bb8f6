//! What the private servers rest on: directories and child processes. The tests that use them see that nothing is left.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use testkit::wait::eventually;
use testkit::{OwnedDir, Program};

/// Goal: no other user of this machine can read what the servers keep, and their logs.
#[tokio::test]
async fn directories_are_private() {
    let outer = OwnedDir::create().unwrap();
    let inner = OwnedDir::create_in(&outer).unwrap();
    for dir in [&outer, &inner] {
        let mode = std::fs::metadata(dir.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}

/// Goal: a child that ends by itself is reported with its own status, and its output is in the log; a program that cannot
/// be executed leaves its last words there.
#[tokio::test]
async fn child_reports_how_it_ended() {
    let dir = OwnedDir::create().unwrap();
    let log = dir.path().join("log");
    let script = ["-c", "echo out; echo err >&2; read line; exit 7"];
    let grace = Duration::from_secs(5);
    let mut child = Program::new(Path::new("/bin/sh"), &dir, &log, grace).start(script).unwrap();
    assert_eq!(child.wait().await.unwrap().code(), Some(7));
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "out\nerr\n");
    assert!(child.pause().is_err());
    assert_eq!(child.stop().await.unwrap().code(), Some(7));

    let program = dir.path().join("nobody-is-here");
    let mut child = Program::new(&program, &dir, &log, grace).start([""; 0]).unwrap();
    assert_eq!(child.wait().await.unwrap().code(), Some(127));
    assert!(std::fs::read_to_string(&log).unwrap().contains("nobody-is-here"));
    dir.remove().await.unwrap();
}

/// Goal: a child that ignores SIGTERM is gone after the grace; its directory is not removed before.
#[tokio::test]
async fn stubborn_child_is_killed_after_the_grace() {
    use std::os::unix::process::ExitStatusExt as _;

    let dir = OwnedDir::create().unwrap();
    let (log, ready) = (dir.path().join("log"), dir.path().join("ready"));
    let script = r#"trap '' TERM; : >"$0"; while :; do sleep 0.1; done"#;
    let args = ["-c", script, ready.to_str().unwrap()];
    let grace = Duration::from_millis(300);
    let mut child = Program::new(Path::new("/bin/sh"), &dir, &log, grace).start(args).unwrap();
    eventually("the child ignores the signal", async || ready.exists()).await;
    assert_eq!(child.stop().await.unwrap().signal(), Some(9));
    dir.remove().await.unwrap();
}
