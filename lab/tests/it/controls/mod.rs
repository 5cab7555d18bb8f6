//! Faults at points of a tenure, the service without a safeguard, and the ways to compare with.

mod baselines;
mod faults;
#[cfg_attr(not(fenced_lock_chaos), allow(dead_code))]
mod program;
#[cfg(fenced_lock_chaos)]
mod safeguards;
