//! The laboratory on top of the demo: bench, arena, fault suite.
//!
//! - [`arena`]: every lock under the same load and the same faults
//! - [`articles`]: the locks of well-known articles, and what goes wrong under each
//! - [`mod@bench`]: the guarded sale beside other guards, in rounds
//! - `chaos`: the fault suite, only in a build with `--cfg fenced_lock_chaos`
//! - [`instance`]: one instance, under other guards, without safeguards, or with faults
//! - [`locks`]: the locks that can guard a sale, and servers for them; `etcd`: the usual ways to lock with etcd
//! - `experiment`, `load`: what all of them use

pub mod arena;
pub mod articles;
pub mod bench;
#[cfg(fenced_lock_chaos)]
pub mod chaos;
mod clients;
mod etcd;
mod experiment;
pub mod instance;
mod load;
#[allow(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "the laboratory is its only user, and says what failed"
)]
pub mod locks;
