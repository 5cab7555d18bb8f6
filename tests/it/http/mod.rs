//! The HTTP interface.

mod client;
mod instance;
mod outages;
mod overload;
mod refusals;
mod roll_back;
mod routes;
mod selling;
mod server;
mod shop;
