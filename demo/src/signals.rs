//! Signals to a program.

use std::io;

use futures_util::future::select_all;
pub use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// Signals that ask a program to end: Ctrl-C, `kill`, and a closed terminal.
const ENDINGS: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];

/// Listens for the signals that ask a program to end.
pub struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    pub fn listen() -> io::Result<Self> {
        let listen =
            |signal: Signal| Ok((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?));
        ENDINGS.into_iter().map(listen).collect::<io::Result<_>>().map(Self)
    }

    /// The next signal. Cancel safe: a signal that came meanwhile is kept for the next call.
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
