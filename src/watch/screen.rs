//! Where a sale is shown: in place on a terminal, else line by line.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use humantime::format_rfc3339_seconds;
use tokio::time::Instant;

use super::sale::{Note, Sale, plain};
use super::terminal::Terminal;

/// How often a line is written where there is no terminal; and for how long one that would say that
/// something is not known waits for another that knows.
const LINE_EVERY: Duration = Duration::from_secs(1);

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

struct Lines {
    last: String,
    written_at: Option<Instant>,
    connected_at: Instant,
    /// Of each address, why it was lost, as it was said since the last sale.
    said: BTreeMap<String, String>,
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
            Surface::Lines(Lines {
                last: String::new(),
                written_at: None,
                connected_at: Instant::now(),
                said: BTreeMap::new(),
            })
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
            Surface::Lines(lines) => lines.show(authority, &sale, is_first, &notes),
        }
    }

    /// Says that nobody tells of the sale.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn lost(&mut self, authority: &str, why: String) -> io::Result<()> {
        match &mut self.surface {
            Surface::Terminal(terminal) => terminal.lost(why),
            Surface::Lines(lines) => lines.lost(authority, why),
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

impl Lines {
    fn show(
        &mut self,
        authority: &str,
        sale: &Sale,
        is_first: bool,
        notes: &[Note],
    ) -> io::Result<()> {
        if is_first {
            self.connected_at = Instant::now();
            self.last.clear();
            if !self.said.is_empty() {
                self.said.clear();
                write(SystemTime::now(), &format!("{authority} answers"))?;
            }
        }
        for note in notes {
            let at = Duration::try_from_secs_f64(note.at_ms / 1000.0).unwrap_or_default();
            write(UNIX_EPOCH.checked_add(at).unwrap_or(UNIX_EPOCH), &plain(&note.text))?;
        }
        let is_due = self.written_at.is_none_or(|at| at.elapsed() >= LINE_EVERY);
        let may_wait = sale.is_incomplete() && self.connected_at.elapsed() < LINE_EVERY;
        let line = sale.line();
        if is_due && !may_wait && line != self.last {
            self.written_at = Some(Instant::now());
            write(SystemTime::now(), &line)?;
            self.last = line;
        }
        Ok(())
    }

    fn lost(&mut self, authority: &str, why: String) -> io::Result<()> {
        if self.said.get(authority) == Some(&why) {
            return Ok(());
        }
        write(SystemTime::now(), &format!("{why}; asking again"))?;
        self.said.insert(authority.to_owned(), why);
        Ok(())
    }
}

fn write(at: SystemTime, line: &str) -> io::Result<()> {
    let at = format_rfc3339_seconds(at);
    writeln!(io::stdout(), "{at} {line}")
}
