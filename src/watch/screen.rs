//! Where a sale is shown: in place on a terminal, else line by line.

use std::io::{self, IsTerminal as _};

use super::lines::{self, Lines};
use super::sale::{Sale, plain};
use super::terminal::Terminal;

pub(super) struct Screen {
    surface: Surface,
    item: String,
    last_note: u64,
    last_note_ms: f64,
}

enum Surface {
    Terminal(Box<Terminal>),
    Lines(Lines),
}

impl Screen {
    pub(super) fn new(item: &str) -> Self {
        let item = plain(item);
        // a dumb terminal takes no commands
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        let surface = if io::stdout().is_terminal() && !is_dumb {
            Surface::Terminal(Box::new(Terminal::new(format!(
                "{item}: nothing is known of it yet"
            ))))
        } else {
            Surface::Lines(Lines::new())
        };
        Self { surface, item, last_note: 0, last_note_ms: f64::NEG_INFINITY }
    }

    /// Shows the sale as it is now, and what has happened. The notes of the first message on a connection
    /// are history, of which some may have been shown.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn show(
        &mut self,
        authority: &str,
        mut sale: Sale,
        is_first: bool,
    ) -> io::Result<()> {
        let mut notes = std::mem::take(&mut sale.notes);
        let (last, last_ms) = (self.last_note, self.last_note_ms);
        // another instance, or the same started again, counts its notes anew
        notes.retain(|note| if is_first { note.at_ms > last_ms } else { note.id > last });
        if is_first {
            self.last_note = 0;
        }
        for note in &notes {
            self.last_note = self.last_note.max(note.id);
            self.last_note_ms = self.last_note_ms.max(note.at_ms);
        }
        match &mut self.surface {
            Surface::Terminal(terminal) => {
                let title = format!("{} at {authority}", self.item);
                terminal.show(title, sale, notes)
            }
            Surface::Lines(lines) => lines::write(&lines.show(authority, &sale, is_first, &notes)),
        }
    }

    /// Says that nobody tells of the sale.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn lost(&mut self, authority: &str, why: String) -> io::Result<()> {
        match &mut self.surface {
            Surface::Terminal(terminal) => terminal.lost(why),
            Surface::Lines(lines) => lines::write(lines.lost(authority, why).as_slice()),
        }
    }

    /// Draws the same again: the terminal has another size, or time has passed.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn draw(&mut self) -> io::Result<()> {
        match &mut self.surface {
            Surface::Terminal(terminal) => terminal.draw(),
            Surface::Lines(_) => Ok(()),
        }
    }

    /// Gives the terminal back, until it is drawn on again.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn leave(&mut self) -> io::Result<()> {
        match &mut self.surface {
            Surface::Terminal(terminal) => terminal.leave(),
            Surface::Lines(_) => Ok(()),
        }
    }

    /// Gives the terminal back, with what was seen last.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn end(&mut self) -> io::Result<()> {
        match &mut self.surface {
            Surface::Terminal(terminal) => terminal.end(),
            Surface::Lines(_) => Ok(()),
        }
    }
}
