//! The contenders.

use clap::ValueEnum;
use serde::Serialize;

use crate::error::LabError;
use demo::baselines::LockMode;
use demo::cluster::{Cluster, Proxied, Spec};

/// The slow contenders need more than the defaults to answer hundreds of waiting orders.
const FLAGS: [&str; 4] = ["--wait-timeout", "5m", "--queue-length", "20000"];

/// A way to guard the sale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// The product: the holder of the lock runs all waiting orders of its process.
    Combined,
    /// The product's lock, taken for each request.
    Request,
    /// The same script with the same order ids and ledger, and no lock.
    AtomicScript,
    /// Go's mutex recipe: a claim for each request, and a watch on the one before it.
    EtcdRecipe,
    /// A lease and etcd's own `Lock` call for each request.
    EtcdRpc,
    /// A handler without a store: the upper bound of instances and load test.
    NoStore,
}

impl Contender {
    /// A short description.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Combined => "guarded, combined",
            Self::Request => "guarded, lock per request",
            Self::AtomicScript => "atomic script",
            Self::EtcdRecipe => "etcd recipe",
            Self::EtcdRpc => "etcd Lock RPC",
            Self::NoStore => "no store",
        }
    }

    /// The guard of its instances.
    fn lock(self) -> LockMode {
        match self {
            Self::Combined | Self::Request | Self::NoStore => LockMode::Etcd,
            Self::AtomicScript => LockMode::AtomicScript,
            Self::EtcdRecipe => LockMode::EtcdRecipe,
            Self::EtcdRpc => LockMode::EtcdRpc,
        }
    }

    /// Further flags of its instances.
    fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Combined => &["--hold", "combined"],
            Self::Request => &["--hold", "request"],
            _ => &[],
        }
    }

    /// Whether it sells anything.
    pub(super) fn sells(self) -> bool {
        self != Self::NoStore
    }

    /// Whether it pays for the lock with every request.
    pub(super) fn locks_each_request(self) -> bool {
        matches!(self, Self::Request | Self::EtcdRecipe | Self::EtcdRpc)
    }

    /// Whether its ledger shows handovers between instances.
    pub(super) fn shows_handovers(self) -> bool {
        matches!(self, Self::Combined | Self::Request | Self::EtcdRecipe)
    }

    /// Starts `count` instances and waits until they are ready.
    pub(super) async fn start(self, cluster: &mut Cluster, count: usize) -> Result<(), LabError> {
        self.start_behind(cluster, count, Proxied::Nothing).await
    }

    /// The same, with these connections of the instances through proxies.
    pub(super) async fn start_behind(
        self,
        cluster: &mut Cluster,
        count: usize,
        proxied: Proxied,
    ) -> Result<(), LabError> {
        let flags = FLAGS.iter().chain(self.flags()).map(ToString::to_string);
        let flags: Vec<_> = flags.collect();
        let lock = self.lock();
        let spec = Spec { lock, instances: count, flags: &flags, proxied, ..Spec::default() };
        for _ in 0..count {
            cluster.add(spec).await?;
        }
        Ok(())
    }
}

/// Stops the instances of a contender.
pub(super) async fn leave(cluster: &mut Cluster) -> Result<(), LabError> {
    cluster.stop_instances().await.map_err(LabError::system("an instance does not stop"))
}
