//! A program that a test talks to, line by line.

use std::ffi::OsStr;
use std::process::{ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout, Command};

use crate::wait::within;

/// A running program. It is killed when this value is dropped.
#[derive(Debug)]
pub struct Run {
    process: tokio::process::Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

impl Run {
    /// Starts it. Must be called in a Tokio runtime.
    pub fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let input = process.stdin.take();
        let output = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, input, output }
    }

    /// The process id.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.process.id().expect("it runs").cast_signed()).unwrap()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// The next line that it prints.
    pub async fn line(&mut self) -> String {
        let line = within("the program prints a line", self.output.next_line()).await.unwrap();
        line.expect("the program has not ended")
    }

    /// The rest of the next line that begins with `words`.
    pub async fn line_after(&mut self, words: &str) -> String {
        loop {
            if let Some(rest) = self.line().await.strip_prefix(words) {
                return rest.to_owned();
            }
        }
    }

    /// Sends it a line.
    pub async fn send(&mut self, line: &str) {
        let input = self.input.as_mut().expect("its input is open");
        input.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    /// Kills it, and waits for its end.
    pub async fn kill(&mut self) {
        self.process.kill().await.unwrap();
    }

    /// Waits for its end.
    pub async fn ended(&mut self) -> ExitStatus {
        within("the program ends", self.process.wait()).await.unwrap()
    }
}

/// This test binary again, to run the test `worker`, which is ignored otherwise. `behind` is a command in front of it, or empty.
/// A worker that prints an empty line first has its output on separate lines.
pub fn worker(behind: &[&str], worker: &str) -> Command {
    let program = std::env::current_exe().unwrap();
    let mut words = behind.iter().map(OsStr::new).chain([program.as_os_str()]);
    let mut command = Command::new(words.next().unwrap());
    command.args(words).args(["--ignored", "--exact", "--nocapture", worker]);
    command
}
