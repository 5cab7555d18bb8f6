//! The laboratory around the flash sale: it shows what the lock is worth, breaks it, and measures it.
//!
//! - [`demo`]: private servers, the instances, the run, the verdict
//! - [`mod@bench`]: the sale beside others, in rounds
//! - [`watch`]: a sale in the terminal, the counterpart of the page
//! - `chaos`: faults and what must hold all the same; with the feature of this name
//!
//! All but `watch` start the same thing: a `cluster`, and the `load` test on it.

pub mod bench;
#[cfg(feature = "chaos")]
pub mod chaos;
mod cluster;
pub mod demo;
mod error;
mod load;
mod signals;
pub mod watch;

pub use error::LabError;
