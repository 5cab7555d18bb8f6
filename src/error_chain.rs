//! An error with its sources.

use std::error::Error;
use std::fmt;

/// Displays an error and its sources, outermost first: for the log and the terminal, never for a client. A source
/// that an error repeats in its own text is shown once.
#[derive(Clone, Copy, Debug)]
pub struct ErrorChain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = self.0.to_string();
        let mut source = self.0.source();
        while let Some(error) = source {
            let text = error.to_string();
            if !shown.contains(&text) {
                shown = format!("{shown}: {text}");
            }
            source = error.source();
        }
        f.write_str(&shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sale::SaleError;

    #[test]
    fn every_source_is_shown() {
        let source = Box::new(std::io::Error::other("connection refused"));
        let error = SaleError::LockUnavailable { source };
        assert_eq!(
            ErrorChain(&error).to_string(),
            "the lock service does not answer or is out of space: nothing was taken, retry later: connection refused"
        );
    }

    #[test]
    fn what_is_repeated_is_shown_once() {
        let source = std::io::Error::other("connection refused");
        let error = std::io::Error::other(SaleError::LockUnavailable { source: Box::new(source) });
        assert_eq!(
            ErrorChain(&error).to_string(),
            "the lock service does not answer or is out of space: nothing was taken, retry later: connection refused"
        );
    }
}
