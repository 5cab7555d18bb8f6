//! Everything on this machine: private etcd and Redis, the instances, the run, the verdict.
//!
//! # Layout
//! - [`child`]: a process that ends when we end, however we end
//! - [`dir`]: a directory that goes when we end
//! - [`etcd`], [`redis`]: private servers on free ports, with data of their own
//! - [`ports`], [`probe`]: finding a port, asking whether somebody answers there

pub mod child;
pub mod dir;
pub mod etcd;
pub mod ports;
pub mod probe;
pub mod redis;
pub mod server;

pub use child::Child;
pub use dir::OwnedDir;
pub use etcd::{EtcdOptions, PrivateEtcd};
pub use redis::{PrivateRedis, RedisOptions};
pub use server::ServerError;
