//! The controls: faults at points of a tenure, and the service without each of its defences.

mod faults;
mod fence;
#[cfg(feature = "chaos")]
mod lock;
mod program;
#[cfg(feature = "chaos")]
mod store;
