//! Signals from the terminal, or from the process that started the program.

use std::io;
use std::time::Duration;

use rustix::process::{Signal as Number, getpid, kill_process};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;

/// Longer than the kernel takes to stop all threads of this process.
const STOPPING: Duration = Duration::from_millis(50);

/// What to do.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    End,
    /// The terminal has gone away.
    Hangup,
    /// Ctrl-Z.
    Suspend,
    /// The terminal has another size.
    Draw,
}

pub(super) struct Signals {
    interrupt: Signal,
    quit: Signal,
    terminate: Signal,
    hangup: Signal,
    suspend: Signal,
    resize: Signal,
}

impl Signals {
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
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
            _ = self.quit.recv() => Order::End,
            _ = self.terminate.recv() => Order::End,
            _ = self.hangup.recv() => Order::Hangup,
            _ = self.suspend.recv() => Order::Suspend,
            _ = self.resize.recv() => Order::Draw,
        }
    }
}

/// Stops this process until it is told to go on, if there is a shell to do so: else it goes on by itself.
pub(super) async fn suspend() -> io::Result<()> {
    // nothing here catches it, and unlike SIGSTOP it does not stop who has no shell to continue it
    kill_process(getpid(), Number::TTOU)?;
    // another thread may have been given the signal, so this one must not draw yet
    sleep(STOPPING).await;
    Ok(())
}
