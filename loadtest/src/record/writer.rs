//! Writes the file on a thread of its own, so that no buyer waits for a disk.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::sync::mpsc;

use super::{Attempt, EndLine, Line, Setup};
use crate::checker::{History, Order, u64_from};

/// How many attempts may wait to be written: more than a second of the fastest run, at some 100 bytes
/// each. Then the buyers wait, so that nothing is lost.
const QUEUE_LENGTH: usize = 1 << 16;

/// How long the thread sleeps when it has written all: waking it for each attempt would cost more
/// than writing it.
const NAP: Duration = Duration::from_millis(20);

const BUFFER_BYTES: usize = 1 << 18;

/// Takes attempts for the file; waits while too many wait to be written.
pub(crate) type Recorder = mpsc::Sender<Attempt>;

/// The thread that writes the file.
#[derive(Debug)]
pub(crate) struct Writer(JoinHandle<io::Result<BufWriter<File>>>);

impl Writer {
    /// Writes the first line, and starts the thread. It ends when no recorder is left.
    ///
    /// # Errors
    /// The file cannot be written, or the system has no more threads.
    pub(crate) fn start(file: File, setup: &Setup) -> io::Result<(Self, Recorder)> {
        let mut file = BufWriter::with_capacity(BUFFER_BYTES, file);
        write_line(&mut file, &Line::Run(Box::new(setup.clone())))?;
        file.flush()?;
        let (recorder, attempts) = mpsc::channel(QUEUE_LENGTH);
        let thread = thread::Builder::new().name("history".to_owned());
        let thread = thread.spawn(move || write_attempts(file, attempts))?;
        Ok((Self(thread), recorder))
    }

    /// Waits until all attempts are written, which needs all recorders to be gone, and writes the
    /// end, if the run came that far. (Called after the load: waiting costs nothing.)
    ///
    /// # Errors
    /// Something could not be written.
    pub(crate) fn finish(self, history: Option<&History>) -> io::Result<()> {
        let written = self.0.join();
        let mut file =
            written.unwrap_or_else(|_| Err(io::Error::other("the writing thread has failed")))?;
        if let Some(history) = history {
            write_end(&mut file, history)?;
        }
        file.flush()
    }
}

fn write_line(file: &mut BufWriter<File>, line: &Line) -> io::Result<()> {
    serde_json::to_writer(&mut *file, line)?;
    file.write_all(b"\n")
}

#[allow(clippy::disallowed_methods, reason = "the writer has a thread of its own")]
fn write_attempts(
    mut file: BufWriter<File>,
    mut attempts: mpsc::Receiver<Attempt>,
) -> io::Result<BufWriter<File>> {
    while let Some(attempt) = attempts.blocking_recv() {
        write_line(&mut file, &Line::Attempt(attempt))?;
        if attempts.is_empty() {
            // a run that is killed leaves what happened until a moment before
            file.flush()?;
            thread::sleep(NAP);
        }
    }
    Ok(file)
}

/// Writes what was found after the last answer.
fn write_end(file: &mut BufWriter<File>, history: &History) -> io::Result<()> {
    for entry in &history.ledger {
        write_line(file, &Line::Order(entry.clone()))?;
    }
    let there = history.after.iter().map(|(url, state)| (url, Some(state.clone())));
    let gone = history.gone.iter().map(|url| (url, None));
    for (url, state) in there.chain(gone) {
        let instance = history.setup.instances.iter().position(|known| known == url);
        let instance = instance.ok_or_else(|| io::Error::other("an unknown instance"))?;
        write_line(file, &Line::State { instance, state })?;
    }
    write_line(
        file,
        &Line::End(EndLine {
            attempts: history.orders.iter().map(Order::all_attempts).sum(),
            ledger: u64_from(history.ledger.len()),
            orders: history.orders.len(),
            interrupted: history.interrupted,
        }),
    )
}
