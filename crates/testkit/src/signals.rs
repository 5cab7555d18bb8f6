//! Signals to a program.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;
use std::time::Duration;

use futures_util::future::select_all;
pub use rustix::process::Signal;
use rustix::process::{getpid, kill_process};
use tokio::signal::unix::{self, SignalKind};

/// Signals that ask a program to end: Ctrl-C, `kill`, and a closed terminal.
const ENDINGS: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];

/// More time than the kernel takes to stop all threads of this process, also on a busy machine: 50 ms were not enough.
const STOPPING: Duration = Duration::from_millis(500);

/// Listens for the signals that ask a program to end.
pub struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Listens from now on.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn listen() -> io::Result<Self> {
        let listen =
            |signal: Signal| Ok((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?));
        ENDINGS.into_iter().map(listen).collect::<io::Result<_>>().map(Self)
    }

    /// The next signal. Cancel safe: a signal that arrives meanwhile is kept for the next call.
    pub async fn next(&mut self) -> Signal {
        let all = self.0.iter_mut().map(|(signal, listener)| {
            Box::pin(async move {
                listener.recv().await;
                *signal
            })
        });
        select_all(all).await.0
    }
}

/// The exit code that shells give to a process ended by this signal.
pub fn exit_code(signal: Signal) -> u8 {
    u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX)
}

/// Stops this process (SIGSTOP) for whole seconds. A shell stops it and wakes it up: its own timers stand still. The calling thread
/// waits for the end of the shell, so it cannot go on before the stop, however late that takes effect.
pub fn stop_for(time: Duration) {
    let (seconds, own) = (time.as_millis().div_ceil(1000), std::process::id());
    let script = format!("kill -STOP {own}; sleep {seconds}; kill -CONT {own}");
    let mut shell = std::process::Command::new("/bin/sh");
    shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // Ctrl-C in the terminal must not end it
    if let Err(error) = shell.args(["-c", &script]).process_group(0).status() {
        eprintln!("not stopped: no shell can be started: {error}");
    }
}

/// Stops this process until SIGCONT.
#[allow(clippy::disallowed_methods, reason = "nothing may run until the signal takes effect")]
pub fn stop() {
    signal_self(Signal::STOP);
    // another thread may have got the signal, so this thread must not go on yet
    std::thread::sleep(STOPPING);
}

/// Ends this process with SIGKILL.
pub fn kill_now() -> ! {
    signal_self(Signal::KILL);
    std::process::abort()
}

fn signal_self(signal: Signal) {
    kill_process(getpid(), signal).expect("a process may signal itself");
}
