//! The laboratory on top of the demo: bench, arena, fault suite.
//!
//! - [`arena`]: every lock under the same load and the same faults
//! - [`articles`]: the locks of well-known articles, and what goes wrong under each
//! - [`mod@bench`]: the sale beside others, in rounds
//! - `experiment`: what these have in common
//! - `chaos`: faults and what must hold all the same; with `--cfg fenced_lock_chaos`

pub mod arena;
pub mod articles;
pub mod bench;
#[cfg(fenced_lock_chaos)]
pub mod chaos;
mod clients;
mod experiment;
mod servers;
