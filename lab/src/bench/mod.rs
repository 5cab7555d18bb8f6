//! The `bench` command: how fast the guarded sale is, beside other ways to guard it and beside no
//! guard at all, in one run on this machine.
//!
//! Absolute figures are the machine's. Contenders take turns in rounds on the same etcd, the same Redis
//! and the same number of connections, and ratios are computed within a round, so that they hold
//! elsewhere as well.
//!
//! # Layout
//! - [`BenchOptions`], [`run()`]: what can be asked for, and the run from its beginning to its end
//! - `contender`, `scale`: who takes part, and how much of everything
//! - `load`: one load on a contender's instances
//! - `contest`, `sweep`, `memory`, `etcd_cost`: the measures
//! - `machine`: what this machine is
//! - `results`, `ratios`, `stats`: what was found, as data
//! - `table`, `markdown`, `chart`, `svg`: what was found, for people

mod chart;
mod contender;
mod contest;
mod etcd_cost;
mod load;
mod machine;
pub(crate) mod markdown;
mod memory;
mod options;
mod ratios;
mod results;
mod run;
mod scale;
mod stats;
mod svg;
mod sweep;
mod table;

pub use contender::Contender;
pub use options::{BenchOptions, Measure};
pub use run::run;
