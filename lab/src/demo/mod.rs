//! Everything on this machine: private etcd and Redis, the instances, the run, the verdict.
//!
//! # Layout
//! - [`DemoOptions`], [`run()`]: what can be asked for, and the demo from its beginning to its end
//! - `stage`, `instance`: all that it has started, and one instance of the service
//! - `load`, `verdict`: running the load test, and what its report means
//! - `screen`, `signals`: the terminal

mod error;
pub(crate) mod instance;
pub(crate) mod load;
mod options;
mod run;
mod screen;
pub(crate) mod signals;
mod stage;
mod verdict;

pub use error::DemoError;
pub use options::DemoOptions;
pub use run::run;
