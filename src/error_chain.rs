//! An error with its sources.

use std::error::Error;
use std::fmt;

use fenced_lock::{BackendError, LockError};

/// Displays an error and its sources, outermost first: for the log and the terminal, never for a client. Leaves out a source
/// whose text another error contains.
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
            // this error's text contains its sources, in better words
            if error.is::<LockError>() || error.is::<BackendError>() {
                break;
            }
        }
        f.write_str(&shown)
    }
}
