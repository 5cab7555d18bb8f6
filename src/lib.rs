//! A flash sale that sells no unit twice.

pub mod chain;
pub mod config;
pub mod demo;
pub mod health;
pub mod http;
pub mod inventory;
pub mod lock;
pub mod logging;
pub mod sale;
pub mod secret;
pub mod serve;
mod throttle;
