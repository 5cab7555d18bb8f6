//! Showing an error with every reason behind it.

use std::error::Error;
use std::fmt;

/// Shows an error and then its sources, outermost first: for the log and the terminal, never for a
/// client.
#[derive(Clone, Copy, Debug)]
pub struct Chain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sale::SaleError;

    #[test]
    fn every_source_is_shown() {
        let source = Box::new(std::io::Error::other("connection refused"));
        let error = SaleError::StoreUnavailable { source };
        assert_eq!(Chain(&error).to_string(), "the store does not answer: connection refused");
    }
}
