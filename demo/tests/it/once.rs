//! The demo as its users run it: verdicts, error messages, and nothing left behind.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use testkit::PrivateZooKeeper;
use testkit::ports;
use testkit::ports::{PortTaken, on_free_ports, reserve};
use testkit::{
    processes::processes,
    wait::{DEADLINE, eventually},
};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use crate::launch::{self, PROGRAM};

/// A demo of two instances on ports of its own, whose temporary files are all in one directory.
struct Demo {
    process: Child,
    stdout: Lines<BufReader<ChildStdout>>,
    said: String,
    temp: TempDir,
    port: u16,
}

/// Where the second instance listens, beyond the first one.
const SECOND: u16 = 10;

fn two_free_ports() -> u16 {
    reserve(&[0, SECOND])
}

impl Demo {
    fn start(args: &[&str]) -> Self {
        Self::start_at(two_free_ports(), args, |_| {})
    }

    fn start_at(port: u16, args: &[&str], change: impl FnOnce(&mut Command)) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let mut command = launch::program(args);
        command.args(["--port", &port.to_string()]);
        let stderr = std::fs::File::create(temp.path().join("stderr")).unwrap();
        command.env("TMPDIR", temp.path()).stdout(Stdio::piped()).stderr(stderr);
        change(&mut command);
        let mut process = command.spawn().unwrap();
        let stdout = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, stdout, said: String::new(), temp, port }
    }

    fn stderr(&self) -> String {
        std::fs::read_to_string(self.temp.path().join("stderr")).unwrap()
    }

    fn signal(&self, signal: Signal) {
        launch::signal(&self.process, signal);
    }

    /// Reads on until a line contains `text`.
    async fn until_it_says(&mut self, text: &str) -> Result<(), PortTaken> {
        loop {
            let line = timeout(DEADLINE, self.stdout.next_line()).await.expect("it says something");
            let Some(line) = line.unwrap() else {
                self.look_for_a_taken_port(&[0, SECOND])?;
                panic!("it never said {text:?}, but {}{}", self.said, self.stderr());
            };
            self.said.extend([line.as_str(), "\n"]);
            if line.contains(text) {
                return Ok(());
            }
        }
    }

    /// Whether another program was faster than an instance.
    fn look_for_a_taken_port(&self, offsets: &[u16]) -> Result<(), PortTaken> {
        let stderr = self.stderr();
        let is_taken = |port| {
            stderr.contains(&format!("port {port} is taken:"))
                || stderr
                    .contains(&format!("cannot listen on 127.0.0.1:{port}: the address is in use"))
        };
        let mut ports = offsets.iter().map(|offset| self.port + offset);
        if ports.any(is_taken) { Err(PortTaken) } else { Ok(()) }
    }

    /// Waits for its end.
    async fn end(&mut self) -> Result<ExitStatus, PortTaken> {
        let status = self.end_anyhow().await;
        self.look_for_a_taken_port(&[0, SECOND])?;
        Ok(status)
    }

    async fn end_anyhow(&mut self) -> ExitStatus {
        while let Some(line) = timeout(DEADLINE, self.stdout.next_line()).await.unwrap().unwrap() {
            self.said.extend([line.as_str(), "\n"]);
        }
        timeout(DEADLINE, self.process.wait()).await.expect("it ends").unwrap()
    }

    fn is_everything_gone(&self) -> bool {
        let entries = std::fs::read_dir(self.temp.path()).unwrap();
        // the file that we made for its standard error
        let files = entries.filter(|entry| entry.as_ref().unwrap().file_name() != "stderr").count();
        let server_ports = self.said.lines().filter_map(|line| {
            let (_, rest) = line.split_once(" answers on 127.0.0.1:")?;
            rest.split(' ').next()?.parse().ok()
        });
        let mut ports = [self.port, self.port + SECOND].into_iter().chain(server_ports);
        files == 0
            && ports.all(ports::is_free)
            && processes(&self.temp.path().to_string_lossy()).is_empty()
    }

    /// For an orderly end, which waits until nothing is left.
    fn assert_everything_is_gone(&self) {
        let path = self.temp.path().to_string_lossy();
        assert!(self.is_everything_gone(), "{}{:?}", self.said, processes(&path));
    }
}

/// How a demo ended that left nothing behind, and what it said.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    said: String,
    stderr: String,
}

