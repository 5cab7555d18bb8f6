//! The points of a tenure at which a fault can be asked for.

use std::fmt;

/// A point of a tenure, in the order in which it passes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Point {
    /// The lock was granted, and nothing was done under it yet.
    AfterGrant,
    /// What the holder goes by was read, and the batch is about to be written: with the fence, the
    /// script is about to be sent; without it, this is between GET and SET.
    BeforeWrite,
    /// The batch was sent, and its answer was not looked at.
    AfterSend,
    /// Between the stock and the ledger, where these are two commands: without the fence, or without
    /// `atomic-ledger`. Never passed else.
    BetweenWrites,
    /// The store has answered, and no buyer was told yet.
    AfterAnswer,
    /// The buyers were told, and the lock is about to be released or handed over.
    BeforeRelease,
}

impl Point {
    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AfterGrant => "after-grant",
            Self::BeforeWrite => "before-write",
            Self::AfterSend => "after-send",
            Self::BetweenWrites => "between-writes",
            Self::AfterAnswer => "after-answer",
            Self::BeforeRelease => "before-release",
        }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
