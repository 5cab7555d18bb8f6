//! What the terminal, or whoever started the program, tells it.

use std::io;

use rustix::process::{Signal as Number, getpid, kill_process};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What to do.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    End,
    /// Ctrl-Z.
    Suspend,
    /// The terminal has another size.
    Draw,
}

pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    suspend: Signal,
    resize: Signal,
}

impl Signals {
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            suspend: signal(SignalKind::from_raw(Number::TSTP.as_raw()))?,
            resize: signal(SignalKind::window_change())?,
        })
    }

    /// # Cancel safety
    /// No signal is lost.
    pub(super) async fn next(&mut self) -> Order {
        tokio::select! {
            _ = self.interrupt.recv() => Order::End,
            _ = self.terminate.recv() => Order::End,
            _ = self.hangup.recv() => Order::End,
            _ = self.suspend.recv() => Order::Suspend,
            _ = self.resize.recv() => Order::Draw,
        }
    }
}

/// Stops this process until somebody has it go on.
pub(super) fn suspend() -> io::Result<()> {
    Ok(kill_process(getpid(), Number::STOP)?)
}
