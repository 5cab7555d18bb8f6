//! An error with its sources.

use std::error::Error;
use std::fmt;

use fenced_lock::{BackendError, LockError};

/// Displays an error and its sources, outermost first: for the log and the terminal, never for a client. Shows a source once,
/// even if other errors repeat its text.
#[derive(Clone, Copy, Debug)]
pub struct ErrorChain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = String::new();
        for error in std::iter::successors(Some(self.0), |error| (*error).source()) {
            let text = format!("{error:#}");
            if !shown.contains(&text) {
                let colon = if shown.is_empty() { "" } else { ": " };
                shown = format!("{shown}{colon}{text}");
            }
            // its text includes its sources, in better words than theirs
            if error.is::<LockError>() || error.is::<BackendError>() {
                break;
            }
        }
        f.write_str(&shown)
    }
}
