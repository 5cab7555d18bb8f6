//! Shows a sale: in place on a terminal, else line by line.

use std::io::{self, IsTerminal as _};

use super::lines::{self, Lines};
use super::sale::{Note, Sale, plain};
use super::terminal::Terminal;

pub(super) struct Screen {
    surface: Surface,
    item: String,
    shown: Shown,
}

/// The newest note that was shown.
struct Shown {
    last_id: u64,
    last_ms: f64,
}

enum Surface {
    Terminal(Box<Terminal>),
    Lines(Lines),
}

impl Screen {
    pub(super) fn new(item: &str) -> Self {
        let item = plain(item);
        // a dumb terminal has no cursor commands
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        let surface = if io::stdout().is_terminal() && !is_dumb {
            Surface::Terminal(Box::new(Terminal::new(format!("{item}: not known yet"))))
        } else {
            Surface::Lines(Lines::new())
        };
        Self { surface, item, shown: Shown::NOTHING }
    }

    /// Shows the current sale and the new notes. The notes of the first message on a connection are history,
    /// and may have been shown before.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn show(
        &mut self,
        authority: &str,
        mut sale: Sale,
        is_first: bool,
    ) -> io::Result<()> {
        let notes = self.shown.new_of(std::mem::take(&mut sale.notes), is_first);
        match &mut self.surface {
            Surface::Terminal(terminal) => {
                let title = format!("{} at {authority}", self.item);
                terminal.show(title, sale, notes)
            }
            Surface::Lines(lines) => lines::write(&lines.show(authority, &sale, is_first, &notes)),
        }
    }

    /// Shows that no instance answers.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn lost(&mut self, authority: &str, why: String) -> io::Result<()> {
        match &mut self.surface {
            Surface::Terminal(terminal) => terminal.lost(why),
            Surface::Lines(lines) => lines::write(lines.lost(authority, why).as_slice()),
        }
    }

    fn terminal(&mut self) -> Option<&mut Terminal> {
        match &mut self.surface {
            Surface::Terminal(terminal) => Some(terminal),
            Surface::Lines(_) => None,
        }
    }

    /// Draws again: the size has changed, or time has passed.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn draw(&mut self) -> io::Result<()> {
        self.terminal().map_or(Ok(()), Terminal::draw)
    }

    /// Restores the terminal until the next draw.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn leave(&mut self) -> io::Result<()> {
        self.terminal().map_or(Ok(()), Terminal::leave)
    }

    /// Restores the terminal, and prints the last state.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn end(&mut self) -> io::Result<()> {
        self.terminal().map_or(Ok(()), Terminal::end)
    }
}

impl Shown {
    const NOTHING: Self = Self { last_id: 0, last_ms: f64::NEG_INFINITY };

    /// The notes that are new; they count as shown from now on.
    fn new_of(&mut self, mut notes: Vec<Note>, is_first: bool) -> Vec<Note> {
        let Self { last_id, last_ms } = *self;
        if is_first {
            // another instance, or the same started again, counts its notes anew
            self.last_id = 0;
        }
        for note in &notes {
            self.last_id = self.last_id.max(note.id);
            self.last_ms = self.last_ms.max(note.at_ms);
        }
        notes.retain(|note| if is_first { note.at_ms > last_ms } else { note.id > last_id });
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notes(ids: std::ops::RangeInclusive<u32>) -> Vec<Note> {
        let note = |id: u32| Note {
            id: id.into(),
            at_ms: f64::from(id) * 10.0,
            text: format!("note {id}"),
        };
        ids.map(note).collect()
    }

    /// Goal: each note is shown once, also when a new connection sends the history again.
    #[test]
    fn each_note_is_shown_once() {
        let mut shown = Shown::NOTHING;
        let mut new_of = |ids, is_first| -> Vec<u64> {
            shown.new_of(notes(ids), is_first).iter().map(|note| note.id).collect()
        };
        assert_eq!(new_of(1..=3, true), [1, 2, 3]);
        assert_eq!(new_of(1..=4, false), [4]);
        assert_eq!(new_of(1..=4, true), [0; 0]);
        assert_eq!(new_of(1..=4, false), [0; 0]);
        assert_eq!(new_of(1..=5, false), [5]);
        assert_eq!(new_of(1..=6, true), [6]);
        assert_eq!(new_of(1..=6, false), [0; 0]);
    }
}
