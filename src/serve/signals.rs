//! The signals that stop a process.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

/// A SIGINT this soon after the first signal may be its echo: Ctrl-C reaches all programs of a terminal, and
/// some pass it on.
const ECHO: Duration = Duration::from_secs(1);

/// Handles SIGTERM, SIGINT and SIGHUP.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// None if it is ignored, as under `nohup`: then the process outlives its terminal.
    hang_up: Option<Signal>,
}

impl Signals {
    /// Installs the handlers: the signals no longer end the process by themselves.
    pub(super) fn new() -> io::Result<Self> {
        let hang_up = (!ignores_hang_up()).then(|| signal(SignalKind::hangup()));
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: hang_up.transpose()?,
        })
    }

    /// Waits for the next signal and returns its name.
    ///
    /// # Cancel safety
    /// A signal between two calls is kept.
    pub(super) async fn next(&mut self) -> &'static str {
        let hang_up = async {
            match &mut self.hang_up {
                Some(hang_up) => hang_up.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = hang_up => "SIGHUP",
        }
    }

    /// Waits for a SIGINT that comes more than a second from now: the user does not want to wait for the end.
    pub(super) async fn second_interrupt(&mut self) {
        let echo_ends = Instant::now() + ECHO;
        loop {
            let signal = self.next().await;
            if signal == "SIGINT" && Instant::now() >= echo_ends {
                return;
            }
            tracing::info!("{signal}: stopping already");
        }
    }
}

/// Whether SIGHUP is ignored. Reads `/proc`; false without it.
fn ignores_hang_up() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // the lowest bit is signal 1, SIGHUP
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|m| m & 1 == 1)
}
