//! The laboratory, as its users run it, and what needs a fault or a control, against real servers.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::large_futures, reason = "the stack of a test has room for them")]

mod arena;
mod articles;
mod baselines;
mod bench;
#[cfg(feature = "chaos")]
mod chaos;
mod controls;
mod controls_http;
mod demo;
mod page;
mod store_fence;
#[allow(dead_code, reason = "the service's own tests need more of it")]
#[path = "../../../tests/it/support/mod.rs"]
mod support;
mod watch;
