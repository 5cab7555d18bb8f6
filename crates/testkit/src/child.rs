//! A process that never outlives us.

use std::ffi::OsStr;
use std::io::{self, PipeWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Command;

use super::dir::{GUARDIAN_PATH, OwnedDir};

/// Becomes the program, after leaving a guardian behind.
///
/// The guardian reads a pipe that only we can write to. It gets the end of file when we let go of
/// it, and also when we are gone, whatever ended us; then it asks the program to end, and after
/// the grace it ends it. A line means that the program has ended already: its process id may be
/// somebody else's by now and must be left alone.
///
/// - The pipe moves to descriptor 3 because a shell gives its background jobs an empty stdin.
/// - `$$` is the process id of the shell, also in the subshell, and the program's after `exec`.
/// - Standard output is the hold on the directory: the guardian keeps it to its own end.
/// - `CONT` lets a paused program see the `TERM`.
const SCRIPT: &str = r#"
tenths=$1 log=$2 errors=$3
shift 3
exec 3<&0 </dev/null
(
    trap '' HUP INT TERM
    PATH=$GUARDIAN_PATH
    read -r _ <&3 && exit
    kill -TERM $$
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
exec 3<&- >>"$log"
[ "$errors" = ours ] || exec 2>&1
exec "$@"
"#;

/// How long we wait for a killed process to be gone.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// A running program that is told to end when this value is dropped, and when our process ends,
/// however it ends: SIGTERM first, SIGKILL after the grace.
///
/// It runs in a process group of its own, so that a Ctrl-C in the terminal reaches us alone and we
/// decide in which order things stop. Its standard input is empty, its output goes to the log.
#[derive(Debug)]
pub struct Child {
    process: tokio::process::Child,
    pid: u32,
    /// Closed: the guardian ends the program.
    lifeline: Option<PipeWriter>,
    log: PathBuf,
    grace: Duration,
}

/// How a program is started.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// Where it is.
    pub path: &'a Path,
    /// A directory that stays until the program is gone.
    pub dir: &'a OwnedDir,
    /// Its output is appended to this file.
    pub log: &'a Path,
    /// How long it may take to end when asked to.
    pub grace: Duration,
    /// Picks the variables of our environment that it does not get.
    pub without_env: fn(&str) -> bool,
    /// Its standard error is ours, and not the log: what it says there is for people.
    pub shares_stderr: bool,
}

impl<'a> Program<'a> {
    /// With our whole environment.
    pub fn new(path: &'a Path, dir: &'a OwnedDir, log: &'a Path, grace: Duration) -> Self {
        Self { path, dir, log, grace, without_env: |_| false, shares_stderr: false }
    }

    /// Starts it. Must be called in a Tokio runtime.
    ///
    /// # Errors
    /// When the pipe or the process cannot be made. A program that cannot be executed ends at once
    /// with status 126 or 127, and the reason in the log.
    pub fn start<A: AsRef<OsStr>>(self, args: impl IntoIterator<Item = A>) -> io::Result<Child> {
        let Self { path, dir, log, grace, without_env, shares_stderr } = self;
        let (held, lifeline) = io::pipe()?;
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", SCRIPT, "flash-sale-child"])
            .arg((grace.as_millis().div_ceil(100)).to_string())
            .arg(log)
            .arg(if shares_stderr { "ours" } else { "log" })
            .arg(path)
            .args(args)
            .env("GUARDIAN_PATH", GUARDIAN_PATH)
            .process_group(0)
            .stdin(held)
            .stdout(dir.hold()?)
            .stderr(if shares_stderr { Stdio::inherit() } else { Stdio::null() });
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

    /// How it ended, if it has.
    ///
    /// # Errors
    /// When the system cannot say.
    pub fn exited(&mut self) -> io::Result<Option<ExitStatus>> {
        let status = self.process.try_wait()?;
        if status.is_some() {
            self.dismiss_guardian();
        }
        Ok(status)
    }

    /// Waits until it ends by itself.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    ///
    /// # Errors
    /// When the system cannot say.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.process.wait().await?;
        self.dismiss_guardian();
        Ok(status)
    }

    /// Asks it to end, ends it after the grace, and waits until it is gone.
    ///
    /// # Errors
    /// When it is still there some seconds after the grace.
    pub async fn stop(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.exited()? {
            return Ok(status);
        }
        self.lifeline = None;
        self.gone_within(self.grace + KILL_TIMEOUT).await
    }

    /// Ends it with SIGKILL, and waits until it is gone.
    ///
    /// # Errors
    /// When it is still there after some seconds.
    pub async fn kill(&mut self) -> io::Result<ExitStatus> {
        if self.exited()?.is_none() {
            self.process.start_kill()?;
        }
        self.gone_within(KILL_TIMEOUT).await
    }

    /// Stops it from running at all until [`resume`](Self::resume): SIGSTOP.
    ///
    /// # Errors
    /// When it has ended.
    pub fn pause(&self) -> io::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it run on after [`pause`](Self::pause): SIGCONT.
    ///
    /// # Errors
    /// When it has ended.
    pub fn resume(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Whether it stands still, by our [`pause`](Self::pause) or by its own doing. Looks at `/proc`, and
    /// says no where there is none.
    pub fn is_paused(&self) -> bool {
        // the name before the state may have brackets of its own
        let state = std::fs::read_to_string(format!("/proc/{}/stat", self.pid));
        state
            .is_ok_and(|line| line.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// When it has ended.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        // no id once it was waited for: the number may be somebody else's by then
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
            // the pipe is empty, so this cannot block; a guardian that is gone needs no message
            let _ = lifeline.write_all(b"ended\n");
        }
    }
}
