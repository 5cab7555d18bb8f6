//! A reentrant distributed lock with fencing tokens.

mod token;

pub use token::{ClusterId, Token};
