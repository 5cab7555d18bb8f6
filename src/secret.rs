//! Texts that must not be shown.

use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;
use std::{fmt, io};

/// A password, a token or an address that may hold one. `Debug` does not show it, and there is no
/// `Display`, so that it cannot get into a log by accident.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Box<str>);

impl Secret {
    /// Keeps `text`.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The text, for the one place that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether `candidate` is this text. How long the comparison takes does not tell how much of
    /// the candidate is right.
    pub fn matches(&self, candidate: &[u8]) -> bool {
        let secret = self.0.as_bytes();
        let difference = secret
            .iter()
            .zip(candidate)
            // the optimizer must not find out that the answer is known at the first difference
            .fold(0, |difference, (a, b)| std::hint::black_box(difference | (a ^ b)));
        secret.len() == candidate.len() && difference == 0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl FromStr for Secret {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self::new(text))
    }
}

/// Where a secret is. What stands in a file is read each time that it is needed, so that it can be
/// changed while the program runs.
#[derive(Clone, Debug)]
pub enum SecretSource {
    /// Here.
    Text(Secret),
    /// In the first line of a file; editors put a line end behind it.
    File(PathBuf),
}

impl SecretSource {
    /// The secret as it is now.
    ///
    /// # Errors
    /// When the file cannot be read, or with [`io::ErrorKind::InvalidData`] when its first line is empty.
    pub fn read(&self) -> io::Result<Secret> {
        let path = match self {
            Self::Text(secret) => return Ok(secret.clone()),
            Self::File(path) => path,
        };
        let text = std::fs::read_to_string(path)?;
        match text.lines().next().map(str::trim) {
            None | Some("") => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{} begins with an empty line: it must hold the secret", path.display()),
            )),
            Some(secret) => Ok(Secret::new(secret)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown() {
        assert_eq!(format!("{:?}", Some(Secret::new("s3cret"))), "Some(***)");
    }

    #[test]
    fn only_the_same_text_matches() {
        let secret = Secret::new("s3cret");
        assert!(secret.matches(b"s3cret"));
        for other in ["", "s3cre", "s3cret2", "S3cret", "s3creT"] {
            assert!(!secret.matches(other.as_bytes()), "{other}");
        }
    }
}
