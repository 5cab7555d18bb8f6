//! The laboratory, as its users run it, against real servers.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::large_futures, reason = "the stack of a test has room for them")]

mod arena;
mod articles;
mod bench;
#[cfg(feature = "chaos")]
mod chaos;
