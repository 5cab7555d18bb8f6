//! Passwords, tokens and addresses that hold one.

use std::path::PathBuf;
use std::{fmt, io};

use constant_time_eq::constant_time_eq;

/// A password, a token or an address that may contain one. `Debug` hides it, and there is no `Display`, so it cannot get into a
/// log by accident.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Box<str>);

impl Secret {
    /// The text, for the one place that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether `candidate` is this text. The time of the comparison depends only on the length.
    pub fn matches(&self, candidate: &[u8]) -> bool {
        constant_time_eq(self.0.as_bytes(), candidate)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

/// The source of a secret. A file is read each time, so that the secret can change while the program runs.
#[derive(Clone, Debug)]
pub enum SecretSource {
    /// In memory.
    Text(Secret),
    /// In the first line of a file, without its line end. A file of tokens may have a second one.
    File(PathBuf),
}

/// The most tokens in a file: the old one and the new one.
const MOST_TOKENS: usize = 2;

impl SecretSource {
    /// The present secret.
    ///
    /// # Errors
    /// If the file cannot be read; [`io::ErrorKind::InvalidData`] if its first line is empty.
    pub fn read(&self) -> io::Result<Secret> {
        let path = match self {
            Self::Text(secret) => return Ok(secret.clone()),
            Self::File(path) => path,
        };
        let text = std::fs::read_to_string(path)?;
        let secret = text.lines().next().map_or("", str::trim);
        if secret.is_empty() {
            let what =
                format!("the first line of {} is empty: it must hold the secret", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(Secret::from(secret))
    }

    /// The present tokens, each in a line of its own: while a token is replaced, the old one and the new one.
    ///
    /// # Errors
    /// If the file cannot be read; [`io::ErrorKind::InvalidData`] if there is no token, or more than two.
    pub fn read_tokens(&self) -> io::Result<Vec<Secret>> {
        let text = match self {
            Self::Text(secret) => secret.clone(),
            Self::File(path) => Secret::from(&*std::fs::read_to_string(path)?),
        };
        let lines = text.expose().lines().map(str::trim).filter(|line| !line.is_empty());
        let tokens: Vec<_> = lines.map(Secret::from).collect();
        let what = match tokens.len() {
            0 => "it is empty: it must hold a token",
            1..=MOST_TOKENS => return Ok(tokens),
            _ => "it holds more than two tokens: only an old and a new one are valid at a time",
        };
        Err(io::Error::new(io::ErrorKind::InvalidData, what))
    }
}
