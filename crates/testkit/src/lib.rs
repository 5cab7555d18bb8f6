//! Private servers, processes and faulty networks on this machine, for the tests of all packages and for the
//! laboratory.
//!
//! - `etcd`, `postgres`, `redis`, `zookeeper`: servers on free ports, with data of their own, plain or secured.
//!   A server is there with the feature of its name, and can be secured with the feature `certificates`.
//! - `redis_cluster`: three of them, each with its replicas, and moving a slot from one to another
//! - [`certificates`]: what a secured server needs
//! - [`replication`]: a Redis or PostgreSQL with a replica
//! - `sentinel`: Redis Sentinel
//! - [`server`]: what they have in common: kill, restart, stop
//! - [`child`]: a process that ends with us, even on SIGKILL
//! - [`dir`]: a directory that is removed with us
//! - [`ports`], [`probe`]: free ports, and requests to servers
//! - [`proxy`]: a TCP proxy with faults
//!
//! For tests, with panics on failure:
//! - `shared`: shared servers, with a namespace for each test
//! - `client`: HTTP, byte by byte
//! - `copies`: a Redis that comes back with older data
//! - `flags`: the flags of a program, without its environment variables
//! - [`run`]: a program that a test talks to
//! - [`wait`], [`processes`]: waiting for a condition, finding processes

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a test that cannot go on has failed; servers and processes return their errors"
)]
#![cfg_attr(
    not(all(feature = "etcd", feature = "redis")),
    allow(dead_code, reason = "no server needs all that the servers have in common")
)]

pub mod certificates;
pub mod child;
#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "redis")]
pub mod copies;
pub mod dir;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "flags")]
pub mod flags;
pub mod ports;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod probe;
pub mod processes;
pub mod proxy;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redis")]
pub mod redis_cluster;
pub mod replication;
pub mod run;
#[cfg(feature = "redis")]
pub mod sentinel;
pub mod server;
#[cfg(all(feature = "etcd", feature = "redis"))]
pub mod shared;
pub mod wait;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

pub use certificates::Certificates;
pub use child::{Child, Program};
pub use dir::OwnedDir;
#[cfg(feature = "etcd")]
pub use etcd::{AuthTokens, EtcdOptions, PrivateEtcd};
#[cfg(feature = "postgres")]
pub use postgres::{PostgresOptions, PrivatePostgres, ReplicatedPostgres};
pub use proxy::{Direction, Proxy};
#[cfg(feature = "redis")]
pub use redis::{PrivateRedis, RedisOptions, ReplicatedRedis};
#[cfg(feature = "redis")]
pub use redis_cluster::{PrivateRedisCluster, RedisClusterOptions};
pub use run::Run;
#[cfg(feature = "redis")]
pub use sentinel::Sentinels;
pub use server::ServerError;
#[cfg(feature = "zookeeper")]
pub use zookeeper::{PrivateZooKeeper, ZooKeeperOptions};

/// The default name of the service's lock.
pub const LOCK_NAME: &str = "stock-lock";
