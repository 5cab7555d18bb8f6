//! The `bench` command: compares the guarded sale with other guards and with no guard on this machine.
//!
//! Contenders take turns in rounds on the same etcd, the same Redis and the same number of connections. Ratios
//! are computed within a round, so that they hold on other machines as well.
//!
//! # Layout
//! - [`BenchOptions`], [`run()`]: the flags, and the whole run
//! - `contender`, `scale`: the contenders, and the sizes of the loads
//! - `load`: one load on a contender's instances
//! - `contest`, `sweep`, `distance`, `memory`, `etcd_cost`: the measures
//! - `machine`: a description of this machine
//! - `results`, `ratios`, `stats`: the results as data
//! - `table`, `markdown`, `chart`, `svg`: the results as text and pictures

mod contender;
mod contest;
mod distance;
mod etcd_cost;
mod load;
mod memory;
mod options;
mod ratios;
mod results;
mod run;
mod scale;
mod sweep;
mod table;

pub use contender::Contender;
pub use options::{BenchOptions, Measure};
pub use run::run;
