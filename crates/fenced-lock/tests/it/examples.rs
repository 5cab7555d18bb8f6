//! The examples run, and print what they say they show.

use std::process::Stdio;

use testkit::shared::{fresh_database, shared_endpoint};
use testkit::wait::within;
use tokio::process::Command;

/// What an example prints.
async fn output_of(example: &str) -> String {
    // cargo builds the examples beside the directory of the tests, though not where it is told to build this test alone
    let tests = std::env::current_exe().unwrap();
    let program = tests.parent().unwrap().with_file_name("examples").join(example);
    let mut run = Command::new(program);
    run.env("ETCD", shared_endpoint().await).env("REDIS", fresh_database().await);
    run.stdin(Stdio::null()).kill_on_drop(true);
    let output = within("the example ends", run.output()).await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{example}: {text}{errors}");
    text
}

/// Goal: a reader can trust the examples. Method: each runs against real servers.
#[tokio::test]
async fn examples_do_what_they_say() {
    assert_eq!(output_of("cron").await, "the report is written\n");
    assert!(output_of("leader").await.starts_with("leading, under token "));
    let lines = output_of("fenced_redis").await;
    assert_eq!(lines, "the holder writes: true\nan earlier one writes: false\n");
}
