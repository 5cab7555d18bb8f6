//! Faults at points of a tenure, and the service without each safeguard.

mod faults;
mod fence;
#[cfg(feature = "chaos")]
mod lock;
mod program;
#[cfg(feature = "chaos")]
mod store;
