//! Signals to a command.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

pub use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// Signals that ask a program to end: Ctrl-C, `kill`, and a closed terminal.
pub const ENDINGS: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];

/// Listens from the moment it is made.
pub struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    pub fn listen(signals: &[Signal]) -> io::Result<Self> {
        let listen =
            |&signal: &Signal| Ok((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?));
        signals.iter().map(listen).collect::<io::Result<_>>().map(Self)
    }

    /// The next one. Cancel safe: one that came is kept for the next call.
    pub async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            let mut all = self.0.iter_mut();
            let come = all.find_map(|(signal, listener)| {
                listener.poll_recv(context).is_ready().then_some(*signal)
            });
            come.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// The exit code that shells give to a process ended by this signal.
pub fn exit_code(signal: Signal) -> u8 {
    u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX)
}
