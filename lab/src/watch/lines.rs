//! A sale line by line.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use humantime::format_rfc3339_seconds;
use tokio::time::Instant;

use super::sale::{Note, Sale, plain};

/// The shortest time between lines of the same kind, and how long an incomplete line waits for a complete one.
const LINE_EVERY: Duration = Duration::from_secs(1);

/// A time and a text.
pub(super) type Line = (SystemTime, String);

pub(super) struct Lines {
    last: String,
    written_at: Option<Instant>,
    connected_at: Instant,
    /// By address: the last reason that was written, and when.
    said: BTreeMap<String, (String, Instant)>,
    /// A loss was written, and no answer since.
    is_lost: bool,
    answers_said_at: Option<Instant>,
}

impl Lines {
    pub(super) fn new() -> Self {
        Self {
            last: String::new(),
            written_at: None,
            connected_at: Instant::now(),
            said: BTreeMap::new(),
            is_lost: false,
            answers_said_at: None,
        }
    }

    pub(super) fn show(
        &mut self,
        authority: &str,
        sale: &Sale,
        is_first: bool,
        notes: &[Note],
    ) -> Vec<Line> {
        let mut lines = Vec::new();
        if is_first {
            self.connected_at = Instant::now();
        }
        if self.is_lost && is_due(self.answers_said_at) {
            self.is_lost = false;
            self.answers_said_at = Some(Instant::now());
            self.last.clear();
            lines.push((SystemTime::now(), format!("{authority} answers")));
        }
        for note in notes {
            let at = Duration::try_from_secs_f64(note.at_ms / 1000.0).unwrap_or_default();
            lines.push((UNIX_EPOCH.checked_add(at).unwrap_or(UNIX_EPOCH), plain(&note.text)));
        }
        let may_wait = sale.is_incomplete() && self.connected_at.elapsed() < LINE_EVERY;
        let line = sale.line();
        if is_due(self.written_at) && !may_wait && line != self.last {
            self.written_at = Some(Instant::now());
            lines.push((SystemTime::now(), line.clone()));
            self.last = line;
        }
        lines
    }

    /// A loss that is skipped now is written after the next attempt, if it persists.
    pub(super) fn lost(&mut self, authority: &str, why: String) -> Option<Line> {
        if let Some((said, said_at)) = self.said.get(authority) {
            let has_answered = self.answers_said_at.is_some_and(|at| at > *said_at);
            if !is_due(Some(*said_at)) || (*said == why && !has_answered) {
                return None;
            }
        }
        self.is_lost = true;
        let line = format!("{why}; asking again");
        self.said.insert(authority.to_owned(), (why, Instant::now()));
        Some((SystemTime::now(), line))
    }
}

/// Whether a line may follow one of the same kind.
fn is_due(last: Option<Instant>) -> bool {
    last.is_none_or(|at| at.elapsed() >= LINE_EVERY)
}

/// # Errors
/// Standard output takes no more.
pub(super) fn write(lines: &[Line]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    for (at, line) in lines {
        writeln!(stdout, "{} {line}", format_rfc3339_seconds(*at))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::super::sale::tests::sale;
    use super::*;

    fn texts(lines: impl IntoIterator<Item = Line>) -> Vec<String> {
        lines.into_iter().map(|(_, text)| text).collect()
    }

    /// Goal: an instance that answers and hangs up repeatedly is written at most once a second, and the final
    /// state is written.
    #[tokio::test(start_paused = true)]
    async fn who_comes_and_goes_is_told_once_a_second() {
        let mut lines = Lines::new();
        let (mut answers, mut losses) = (0, 0);
        for _ in 0..100 {
            let shown = texts(lines.show("a", &sale(5, 0), true, &[]));
            answers += shown.iter().filter(|text| *text == "a answers").count();
            advance(Duration::from_millis(50)).await;
            losses += texts(lines.lost("a", "a has gone".to_owned())).len();
            advance(Duration::from_millis(50)).await;
        }
        assert!((2..=10).contains(&answers), "{answers}");
        assert!((2..=10).contains(&losses), "{losses}");
        advance(LINE_EVERY).await;
        lines.lost("a", "a is away".to_owned());
        assert!(lines.is_lost);
        assert_eq!(texts(lines.lost("a", "a is away".to_owned())), [""; 0]);
        advance(LINE_EVERY).await;
        assert_eq!(texts(lines.lost("a", "a is away".to_owned())), [""; 0]);
        let shown = texts(lines.show("a", &sale(5, 0), true, &[]));
        assert_eq!(shown, ["a answers".to_owned(), sale(5, 0).line()]);
    }

    /// Goal: the answer of one address is written at once, although another one is away.
    #[tokio::test(start_paused = true)]
    async fn the_next_is_told_to_answer_at_once() {
        let mut lines = Lines::new();
        assert_eq!(texts(lines.lost("a", "no a".to_owned())), ["no a; asking again"]);
        assert_eq!(texts(lines.lost("b", "no b".to_owned())), ["no b; asking again"]);
        assert_eq!(texts(lines.show("c", &sale(5, 0), true, &[]))[0], "c answers");
    }
}
