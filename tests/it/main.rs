//! The integration tests: one crate, one module for each area, against real servers that they start
//! themselves.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bench;
mod controls;
mod demo;
mod http;
mod inventory;
mod lock;
mod page;
mod sale;
mod servers;
mod support;
