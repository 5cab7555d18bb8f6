//! A sale in place on a terminal, on the alternate screen.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{self, Write as _};

use rustix::termios::tcgetwinsize;
use tokio::time::Instant;

use super::layout::{INDENT, age, fit, wrap};
use super::sale::{Line, Note, Sale, plain};

/// The alternate screen without a cursor, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Move to the first row; erase the rest of a row, and of the screen.
const HOME: &str = "\x1b[H";
const ERASE_ROW: &str = "\x1b[K";
const ERASE_BELOW: &str = "\x1b[J";

const RED: &str = "\x1b[1;31m";
const PLAIN: &str = "\x1b[0m";

/// Labels of alerts.
const LOST: &str = "LOST";
const WRONG: &str = "WRONG";

/// If the terminal does not report its size.
const USUAL_SIZE: (usize, usize) = (80, 24);

/// How many notes are kept: more than a screen shows.
const NOTES: usize = 200;

pub(super) struct Terminal {
    colour: bool,
    title: String,
    sale: Option<Sale>,
    heard_at: Instant,
    lost: Option<String>,
    notes: VecDeque<Note>,
    /// The most rows that each line has taken at this width: it keeps them, so that the lines below do not
    /// jump.
    heights: Vec<usize>,
    width: usize,
    is_entered: bool,
}

impl Terminal {
    pub(super) fn new(title: String) -> Self {
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            colour: !no_colour,
            title,
            sale: None,
            heard_at: Instant::now(),
            lost: None,
            notes: VecDeque::new(),
            heights: Vec::new(),
            width: 0,
            is_entered: false,
        }
    }

    pub(super) fn show(
        &mut self,
        title: String,
        mut sale: Sale,
        new_notes: Vec<Note>,
    ) -> io::Result<()> {
        sale.notes.clear();
        self.title = title;
        self.sale = Some(sale);
        self.heard_at = Instant::now();
        self.lost = None;
        self.notes.extend(new_notes);
        let surplus = self.notes.len().saturating_sub(NOTES);
        self.notes.drain(..surplus);
        self.draw()
    }

    pub(super) fn lost(&mut self, why: String) -> io::Result<()> {
        self.lost = Some(why);
        self.draw()
    }

    /// Draws over the old picture in one write, so that nothing flickers.
    pub(super) fn draw(&mut self) -> io::Result<()> {
        let size = tcgetwinsize(io::stdout()).ok();
        let size = size.map(|size| (usize::from(size.ws_col), usize::from(size.ws_row)));
        let (columns, rows) = size.filter(|size| size.0 > 0 && size.1 > 0).unwrap_or(USUAL_SIZE);
        let mut screen = String::new();
        if !self.is_entered {
            screen.push_str(ENTER);
            self.is_entered = true;
        }
        screen.push_str(HOME);
        // after a full row, erasing would delete its last character
        let mut picture = self.picture(columns.saturating_sub(1).max(1), rows);
        picture.truncate(rows);
        for (number, row) in picture.iter().enumerate() {
            screen.push_str(if number == 0 { "" } else { "\r\n" });
            screen.push_str(row);
            screen.push_str(ERASE_ROW);
        }
        screen.push_str(ERASE_BELOW);
        write(&screen)
    }

    /// Restores the terminal.
    pub(super) fn leave(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.is_entered) { write(LEAVE) } else { Ok(()) }
    }

    /// Restores the terminal, and prints the last state.
    pub(super) fn end(&mut self) -> io::Result<()> {
        if !self.is_entered {
            return Ok(());
        }
        self.leave()?;
        let mut last = String::new();
        for line in self.lines() {
            let _ = writeln!(last, "{:<INDENT$}{}", line.label, line.text);
        }
        write(&last)
    }

    fn lines(&self) -> Vec<Line> {
        let mut lines = vec![Line { label: "sale", text: self.title.clone() }];
        lines.extend(self.sale.iter().flat_map(Sale::lines));
        if let Some(why) = &self.lost {
            let mut text = format!("{why}; asking again");
            if self.sale.is_some() {
                let age = self.heard_at.elapsed().as_secs();
                let _ = write!(text, "; the numbers are {age} s old");
            }
            lines.push(Line { label: LOST, text });
        }
        let troubles = self.sale.iter().flat_map(Sale::troubles);
        lines.extend(troubles.map(|text| Line { label: WRONG, text }));
        lines
    }

    fn picture(&mut self, columns: usize, rows: usize) -> Vec<String> {
        if self.width != columns {
            self.width = columns;
            self.heights.clear();
        }
        let blocks = self.lines().into_iter().enumerate().map(|(number, line)| {
            let mut block = wrap(line.label, &line.text, columns);
            let is_wrong = [LOST, WRONG].contains(&line.label);
            if is_wrong && self.colour {
                block[0] = block[0].replacen(line.label, &format!("{RED}{}{PLAIN}", line.label), 1);
            } else if !is_wrong {
                // alerts come last, and keep no rows
                if self.heights.len() <= number {
                    self.heights.push(0);
                }
                self.heights[number] = self.heights[number].max(block.len());
                block.resize(self.heights[number], String::new());
            }
            (is_wrong, block)
        });
        let mut picture = fit(blocks.collect(), rows);
        picture.push(String::new());
        let room = rows.saturating_sub(picture.len());
        let now_ms = self.now_ms();
        // the newest first, as far as they fit
        let notes = self
            .notes
            .iter()
            .rev()
            .flat_map(|note| wrap(&age(now_ms - note.at_ms), &plain(&note.text), columns));
        picture.extend(notes.take(room));
        picture
    }

    /// The current time by the instance's clock.
    fn now_ms(&self) -> f64 {
        let told = self.sale.as_ref().map_or(0.0, |sale| sale.now_ms);
        told + self.heard_at.elapsed().as_secs_f64() * 1000.0
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // also after a panic; a failure cannot be reported
        drop(self.leave());
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}
