//! The `chaos` command: injects every fault, repeatedly, while orders are sent, and judges what the
//! clients saw. Then it repeats each fault without the safeguard against it, which must fail.
//!
//! # Layout
//! - `options`: the flags; `suite`: the suite from start to end; `schedule`: the runs, some in parallel
//! - `scenario`: a fault and its controls, as data; `scenarios`: all of them
//! - `run`: one run and its outcome; `scene`: its processes, what a fault does to them, and what was seen
//! - `etcd`, `load`, `flood`: requests past the service, the load test, hostile clients
//! - `results`, `table`: the results as data and as text

mod etcd;
mod flood;
mod load;
mod options;
mod results;
mod run;
mod scenario;
mod scenarios;
mod scene;
mod schedule;
mod suite;
mod table;

pub use options::ChaosOptions;
pub use suite::run;
