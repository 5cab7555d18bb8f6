//! The parts below the private servers: directories and child processes. The tests that use servers see that nothing is left
//! behind.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use testkit::wait::eventually;
use testkit::{OwnedDir, PrivateZooKeeper, Program};

/// Goal: no other user of this machine can read the servers' files, nor their logs.
#[tokio::test]
async fn directories_are_private() {
    let outer = OwnedDir::create().unwrap();
    let inner = OwnedDir::create_in(&outer).unwrap();
    for dir in [&outer, &inner] {
        let mode = std::fs::metadata(dir.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}

/// Goal: a child that ends by itself is reported with its own status, and its output is in the log. For a program that cannot
/// be executed, the log says why. The output can be kept apart from the log.
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

    let [log, output] = ["other", "output"].map(|name| dir.path().join(name));
    let program = Program::new(Path::new("/bin/sh"), &dir, &log, grace);
    let mut child = Program { output: Some(&output), ..program }.start(script).unwrap();
    assert_eq!(child.wait().await.unwrap().code(), Some(7));
    let said = [&log, &output].map(|file| std::fs::read_to_string(file).unwrap());
    assert_eq!(said, ["err\n", "out\n"]);
    dir.remove().await.unwrap();
}

/// Goal: a test whose server is missing is left out, but fails where `CI` is set. Method: this test without a `PATH`.
#[test]
fn no_test_is_left_out_under_ci() {
    const NAME: &str = "no_test_is_left_out_under_ci";
    if std::env::var_os("WITHOUT_PATH").is_some() {
        assert!(!PrivateZooKeeper::can_test());
        return;
    }
    for (ci, passes, said) in [("", true, "left out: ZooKeeper"), ("true", false, "CI is set")] {
        let mut test = Command::new(std::env::current_exe().unwrap());
        test.args([NAME, "--exact", "--nocapture"]);
        let variables = [("WITHOUT_PATH", "1"), ("PATH", ""), ("CI", ci)];
        let ended = test.envs(variables).env_remove("FLASH_SALE_JAVA").output().unwrap();
        let told = String::from_utf8([ended.stdout, ended.stderr].concat()).unwrap();
        assert_eq!(ended.status.success(), passes, "{told}");
        assert!(told.contains(said), "{told}");
    }
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
