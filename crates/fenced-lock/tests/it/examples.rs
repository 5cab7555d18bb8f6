//! The examples run, and print what they say they show.

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use testkit::shared::{Raw, fresh_database, shared_endpoint};
use testkit::wait::within;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Command;

/// An example that is about to start.
async fn example(name: &str, redis: &str) -> Command {
    // cargo builds the examples beside the directory of the tests, though not where it is told to build this test alone
    let tests = std::env::current_exe().unwrap();
    let mut run = Command::new(tests.parent().unwrap().with_file_name("examples").join(name));
    run.env("ETCD", shared_endpoint().await).env("REDIS", redis);
    run.stdin(Stdio::null()).kill_on_drop(true);
    run
}

/// The text that it prints.
async fn output_of(mut run: Command) -> String {
    let output = within("the example ends", run.output()).await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{run:?}: {text}{errors}");
    text
}

/// Goal: a reader can trust the examples. Method: each runs against real servers.
#[tokio::test]
async fn examples_do_what_they_say() {
    let redis = fresh_database().await;
    let run = async |name| output_of(example(name, &redis).await).await;
    // a machine whose clock is late finds the lock free, and the job done
    let midnight: u64 = 20_000 * 24 * 60 * 60;
    let (written, by_another) = ("the report is written", "another machine has written the report");
    let starts =
        [(midnight - 2, written), (midnight + 3, by_another), (midnight + 90_000, written)];
    for (now, said) in starts {
        let mut cron = example("cron", &redis).await;
        cron.env("NOW", now.to_string());
        assert_eq!(output_of(cron).await, format!("{said}\n"), "at {now}");
    }
    assert!(run("leader").await.starts_with("leading, under token "));
    let lines = run("fenced_redis").await;
    assert_eq!(lines, "the holder writes: true\nan earlier one writes: false\n");
}

/// Goal: when a holder is killed between its writes to two stores, the next holder undoes its work; when it is stopped there and
/// goes on later, both stores refuse it, though the last holder before that wrote to neither. Where that one died between the two
/// fences, its unit is not lost.
#[tokio::test]
async fn two_stores_stay_together() {
    let Some(postgres) = super::postgres::fresh_database().await else { return };
    let redis = fresh_database().await;
    let mut raw = Raw::connect(&redis).await;
    let () = raw.run("SET {sale}:stock 3").await;
    let start = async |order: Option<&str>| {
        let mut run = example("two_stores", &redis).await;
        run.env("POSTGRES", &postgres).envs(order.map(|order| ("ORDER", order)));
        run
    };
    let between = async |order| {
        let mut run = start(Some(order)).await;
        let piped = run.env("STEP", "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = within("the example has taken a unit", lines.next_line()).await.unwrap();
        assert_eq!(line.as_deref(), Some("taken"));
        (child, lines)
    };

    let (mut killed, _) = between("killed").await;
    killed.kill().await.unwrap();
    let both = "PostgreSQL writes: true\nRedis writes: true\n";
    assert_eq!(output_of(start(Some("next")).await).await, format!("undo killed\n{both}"));

    let (mut stopped, mut lines) = between("stopped").await;
    let signal = |signal| {
        let pid = Pid::from_raw(stopped.id().unwrap().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    };
    signal(Signal::STOP);
    assert_eq!(output_of(start(None).await).await, "undo stopped\n");
    signal(Signal::CONT);
    stopped.stdin.take().unwrap().write_all(b"\n").await.unwrap();
    for line in ["PostgreSQL writes: false", "Redis writes: false"] {
        assert_eq!(within(line, lines.next_line()).await.unwrap().as_deref(), Some(line));
    }
    assert!(within("it ends", stopped.wait()).await.unwrap().success());

    let (mut overtaken, _lines) = between("overtaken").await;
    let raised = "UPDATE fence SET revision = revision + 1";
    super::postgres::client(&postgres).await.batch_execute(raised).await.unwrap();
    overtaken.stdin.take().unwrap().write_all(b"\n").await.unwrap();
    assert!(within("it ends", overtaken.wait()).await.unwrap().success());
    assert_eq!(output_of(start(None).await).await, "undo overtaken\n");

    let left: (u32, u32) =
        (raw.run("GET {sale}:stock").await, raw.run("SCARD {sale}:intents").await);
    assert_eq!(left, (2, 0));
    assert_eq!(output_of(start(Some("next")).await).await, "next was sold before\n");
}
