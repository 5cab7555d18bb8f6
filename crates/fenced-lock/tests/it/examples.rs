//! The examples run, and print what they say they show.

use std::path::Path;
use std::process::Stdio;
use std::time::SystemTime;

use testkit::shared::{fresh_database, shared_endpoint};
use testkit::wait::{eventually, within};
use testkit::{EtcdOptions, PrivateEtcd};
use tokio::process::Command;

use super::lab::{EtcdLab, Lab as _, queue_length};

fn modified(path: &Path) -> SystemTime {
    path.metadata().unwrap().modified().unwrap()
}

/// When the sources of an example, the library's among them, were last changed.
fn latest_change(example: &str) -> SystemTime {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = ["src", "src/etcd", "src/file"]
        .map(|directory| package.join(directory).read_dir().unwrap());
    let library = files.into_iter().flatten().map(|file| modified(&file.unwrap().path()));
    let own = modified(&package.join("examples").join(example).with_extension("rs"));
    library.max().unwrap().max(own)
}

/// An example against this etcd.
fn command(example: &str, etcd: &str) -> Command {
    // cargo builds the examples beside the directory of the tests
    let tests = std::env::current_exe().unwrap();
    let program = tests.parent().unwrap().with_file_name("examples").join(example);
    assert!(
        modified(&program) >= latest_change(example),
        "an example is older than its source: `cargo test -p fenced-lock` builds it, with `--test it` it does not"
    );
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
