//! Private servers, processes and faulty networks on this machine, for the tests of all packages and for the
//! laboratory.
//!
//! - [`etcd`], [`postgres`], [`redis`], [`zookeeper`]: servers on free ports, with data of their own, plain or, with the
//!   feature `certificates`, secured.
//! - [`pgbouncer`]: a pooler in front of a PostgreSQL
//! - [`redis_cluster`]: three Redis primaries, each with its replicas, and moving a slot from one to another
//! - [`certificates`]: certificates for a secured server
//! - [`replication`]: a Redis or PostgreSQL with a replica
//! - [`sentinel`]: Redis Sentinel
//! - [`server`]: the parts that all servers share: kill, restart, stop
//! - [`child`]: a process that ends with this one, even after SIGKILL
//! - [`dir`]: a directory that is removed with this process
//! - [`cluster`]: the servers of a sale, and instances of the service
//! - [`signals`]: signals to a program
//! - [`ports`], [`probe`]: free ports, and requests to servers
//! - [`proxy`]: a TCP proxy with faults
//!
//! For tests, with panics on failure:
//! - [`shared`]: shared servers, with a namespace for each test
//! - [`client`]: HTTP, byte by byte
//! - [`copies`]: a Redis that comes back with older data
//! - [`flags`]: the flags of a program, without its environment variables
//! - [`run`]: a program that a test talks to
//! - [`wait`], [`processes`]: waiting for a condition, finding processes
//! - [`or_left_out`]: leaves a test out if this machine lacks its server

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a test that cannot go on has failed; servers and processes return their errors"
)]

pub mod certificates;
pub mod child;
pub mod client;
pub mod cluster;
pub mod copies;
pub mod dir;
pub mod etcd;
pub mod flags;
pub mod pgbouncer;
pub mod ports;
pub mod postgres;
pub mod probe;
pub mod processes;
pub mod proxy;
pub mod redis;
pub mod redis_cluster;
pub mod replication;
pub mod run;
pub mod sentinel;
pub mod server;
pub mod shared;
pub mod signals;
pub mod wait;
pub mod zookeeper;

pub use certificates::Certificates;
pub use child::{Child, Program};
pub use dir::OwnedDir;
pub use etcd::{AuthTokens, EtcdOptions, PrivateEtcd};
pub use pgbouncer::PrivatePgBouncer;
pub use postgres::{PostgresOptions, PrivatePostgres, ReplicatedPostgres};
pub use proxy::{Direction, Proxy};
pub use redis::{PrivateRedis, RedisOptions, ReplicatedRedis};
pub use redis_cluster::{PrivateRedisCluster, RedisClusterOptions};
pub use run::Run;
pub use sentinel::Sentinels;
pub use server::ServerError;
pub use zookeeper::{PrivateZooKeeper, ZooKeeperOptions};

/// Returns `found`. If it is `None`, says what is missing, so that the test can be left out.
///
/// # Panics
/// If it is missing although the variable `CI` is set: nobody would read what was left out.
pub fn or_left_out<T>(found: Option<T>, missing: &str) -> Option<T> {
    if found.is_none() {
        let is_ci = std::env::var_os("CI").is_some_and(|ci| !ci.is_empty());
        assert!(!is_ci, "CI is set, where no test is left out: {missing}");
        eprintln!("left out: {missing}");
    }
    found
}

/// The default name of the service's lock.
pub const LOCK_NAME: &str = "stock-lock";
