//! The signals that end the demo.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// A signal that asks us to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// SIGINT: Ctrl-C.
    Interrupt,
    /// SIGTERM: `kill`.
    Terminate,
    /// SIGHUP: the terminal has gone.
    HangUp,
}

impl Ending {
    /// The exit code that shells give to a process that this signal ended.
    pub(crate) fn exit_code(self) -> u8 {
        let number = match self {
            Self::Interrupt => SignalKind::interrupt(),
            Self::Terminate => SignalKind::terminate(),
            Self::HangUp => SignalKind::hangup(),
        };
        u8::try_from(128 + number.as_raw_value()).unwrap_or(u8::MAX)
    }
}

/// Listens to all of them from the moment it is made.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// The next one. Cancel safe: one that came is kept for the next call.
    pub(crate) async fn next(&mut self) -> Ending {
        tokio::select! {
            _ = self.interrupt.recv() => Ending::Interrupt,
            _ = self.terminate.recv() => Ending::Terminate,
            _ = self.hang_up.recv() => Ending::HangUp,
        }
    }
}
