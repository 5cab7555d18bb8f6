//! The flash sale on one machine: private servers, the instances, the run, the verdict.
//!
//! # Layout
//! - [`DemoOptions`], [`run()`]: the flags, and the whole demo
//! - [`cluster`]: the servers and the instances; [`load`]: the load test on them
//! - [`serve`]: one instance of the service, with other guards and faults; `relay`: passes the page's calls on
//! - [`control`]: the one process that runs sales from the page, and tells the instances what to do
//! - [`locks`], [`baselines`]: what can guard the sale, and other ways to compare with
//! - [`writer`], [`safeguard`], [`fault`]: an instance without a safeguard, or with a fault
//! - [`store_fence`]: tokens for a lock that has none
//! - `upkeep`: watches the processes while it serves; `screen`: the terminal

#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    reason = "the laboratory is the only other user, and says itself what failed"
)]

pub mod baselines;
pub mod cluster;
pub mod control;
pub mod decorated;
pub mod fault;
pub mod load;
pub mod locks;
mod options;
mod program;
mod relay;
mod run;
pub mod safeguard;
mod screen;
pub mod serve;
pub mod signals;
pub mod store_fence;
mod upkeep;
mod verdict;
pub mod writer;

pub use options::DemoOptions;
pub use program::Part;
pub use run::run;
