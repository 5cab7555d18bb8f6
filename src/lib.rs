//! A flash sale that sells no unit twice.

pub mod chain;
pub mod demo;
pub mod http;
pub mod inventory;
pub mod lock;
pub mod sale;
pub mod secret;
mod throttle;
