//! The HTTP interface.

pub(crate) mod client;
mod instance;
mod metrics;
mod outages;
mod overload;
mod refusals;
mod roll_back;
mod routes;
mod selling;
mod server;
mod shop;
