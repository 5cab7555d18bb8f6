//! The laboratory around the flash sale: demo, bench, fault suite.
//!
//! - [`arena`]: every lock under the same load and the same faults
//! - [`articles`]: the locks of well-known articles, and what goes wrong under each
//! - [`baselines`]: other ways to guard the sale, to compare with
//! - [`demo`]: private servers, the instances, the run, the verdict
//! - [`mod@bench`]: the sale beside others, in rounds
//! - [`store_fence`]: tokens for a lock that has none
//! - [`watch`]: a sale in the terminal, the counterpart of the page
//! - [`serve`]: one instance of the service, with the page's controls (`controls`)
//! - `chaos`: faults and what must hold all the same; with the feature of this name
//!
//! All but `watch` and `serve` start a `cluster`, and the `load` test on it.

pub mod arena;
pub mod articles;
pub mod baselines;
pub mod bench;
#[cfg(feature = "chaos")]
pub mod chaos;
mod cluster;
mod controls;
pub mod demo;
mod error;
pub mod fault;
mod faulty_lock;
mod load;
mod locks;
pub mod safeguard;
pub mod serve;
mod signals;
pub mod store_fence;
mod verdict;
mod wait;
pub mod watch;
pub mod writer;

pub use error::LabError;
