//! Everything on this machine: private etcd and Redis, the instances, the run, the verdict.
//!
//! # Layout
//! - [`DemoOptions`], [`run()`]: the flags, and the whole demo
//! - `upkeep`: watches the processes while it serves
//! - `screen`: the terminal

mod options;
mod run;
mod screen;
mod upkeep;

pub use options::DemoOptions;
pub use run::run;
