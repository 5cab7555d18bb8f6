//! The demo, as its users run it, against real servers.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::large_futures, reason = "the stack of a test has room for them")]

mod controls_http;
mod launch;
mod once;
mod page;
#[allow(dead_code, reason = "the service's own tests need more of it")]
#[path = "../../../tests/it/support/mod.rs"]
mod support;
