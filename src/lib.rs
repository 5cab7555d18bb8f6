//! A flash sale that sells no unit twice: N units of an item, far more buyers than units, several instances, one shared stock.
//!
//! An instance takes a lock that all instances share (a queue of keys in etcd). Under it one script in Redis takes the units of
//! the orders, with the lock's fencing token. A holder that was paused beyond its lease does not know that it lost the lock; the
//! store refuses its token.
//!
//! # Layout
//!
//! Imports go one way: `serve` and `http` use `sale`, `sale` uses `fenced-lock` and `inventory`.
//!
//! - [`fenced_lock`]: the reentrant distributed lock, a package of its own. It uses nothing else of the workspace.
//! - [`inventory`]: the stock in Redis. It knows only the token of the lock.
//! - [`sale`]: sells the stock under the lock.
//! - [`peers`]: sends orders to the instance that holds the lock, and takes those of other instances.
//! - [`http`]: the interface of one instance.
//! - [`serve`]: the `serve` command: connect, run, stop. [`config`] has its flags.
//! - [`recover`]: the `recover` command, for an operator after etcd or Redis was replaced or restored.
//! - [`health`]: the `health` command, for containers.
//! - [`operator`]: the `sale` command, an operator's calls from a shell.
//! - [`error_chain`], [`logging`], [`safeguard`], [`secret`]: small modules for several of these.
//!
//! Around it, in separate packages: `loadtest`, which uses only HTTP; `demo`; and `lab`, with the bench, the arena and the fault
//! suite.
//!
//! # Cargo features
//!
//! - `compression` (default): compressed answers.
//! - `tls` (default): TLS to etcd and Redis.
//! - `manual` (default): the commands `completions` and `man`.
//! - `otel`: spans for a collector of OpenTelemetry.
//!
//! With `RUSTFLAGS="--cfg fenced_lock_chaos"` a fault suite can switch off the [safeguards](safeguard) of the HTTP server, of the
//! inventory and of the lock, to show what harm each one prevents. **Never build a service for a real sale with it.**

mod backoff;
pub mod config;
pub mod error_chain;
pub mod health;
pub mod http;
pub mod inventory;
pub mod logging;
pub mod operator;
pub mod peers;
mod process;
pub mod recover;
pub mod safeguard;
pub mod sale;
pub mod secret;
pub mod serve;
mod throttle;
