//! The laboratory around the flash sale: it shows what the lock is worth, breaks it, and measures it.
//!
//! - [`baselines`]: other ways to guard the sale, to compare with
//! - [`demo`]: private servers, the instances, the run, the verdict
//! - [`mod@bench`]: the sale beside others, in rounds
//! - [`watch`]: a sale in the terminal, the counterpart of the page
//! - [`serve`]: one instance of the service, with the page's controls (`controls`)
//! - `chaos`: faults and what must hold all the same; with the feature of this name
//!
//! `chaos` uses `bench` and `demo`, `bench` uses `demo`.

pub mod baselines;
pub mod bench;
#[cfg(feature = "chaos")]
pub mod chaos;
mod controls;
pub mod demo;
pub mod serve;
pub mod watch;
pub mod writer;

/// The command by which the laboratory runs the load test: as a process of its own.
pub const LOADTEST: &str = "loadtest";
