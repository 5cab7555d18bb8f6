//! Secrets: passwords, tokens, and addresses with a password.

use std::path::PathBuf;
use std::{fmt, io};

use constant_time_eq::constant_time_eq;

use crate::http::MAX_HEADER_BYTES;

/// A password, a token or an address that may contain one. `Debug` hides it, and there is no `Display`, so it does not get into a
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
    /// In the first non-empty line of a file. A file of tokens may have a second one.
    File(PathBuf),
}

/// The most tokens in a file: the old one and the new one.
const MOST_TOKENS: usize = 2;

impl SecretSource {
    /// The present secret.
    ///
    /// # Errors
    /// If the file cannot be read; [`io::ErrorKind::InvalidData`] if it is empty.
    pub fn read(&self) -> io::Result<Secret> {
        let path = match self {
            Self::Text(secret) => return Ok(secret.clone()),
            Self::File(path) => path,
        };
        let text = std::fs::read_to_string(path)?;
        lines(&text).next().map(Secret::from).ok_or_else(|| {
            let what = format!("{} is empty: it must hold the secret", path.display());
            io::Error::new(io::ErrorKind::InvalidData, what)
        })
    }

    /// The present tokens, each in a line of its own: an old and a new one while a token is replaced.
    ///
    /// # Errors
    /// If the file cannot be read; [`io::ErrorKind::InvalidData`] if there is no token, more than two, or an invalid one.
    pub fn read_tokens(&self) -> io::Result<Vec<Secret>> {
        let text = match self {
            Self::Text(secret) => secret.clone(),
            Self::File(path) => Secret::from(&*std::fs::read_to_string(path)?),
        };
        let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        let tokens = lines(text.expose()).map(|line| token(line).map_err(invalid));
        let tokens = tokens.collect::<io::Result<Vec<_>>>()?;
        let what = match tokens.len() {
            0 => "it is empty: it must hold a token",
            1..=MOST_TOKENS => return Ok(tokens),
            _ => "it holds more than two tokens: only an old and a new one are valid at a time",
        };
        Err(invalid(what.to_owned()))
    }
}

/// The lines that are not empty.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty())
}

/// The longest token, in bytes: it must leave room for the other headers of a request.
const MAX_TOKEN: usize = MAX_HEADER_BYTES - 1024;

/// Refuses an empty text, so that an empty variable is no token, and a text that is none, such as a comment.
pub(crate) fn token(text: &str) -> Result<Secret, String> {
    match text.trim() {
        "" => Err("a token has at least one character".to_owned()),
        token if token.contains(char::is_whitespace) => {
            Err("a token has no spaces: a file has one in a line, and no comments".to_owned())
        }
        token if token.len() <= MAX_TOKEN => Ok(Secret::from(token)),
        token => Err(format!(
            "a token has at most {MAX_TOKEN} bytes, or no request could carry it: this one has {}",
            token.len()
        )),
    }
}
