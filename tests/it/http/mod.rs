//! The HTTP interface.

mod access;
mod buyers;
mod changes;
mod cluster;
mod events;
mod example_shop;
pub(crate) mod instance;
mod limits;
mod metrics;
mod openapi;
mod operator;
mod outages;
mod overload;
mod page;
mod readiness;
mod refusals;
mod roll_back;
mod rolling;
mod selling;
mod server;
mod shipped;
