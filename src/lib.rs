//! A flash sale that sells no unit twice.

pub mod demo;
pub mod health;
pub mod http;
pub mod inventory;
pub mod lock;
pub mod sale;
