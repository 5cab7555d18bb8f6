//! The examples run, and print what they say they show.

use std::path::Path;
use std::process::Stdio;
use std::time::SystemTime;

use testkit::shared::{fresh_database, shared_endpoint};
use testkit::wait::within;
use tokio::process::Command;

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

/// What an example prints.
async fn output_of(example: &str) -> String {
    // cargo builds the examples beside the directory of the tests
    let tests = std::env::current_exe().unwrap();
    let program = tests.parent().unwrap().with_file_name("examples").join(example);
    assert!(
        modified(&program) >= latest_change(example),
        "an example is older than its source: `cargo test -p fenced-lock` builds it, with `--test it` it does not"
    );
    let directory = tempfile::tempdir().unwrap();
    let mut run = Command::new(program);
    run.env("ETCD", shared_endpoint().await).env("REDIS", fresh_database().await);
    run.env("FILE", directory.path().join("file"))
        .env("LOCKS", directory.path())
        .stdin(Stdio::null())
        .kill_on_drop(true);
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
    for fenced in ["fenced_redis", "fenced_file"] {
        let lines = output_of(fenced).await;
        assert_eq!(lines, "the holder writes: true\nan earlier one writes: false\n");
    }
    let lines = output_of("reentry").await;
    let tokens: Vec<_> = lines.lines().map(|line| line.rsplit_once(' ').unwrap().1).collect();
    assert!(tokens.len() == 2 && tokens[0] == tokens[1], "{lines}");
    assert_eq!(output_of("queue").await, "stock-lock is free\n");
    #[cfg(feature = "file")]
    assert_eq!(output_of("one_machine").await, "the report is written, under token 1\n");
}
