//! Everything on this machine: private etcd and Redis, the instances, the run, the verdict.
//!
//! # Layout
//! - [`DemoOptions`], [`run()`]: what can be asked for, and the demo from its beginning to its end
//! - `stage`, `instance`: all that it has started, and one instance of the service
//! - `load`, `verdict`: running the load test, and what its report means
//! - `screen`, `signals`: the terminal
//!
//! Of use to the integration tests as well:
//! - [`certificates`]: what a secured server needs
//! - [`child`]: a process that ends when we end, however we end
//! - [`dir`]: a directory that goes when we end
//! - [`etcd`], [`redis`]: private servers on free ports, with data of their own
//! - [`ports`], [`probe`]: finding a port, asking whether somebody answers there
//! - [`proxy`]: what networks do

pub mod certificates;
pub mod child;
pub mod dir;
mod error;
pub mod etcd;
pub(crate) mod instance;
pub(crate) mod load;
mod options;
pub mod ports;
pub mod probe;
pub mod proxy;
pub mod redis;
mod run;
mod screen;
pub mod server;
pub(crate) mod signals;
mod stage;
mod verdict;

pub use certificates::Certificates;
pub use child::Child;
pub use dir::OwnedDir;
pub use error::DemoError;
pub use etcd::{AuthTokens, EtcdOptions, PrivateEtcd};
pub use options::DemoOptions;
pub use proxy::{Proxy, Way};
pub use redis::{PrivateRedis, RedisOptions};
pub use run::run;
pub use server::ServerError;
