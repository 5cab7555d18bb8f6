//! Private servers and what harms them, on this machine: for the tests of all packages, and for the
//! laboratory.
//!
//! - [`etcd`], [`redis`]: servers on free ports, with data of their own, plain or secured
//! - [`certificates`]: what a secured server needs
//! - [`child`]: a process that ends when we end, however we end
//! - [`dir`]: a directory that goes when we end
//! - [`ports`], [`probe`]: finding a port, asking whether a server answers there
//! - [`proxy`]: what networks do
//!
//! For tests, which panic where something is not as they expect:
//! - [`shared`]: servers that many tests use, with a namespace for each
//! - [`client`]: HTTP, byte by byte
//! - [`copies`]: a Redis that comes back with older data
//! - [`flags`]: the flags of a program, without its environment variables
//! - [`wait`], [`processes`]: what comes about, and what is left

pub mod certificates;
pub mod child;
pub mod client;
pub mod copies;
pub mod dir;
pub mod etcd;
pub mod flags;
pub mod ports;
pub mod probe;
pub mod processes;
pub mod proxy;
pub mod redis;
pub mod server;
pub mod shared;
pub mod wait;

pub use certificates::Certificates;
pub use child::Child;
pub use dir::OwnedDir;
pub use etcd::{AuthTokens, EtcdOptions, PrivateEtcd};
pub use proxy::{Proxy, Way};
pub use redis::{PrivateRedis, RedisOptions};
pub use server::ServerError;

/// The name of the lock of the service's default item, unless it is given another one.
pub const LOCK_NAME: &str = "stock-lock";
