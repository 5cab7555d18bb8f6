//! The laboratory on top of the demo: bench, arena, fault suite.
//!
//! - [`arena`]: every lock under the same load and the same faults
//! - [`articles`]: the locks of well-known articles, and what goes wrong under each
//! - [`mod@bench`]: the guarded sale beside other guards, in rounds
//! - `chaos`: the fault suite, only in a build with `--cfg fenced_lock_chaos`
//! - `experiment`: what all of them use

pub mod arena;
pub mod articles;
pub mod bench;
#[cfg(fenced_lock_chaos)]
pub mod chaos;
mod clients;
mod experiment;
mod servers;
