//! A child process that never outlives this process.

use std::ffi::OsStr;
use std::io::{self, PipeWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Command;

use super::dir::{GUARDIAN_PATH, OwnedDir};

/// Leaves a guardian behind, and becomes the program.
///
/// The guardian reads a pipe that only our process can write to. When the pipe ends, because we close it or end in any way, the
/// guardian asks the program to end by the signal, and kills it after the grace. A line in the pipe means that the program has
/// already ended. Its process id may then be reused, so the guardian must leave it alone.
///
/// - The pipe moves to descriptor 3 because a shell gives its background jobs an empty stdin.
/// - `$$` is the process id of the shell, even in the subshell, and of the program after `exec`.
/// - Standard output is the pipe that keeps the directory. The guardian holds it until it ends.
/// - `CONT` lets a paused program see the signal.
const SCRIPT: &str = r#"
tenths=$1 log=$2 output=$3 signal=$4
shift 4
exec 3<&0 </dev/null
(
    trap '' HUP INT TERM
    PATH=$GUARDIAN_PATH
    read -r _ <&3 && exit
    kill -"$signal" $$
    kill -CONT $$
    while kill -0 $$; do
        if [ "$tenths" -le 0 ]; then
            kill -KILL $$
            exit
        fi
        tenths=$((tenths - 1))
        sleep 0.1
    done
) 2>/dev/null &
unset GUARDIAN_PATH
exec 3<&- 2>>"$log" >>"$output"
exec "$@"
"#;

/// How long a killed process may take to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// A running program. When this value is dropped, or our process ends in any way, the program gets its end signal (by default
/// SIGTERM), and after the grace SIGKILL.
///
/// It has its own process group, so a Ctrl-C in the terminal reaches only us. Its input is empty; its output goes to the log.
#[derive(Debug)]
pub struct Child {
    process: tokio::process::Child,
    pid: u32,
    /// Closing it makes the guardian end the program.
    lifeline: Option<PipeWriter>,
    log: PathBuf,
    grace: Duration,
}

/// The ids of a user and its group that run a program; `None` for this process' own.
pub type User = Option<(u32, u32)>;

/// How a program is started.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// The program's path.
    pub path: &'a Path,
    /// A directory that stays until the program is gone.
    pub dir: &'a OwnedDir,
    /// The program's standard error is appended to this file.
    pub log: &'a Path,
    /// The program's standard output is appended to this file; `None` for the log.
    pub output: Option<&'a Path>,
    /// How long the program may take to end when it is asked to.
    pub grace: Duration,
    /// The name of the signal that asks the program to end.
    pub end_signal: &'a str,
    /// Selects the variables of this process' environment to leave out.
    pub without_env: fn(&str) -> bool,
    /// The user that runs it.
    pub user: User,
}

impl<'a> Program<'a> {
    /// A program with the whole environment of this process, which ends at SIGTERM.
    pub fn new(path: &'a Path, dir: &'a OwnedDir, log: &'a Path, grace: Duration) -> Self {
        let end_signal = "TERM";
        Self { path, dir, log, output: None, grace, end_signal, without_env: |_| false, user: None }
    }

    /// Starts it. Must be called in a Tokio runtime.
    ///
    /// # Errors
    /// When the pipe or the process cannot be made. A program that cannot be executed ends at once
    /// with status 126 or 127, and the reason in the log.
    pub fn start<A: AsRef<OsStr>>(self, args: impl IntoIterator<Item = A>) -> io::Result<Child> {
        let Self { path, dir, log, output, grace, end_signal, without_env, user } = self;
        let (held, lifeline) = io::pipe()?;
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", SCRIPT, "flash-sale-child"])
            .arg((grace.as_millis().div_ceil(100)).to_string())
            .arg(log)
            .arg(output.unwrap_or(log))
            .arg(end_signal)
            .arg(path)
            .args(args)
            .env("GUARDIAN_PATH", GUARDIAN_PATH)
            .process_group(0)
            .stdin(held)
            .stdout(dir.hold()?)
            .stderr(Stdio::null());
        if let Some((user, group)) = user {
            command.uid(user).gid(group);
        }
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(without_env) {
                command.env_remove(name);
            }
        }
        let process = command.spawn()?;
        let pid = process.id().ok_or_else(|| io::Error::other("the process has no id"))?;
        Ok(Child { process, pid, lifeline: Some(lifeline), log: log.to_owned(), grace })
    }
}

impl Child {
    /// The process id of the program itself.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Where its output goes.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Its exit status, if it has ended.
    ///
    /// # Errors
    /// When the system call fails.
    pub(crate) fn exited(&mut self) -> io::Result<Option<ExitStatus>> {
        let status = self.process.try_wait()?;
        if status.is_some() {
            self.dismiss_guardian();
        }
        Ok(status)
    }

    /// Waits for its end.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    ///
    /// # Errors
    /// When the system call fails.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.process.wait().await?;
        self.dismiss_guardian();
        Ok(status)
    }

    /// Asks it to end, kills it after the grace, and waits for its end.
    ///
    /// # Errors
    /// When it still runs some seconds after the grace.
    pub async fn stop(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.exited()? {
            return Ok(status);
        }
        self.lifeline = None;
        self.gone_within(self.grace + KILL_TIMEOUT).await
    }

    /// Kills it with SIGKILL, and waits for its end.
    ///
    /// # Errors
    /// When it still runs after some seconds.
    pub async fn kill(&mut self) -> io::Result<ExitStatus> {
        if self.exited()?.is_none() {
            self.process.start_kill()?;
        }
        self.gone_within(KILL_TIMEOUT).await
    }

    /// Stops it with SIGSTOP until [`resume`](Self::resume). With a `/proc`, all its threads stand still when this call
    /// returns. Without, a thread may run on for a moment on a busy machine.
    ///
    /// # Errors
    /// When it has ended.
    pub fn pause(&self) -> io::Result<()> {
        self.signal(Signal::STOP)?;
        for _ in 0..10_000 {
            if self.is_paused() {
                break;
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Continues it after [`pause`](Self::pause), with SIGCONT.
    ///
    /// # Errors
    /// When it has ended.
    pub fn resume(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Whether it is stopped, by [`pause`](Self::pause) or by itself. Reads `/proc`; `false` without it.
    pub fn is_paused(&self) -> bool {
        // the name before the state may contain brackets
        let state = std::fs::read_to_string(format!("/proc/{}/stat", self.pid));
        state
            .is_ok_and(|line| line.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// When it has ended.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        // a process that was waited for has no id any more: the number may be reused
        let pid = self.process.id().and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
        let pid = pid.ok_or_else(|| io::Error::other("the process has ended"))?;
        Ok(kill_process(pid, signal)?)
    }

    async fn gone_within(&mut self, limit: Duration) -> io::Result<ExitStatus> {
        tokio::time::timeout(limit, self.wait()).await.unwrap_or_else(|_| {
            let pid = self.pid;
            Err(io::Error::new(io::ErrorKind::TimedOut, format!("process {pid} does not end")))
        })
    }

    fn dismiss_guardian(&mut self) {
        if let Some(mut lifeline) = self.lifeline.take() {
            // the pipe is empty, so this cannot block; if the guardian is gone, nobody needs the message
            let _ = lifeline.write_all(b"ended\n");
        }
    }
}
