//! Where a sale is shown: in place on a terminal, else line by line.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::time::Instant;

use super::sale::{Sale, plain};

/// How often a line is written where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Screen {
    /// What is drawn in place; `None` without a terminal.
    bar: Option<ProgressBar>,
    last_line: String,
    written_at: Option<Instant>,
    last_note: u64,
}

impl Screen {
    pub(super) fn new() -> Self {
        let bar = io::stdout().is_terminal().then(|| {
            let style =
                ProgressStyle::with_template("{msg}").expect("the template is written here");
            ProgressBar::with_draw_target(None, ProgressDrawTarget::stdout()).with_style(style)
        });
        Self { bar, last_line: String::new(), written_at: None, last_note: 0 }
    }

    /// Shows the sale as it is now.
    ///
    /// # Errors
    /// Nobody reads it.
    pub(super) fn show(&mut self, sale: &Sale) -> io::Result<()> {
        // an instance that was started again counts anew
        if sale.notes.iter().any(|note| note.id < self.last_note) {
            self.last_note = 0;
        }
        for note in &sale.notes {
            if note.id > self.last_note {
                self.last_note = note.id;
                self.say(&plain(&note.text))?;
            }
        }
        if let Some(bar) = &self.bar {
            bar.set_message(sale.lines().join("\n"));
            bar.tick();
            return Ok(());
        }
        let line = sale.line();
        let is_due = self.written_at.is_none_or(|at| at.elapsed() >= LINE_EVERY);
        if is_due && line != self.last_line {
            self.written_at = Some(Instant::now());
            writeln!(io::stdout(), "{line}")?;
            self.last_line = line;
        }
        Ok(())
    }

    /// Writes a line above what is drawn.
    ///
    /// # Errors
    /// Nobody reads it.
    pub(super) fn say(&self, line: &str) -> io::Result<()> {
        match &self.bar {
            Some(bar) => {
                bar.println(line);
                Ok(())
            }
            None => writeln!(io::stdout(), "{line}"),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            // what was seen last stays
            bar.abandon();
        }
    }
}
