//! The integration tests: one crate, one module for each area, against real servers that they start
//! themselves.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::large_futures, reason = "the stack of a test has room for them")]

mod docs;
mod http;
mod image;
mod inventory;
mod ops;
mod program;
mod sale;
mod secured;
mod shop;
mod support;
