//! The HTTP interface.

pub(crate) mod client;
mod instance;
mod outages;
mod overload;
mod refusals;
mod routes;
mod selling;
mod server;
mod shop;
