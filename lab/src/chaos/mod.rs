//! The `chaos` command: what may break is broken, again and again, while orders are sent; what the
//! clients saw is judged. Then the same without each defence, which must fail.
//!
//! # Layout
//! - [`ChaosOptions`], [`run()`]: what can be asked for, and the suite from its beginning to its end
//! - `schedule`: which run comes when; what is told meanwhile
//! - `scenarios`: the faults, one file for each family
//! - `scenario`: what a scenario is; `run`: one run of it, and its judgement
//! - `scene`, `etcd`: the processes of a run and what can be done to them, and etcd
//! - `load`, `flood`: the clients, and such that mean no good
//! - `evidence`, `results`, `table`: what was seen, as data and for people
//! - `rng`: choices that the seed decides

mod etcd;
mod evidence;
mod flood;
mod load;
mod options;
mod results;
mod rng;
mod run;
mod scenario;
mod scenarios;
mod scene;
mod schedule;
mod suite;
mod table;

pub use options::ChaosOptions;
pub use suite::run;
