//! The program `demo`, started by a test.

use std::process::{ExitStatus, Stdio};

use axum::http::Method;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use testkit::ports::{is_free, reserve};
use testkit::probe;
use testkit::processes::processes;
use testkit::wait::{eventually, within};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_demo");

/// The program without the settings of the environment. It ends with the test.
pub(crate) fn program(args: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FLASH_SALE_") {
            command.env_remove(name);
        }
    }
    command.args(args).stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// Starts `demo serve` or `demo control` on this port, and waits until it is ready.
pub(crate) async fn start(command: &str, port: u16, flags: &[&str]) -> Child {
    let listen = format!("127.0.0.1:{port}");
    let mut program = program(&[&[command, "--listen", &listen], flags].concat());
    let child = program.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until_ok(port, if command == "serve" { "/readyz" } else { "/healthz" }).await;
    child
}

/// Waits until the answer is 200.
pub(crate) async fn until_ok(port: u16, path: &str) {
    eventually(&format!("{path} answers on port {port}"), async || {
        let answer = probe::http(Method::GET, port, path, "").await;
        answer.is_ok_and(|(status, _)| status.as_u16() == 200)
    })
    .await;
}

/// Starts a sale of the default item at the instance on this port.
pub(crate) async fn sell(port: u16, stock: u64) {
    let body = format!("{{\"stock\":{stock}}}");
    let answer = probe::http(Method::PUT, port, "/stock", body).await.unwrap();
    assert_eq!(answer.0, 200, "{}", answer.1);
}

pub(crate) fn signal(child: &Child, signal: Signal) {
    let pid = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
    kill_process(pid.expect("it runs"), signal).unwrap();
}

/// Waits until the process is stopped.
pub(crate) async fn until_stopped(child: &Child) {
    let stat = format!("/proc/{}/stat", child.id().expect("it runs"));
    eventually("the program is stopped", async || {
        let stat = std::fs::read_to_string(&stat).unwrap();
        // the name before it may have any characters
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    })
    .await;
}

/// The distance of the second instance's port from the first one's.
pub(crate) const SECOND: u16 = 10;

/// The distances of all ports from the first instance's port: the two instances and the page.
pub(crate) const ALL: [u16; 3] = [0, SECOND, 20];

/// A demo of two instances, whose temporary files are all in one directory. It ends with this value.
pub(crate) struct Demo {
    process: Child,
    stdout: Lines<BufReader<ChildStdout>>,
    pub(crate) said: String,
    temp: TempDir,
    pub(crate) port: u16,
}

impl Demo {
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_at(reserve(&ALL), args, |_| {})
    }

    /// The same, after its first sale is over.
    pub(crate) async fn serving(args: &[&str]) -> Self {
        let mut demo = Self::start(args);
        demo.until_it_says("Serving until Ctrl-C.").await;
        demo
    }

    pub(crate) fn start_at(port: u16, args: &[&str], change: impl FnOnce(&mut Command)) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let mut command = program(args);
        command.args(["--port", &port.to_string()]);
        let stderr = std::fs::File::create(temp.path().join("stderr")).unwrap();
        command.env("TMPDIR", temp.path()).stdout(Stdio::piped()).stderr(stderr);
        change(&mut command);
        let mut process = command.spawn().unwrap();
        let stdout = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, stdout, said: String::new(), temp, port }
    }

    pub(crate) fn stderr(&self) -> String {
        std::fs::read_to_string(self.temp.path().join("stderr")).unwrap()
    }

    pub(crate) fn signal(&self, sent: Signal) {
        signal(&self.process, sent);
    }

    /// The next line of output; `None` after its end.
    async fn line(&mut self) -> Option<String> {
        let line = within("it says something", self.stdout.next_line()).await.unwrap();
        self.said.extend(line.iter().flat_map(|line| [line.as_str(), "\n"]));
        line
    }

    /// Reads on until a line contains `text`.
    pub(crate) async fn until_it_says(&mut self, text: &str) {
        while let Some(line) = self.line().await {
            if line.contains(text) {
                return;
            }
        }
        panic!("it never said {text:?}, but {}{}", self.said, self.stderr());
    }

    /// Waits for its end.
    pub(crate) async fn end(&mut self) -> ExitStatus {
        while self.line().await.is_some() {}
        within("it ends", self.process.wait()).await.unwrap()
    }

    pub(crate) fn is_everything_gone(&self) -> bool {
        let entries = std::fs::read_dir(self.temp.path()).unwrap();
        // without the file that this test made for its standard error
        let files = entries.filter(|entry| entry.as_ref().unwrap().file_name() != "stderr").count();
        let server_ports = self.said.lines().filter_map(|line| {
            let (_, rest) = line.split_once(" answers on 127.0.0.1:")?;
            rest.split(' ').next()?.parse().ok()
        });
        let mut ports = ALL.into_iter().map(|offset| self.port + offset).chain(server_ports);
        files == 0
            && ports.all(is_free)
            && processes(&self.temp.path().to_string_lossy()).is_empty()
    }

    /// Checks that nothing is left after an orderly end.
    pub(crate) fn assert_everything_is_gone(&self) {
        let path = self.temp.path().to_string_lossy();
        assert!(self.is_everything_gone(), "{}{:?}", self.said, processes(&path));
    }
}
