//! The examples run, and print what they say they show.

use std::process::Stdio;

use testkit::shared::{fresh_database, shared_endpoint};
use testkit::wait::{eventually, within};
use testkit::{EtcdOptions, PrivateEtcd};
use tokio::process::Command;

use super::lab::{EtcdLab, Lab as _, queue_length};

/// An example against this etcd.
fn command(example: &str, etcd: &str) -> Command {
    // cargo builds the examples beside the directory of the tests, though not where it is told to build this test alone
    let tests = std::env::current_exe().unwrap();
    let program = tests.parent().unwrap().with_file_name("examples").join(example);
    let mut command = Command::new(program);
    command.env("ETCD", etcd).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    command
}

/// What an example prints.
async fn output_of(example: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let mut run = command(example, &shared_endpoint().await);
    run.env("REDIS", fresh_database().await).env("LOCKS", directory.path()).stderr(Stdio::piped());
    let output = within("the example ends", run.output()).await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{example}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// Goal: a reader can trust the examples. Method: each runs against real servers.
#[tokio::test]
async fn examples_do_what_they_say() {
    assert_eq!(output_of("cron").await, "the report is written\n");
    assert!(output_of("leader").await.starts_with("leading, under token "));
    let lines = output_of("fenced_redis").await;
    assert_eq!(lines, "the holder writes: true\nan earlier one writes: false\n");
    let lines = output_of("reentry").await;
    let tokens: Vec<_> = lines.lines().map(|line| line.rsplit_once(' ').unwrap().1).collect();
    assert!(tokens.len() == 2 && tokens[0] == tokens[1], "{lines}");
    assert_eq!(output_of("queue").await, "stock-lock is free\n");
    assert_eq!(output_of("one_machine").await, "the report is written, under token 1\n");
}

/// Goal: a leader that loses its session while it waits stands again.
#[tokio::test]
async fn a_leader_stands_again() {
    let etcd = PrivateEtcd::start(EtcdOptions::default()).await.unwrap();
    let lab = EtcdLab::of(&etcd);
    let ours = lab.mutex("locks/leader").await;
    let guard = ours.lock().await.unwrap();
    let leader = command("leader", lab.endpoint()).spawn().unwrap();
    queue_length(&ours, 2).await;
    let waiting = ours.queue().await.unwrap().remove(1);
    lab.revoke(waiting.lease).await;
    eventually("it waits again", async || {
        let queue = ours.queue().await.unwrap();
        queue.len() == 2 && queue[1].key != waiting.key
    })
    .await;
    guard.unlock().await.unwrap();
    let output = within("it has led", leader.wait_with_output()).await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("leading, under token "), "{text}");
}
