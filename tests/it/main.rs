//! The integration tests: one crate, one module for each area, against real servers that they start
//! themselves.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::large_futures, reason = "the stack of a test has room for them")]

mod bench;
#[cfg(feature = "chaos")]
mod chaos;
mod controls;
mod demo;
mod http;
mod inventory;
mod page;
mod sale;
mod secured;
mod support;
mod watch;
