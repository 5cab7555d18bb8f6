//! The flash sale on one machine: private servers, the instances, the run, the verdict.
//!
//! # Layout
//! - [`DemoOptions`], [`run()`]: the flags, and the whole demo
//! - [`instance`]: one instance of the service, with four guards, and the fence and faults that the control sets
//! - [`control`]: the one process that serves the page, runs sales, and tells the instances what to do
//! - `verdict`: the load test's report in words; `same_site`: who may call
//! - `upkeep`: watches the processes while the demo serves; `screen`: the terminal

#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    reason = "the laboratory is the only other user, and says itself what failed"
)]

pub mod control;
pub mod instance;
mod options;
mod run;
mod same_site;
mod screen;
mod upkeep;
mod verdict;

pub use options::DemoOptions;
pub use run::run;
