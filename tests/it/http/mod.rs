//! The HTTP interface.

mod client;
mod routes;
mod server;
