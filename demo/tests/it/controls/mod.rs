//! Faults at points of a tenure, and the service without each safeguard.

mod faults;
#[cfg(fenced_lock_chaos)]
mod lock;
mod program;
#[cfg(fenced_lock_chaos)]
mod store;
