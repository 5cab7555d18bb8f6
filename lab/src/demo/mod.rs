//! Everything on this machine: private etcd and Redis, the instances, the run, the verdict.
//!
//! # Layout
//! - [`DemoOptions`], [`run()`]: what can be asked for, and the demo from its beginning to its end
//! - `upkeep`: what becomes of the processes while it serves
//! - `verdict`: what the load test's report means
//! - `screen`: the terminal

mod options;
mod run;
mod screen;
mod upkeep;
mod verdict;

pub use options::DemoOptions;
pub use run::run;