impl Ended {
    /// What it said, in one line.
    fn words(&self) -> String {
        self.said.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

/// Runs the demo with these flags to its end.
async fn ended(args: &[&str]) -> Ended {
    ended_with(args, |_| {}).await
}

/// The same with a change of its command.
async fn ended_with(args: &[&str], change: impl Fn(&mut Command)) -> Ended {
    on_free_ports(async || {
        let mut demo = Demo::start_at(two_free_ports(), args, &change);
        let code = demo.end().await?.code();
        demo.assert_everything_is_gone();
        Ok(Ended { code, stderr: demo.stderr(), said: demo.said })
    })
    .await
}

/// Goal: the first promise of the project, with its numbers.
#[tokio::test]
async fn once_passes() {
    let demo = ended(&["--once"]).await;
    assert_eq!(demo.code, Some(0), "{demo:?}");
    let verdict = "PASS 300 units, 500 buyers, 2 instances. 300 of 300 sold, 200 told sold out: no unit \
                   was sold twice.";
    assert!(demo.words().contains(verdict), "{demo:?}");
    assert!(demo.said.lines().all(|line| line.chars().count() <= 80), "{demo:?}");
    assert!(!demo.said.contains('\x1b'), "colour is for terminals");
}

/// Goal: the demo shows why the lock is there, and why it has to be a distributed one.
#[tokio::test]
async fn without_a_lock_or_with_a_local_one_it_oversells_and_says_so() {
    for lock in ["no-lock", "local"] {
        let demo = ended(&["--once", "--lock", lock]).await;
        assert_eq!(demo.code, Some(1), "{demo:?}");
        let said = demo.words();
        let (_, after) = said.split_once("FAIL 300 units, 500 buyers, 2 instances. ").unwrap();
        let sold: u64 = after.split(' ').next().unwrap().parse().unwrap();
        assert!(sold > 300);
        let told =
            format!("{sold} sold of 300: {} too many. That is what happens without", sold - 300);
        assert!(after.starts_with(&told), "{said}");
    }
}

/// Goal: what is right passes, whatever guards it: the ways to compare with, and a local lock where one
/// instance is all there is.
#[tokio::test]
async fn other_guards_pass_where_they_are_right() {
    for (lock, instances) in
        [("etcd-recipe", "2"), ("etcd-rpc", "2"), ("atomic-script", "2"), ("local", "1")]
    {
        let sale = ["--requests", "60", "--stock", "40", "--instances", instances];
        let demo = ended(&[&["--once", "--lock", lock], &sale[..]].concat()).await;
        assert_eq!(demo.code, Some(0), "{lock}: {demo:?}");
        assert!(demo.said.contains("40 sold, 20 told sold out"), "{lock}: {demo:?}");
    }
}

/// Goal: it serves until Ctrl-C, `kill`, or the end of its terminal, and leaves nothing then.
#[tokio::test]
async fn signals_leave_nothing() {
    on_free_ports(async || {
        for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
            let mut demo = Demo::start(&[]);
            demo.until_it_says("Serving until Ctrl-C.").await?;
            assert!(!demo.is_everything_gone());
            demo.signal(signal);
            let status = demo.end().await?;
            assert_eq!(status.code(), Some(0), "{}{}", demo.said, demo.stderr());
            assert!(demo.said.contains("Everything is stopped and removed."), "{}", demo.said);
            demo.assert_everything_is_gone();
        }
        Ok(())
    })
    .await;
}

/// Goal: a signal that comes while things are being started is as good as one that comes later.
#[tokio::test]
async fn signal_before_the_verdict_leaves_nothing() {
    on_free_ports(async || {
        for first_words in ["starting", "etcd answers", "load test"] {
            let mut demo = Demo::start(&["--once"]);
            demo.until_it_says(first_words).await?;
            demo.signal(Signal::TERM);
            let status = demo.end().await?;
            assert_eq!(status.code(), Some(143), "{first_words}: {}{}", demo.said, demo.stderr());
            demo.assert_everything_is_gone();
        }
        Ok(())
    })
    .await;
}

/// Goal: two signals in a row leave nothing either.
#[tokio::test]
async fn second_signal_leaves_nothing() {
    on_free_ports(async || {
        let mut demo = Demo::start(&[]);
        demo.until_it_says("Serving until Ctrl-C.").await?;
        demo.signal(Signal::INT);
        demo.until_it_says("Stopping").await?;
        demo.signal(Signal::INT);
        demo.end().await?;
        demo.assert_everything_is_gone();
        Ok(())
    })
    .await;
}

/// Goal: the end that it cannot notice.
#[tokio::test]
async fn kill_leaves_nothing() {
    on_free_ports(async || {
        let mut demo = Demo::start(&[]);
        demo.until_it_says("Serving until Ctrl-C.").await?;
        assert!(!demo.is_everything_gone());
        demo.signal(Signal::KILL);
        demo.process.wait().await.unwrap();
        eventually("nothing is left", async || demo.is_everything_gone()).await;
        Ok(())
    })
    .await;
}

/// Goal: an instance that dies is reported, and the other one goes on selling.
#[tokio::test]
async fn dead_instance_is_reported() {
    on_free_ports(async || {
        let mut demo = Demo::start(&[]);
        demo.until_it_says("Serving until Ctrl-C.").await?;
        let listen = format!("--listen=127.0.0.1:{}", demo.port);
        // its guardian is a shell that has the same arguments
        let mut found = processes(&listen);
        found.retain(|(_, command)| command.starts_with(PROGRAM));
        assert_eq!(found.len(), 1, "{found:?}");
        kill_process(Pid::from_raw(found[0].0).unwrap(), Signal::KILL).unwrap();
        demo.until_it_says(&format!("instance {} has ended", demo.port)).await?;
        let answer = testkit::probe::http(hyper::Method::GET, demo.port + SECOND, "/readyz", "");
        assert_eq!(answer.await.unwrap().0, 200);
        demo.signal(Signal::INT);
        assert_eq!(demo.end().await?.code(), Some(0));
        demo.assert_everything_is_gone();
        Ok(())
    })
    .await;
}

/// Goal: a taken port is reported before anything is started.
#[tokio::test]
async fn a_taken_port_is_reported() {
    on_free_ports(async || {
        let port = two_free_ports();
        let listener = std::net::TcpListener::bind(("127.0.0.1", port + SECOND));
        let listener = listener.map_err(|_| PortTaken)?;
        let mut demo = Demo::start_at(port, &["--once"], |_| {});
        let status = demo.end_anyhow().await;
        demo.look_for_a_taken_port(&[0])?;
        let message = format!(
            "port {} is taken: stop what listens there or choose another with --port",
            port + SECOND
        );
        assert!(demo.stderr().contains(&message), "{}", demo.stderr());
        assert_eq!((status.code(), demo.said.as_str()), (Some(2), ""));
        drop(listener);
        demo.assert_everything_is_gone();
        Ok(())
    })
    .await;
}

/// Goal: a whole sale over mutual TLS with users, judged as any other, also without a fence and a lock,
/// which need more of the store.
#[tokio::test]
async fn secured_sale() {
    // a claim for each order is slow
    let few = ["--requests", "60", "--stock", "40"];
    for (lock, code, sale) in [("etcd", 0, &[][..]), ("etcd-recipe", 0, &few), ("no-lock", 1, &[])]
    {
        let demo = ended(&[&["--secure", "--once", "--lock", lock], sale].concat()).await;
        assert_eq!(demo.code, Some(code), "{lock}: {demo:?}");
        assert!(demo.said.contains("mutual TLS and users"), "{demo:?}");
    }
}

/// Goal: a sale under each other lock is right, and needs no etcd. Method: what should be etcd ends at once.
#[tokio::test]
async fn other_locks_sell_without_etcd() {
    let (zookeeper, postgres) =
        (PrivateZooKeeper::is_installed(), testkit::postgres::is_installed());
    let locks = [
        ("redis", true),
        ("redlock", true),
        ("file", true),
        ("zookeeper", zookeeper),
        ("postgres", postgres),
        ("postgres-advisory", postgres),
        ("postgres-row", postgres),
    ];
    for (lock, _) in locks.into_iter().filter(|(_, is_installed)| *is_installed) {
        let demo = ended_with(&["--once", "--lock", lock], without_etcd).await;
        assert_eq!(demo.code, Some(0), "{lock}: {demo:?}");
        let fence = if lock == "redlock" { "the store's fence" } else { "the lock's fence" };
        assert!(demo.said.contains(fence), "{demo:?}");
    }
}

fn without_etcd(command: &mut Command) {
    command.env("FLASH_SALE_ETCD", "/bin/false");
}

/// Goal: with two locks, the demo runs a sale under each, prints both verdicts, and leaves nothing of either.
#[tokio::test]
async fn two_locks_sell_one_after_the_other() {
    on_free_ports(async || {
        let args = ["--once", "--lock", "redis", "--beside", "file"];
        let port = reserve(&[0, SECOND, 2 * SECOND, 3 * SECOND]);
        let mut demo = Demo::start_at(port, &args, without_etcd);
        let status = demo.end_anyhow().await;
        demo.look_for_a_taken_port(&[0, SECOND, 2 * SECOND, 3 * SECOND])?;
        assert_eq!(status.code(), Some(0), "{}{}", demo.said, demo.stderr());
        let said = demo.said.split_whitespace().collect::<Vec<_>>().join(" ");
        for lock in ["the lock in Redis", "the lock in a directory"] {
            let verdict = format!("{lock}, the lock's fence. 300 of 300 sold");
            assert!(said.contains(&verdict), "{said}");
        }
        assert_eq!(said.matches("PASS").count(), 2, "{said}");
        assert!((2..4).all(|n| ports::is_free(port + n * SECOND)));
        demo.assert_everything_is_gone();
        Ok(())
    })
    .await;
}

/// Goal: two locks that cannot stand side by side are refused before anything is started.
#[tokio::test]
async fn wrong_pairs_of_locks_are_explained() {
    for (lock, beside, message) in [
        ("redis", "redis", "redis is given twice: choose another lock with --beside"),
        (
            "etcd",
            "no-lock",
            "choose two of etcd, redis, redlock, postgres, postgres-advisory, postgres-row, zookeeper, file",
        ),
    ] {
        let mut demo = Demo::start(&["--once", "--lock", lock, "--beside", beside]);
        assert_eq!(demo.end_anyhow().await.code(), Some(2), "{}", demo.said);
        assert!(demo.stderr().contains(message), "{}", demo.stderr());
        assert_eq!(demo.said, "");
        demo.assert_everything_is_gone();
    }
}

/// Goal: a fence that the lock does not have is refused, with those that can be chosen.
#[tokio::test]
async fn a_lock_without_tokens_has_no_fence_of_its_own() {
    let demo = ended(&["--once", "--lock", "redlock", "--fence", "lock"]).await;
    assert_eq!(demo.code, Some(2), "{demo:?}");
    assert!(demo.stderr.contains("choose --fence store or none"), "{demo:?}");
}

/// Goal: without etcd, the message says how to install it.
#[tokio::test]
async fn a_missing_etcd_is_reported() {
    let empty = tempfile::tempdir().unwrap();
    let demo = ended_with(&["--once"], |command| {
        command.env("PATH", empty.path());
    });
    let demo = demo.await;
    assert_eq!(demo.code, Some(2), "{demo:?}");
    for words in ["is not installed", "make setup", "apt-get install", "dnf", "brew"] {
        assert!(demo.stderr.contains(words), "{demo:?}");
    }
}

/// Goal: a failure half-way is reported with its cause, and all processes are gone. Method: a Redis
/// that does not start, beside the real etcd.
#[tokio::test]
async fn failure_half_way_leaves_nothing() {
    let programs = tempfile::tempdir().unwrap();
    let path = std::env::var_os("PATH").unwrap();
    let etcd = std::env::split_paths(&path).map(|dir| dir.join("etcd")).find(|etcd| etcd.is_file());
    std::os::unix::fs::symlink(etcd.unwrap(), programs.path().join("etcd")).unwrap();
    executable(&programs.path().join("redis-server"), "echo the disk is on fire; exit 3");
    let demo = ended_with(&["--once"], |command| {
        command.env("PATH", programs.path());
    });
    let demo = demo.await;
    assert_eq!(demo.code, Some(2), "{demo:?}");
    for words in ["Redis ended before it answered", "exit status: 3", "the disk is on fire"] {
        assert!(demo.stderr.contains(words), "{demo:?}");
    }
}

fn executable(path: &Path, script: &str) {
    std::fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}
