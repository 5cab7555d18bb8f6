//! The contenders.

use clap::ValueEnum;
use serde::Serialize;

use demo::baselines::LockMode;

/// A way to guard the sale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// The product: the holder of the lock runs all waiting orders of its process.
    Combined,
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
            Self::AtomicScript => "atomic script",
            Self::EtcdRecipe => "etcd recipe",
            Self::EtcdRpc => "etcd Lock RPC",
            Self::NoStore => "no store",
        }
    }

    /// The guard of its instances.
    pub(super) fn lock(self) -> LockMode {
        match self {
            Self::Combined | Self::NoStore => LockMode::Etcd,
            Self::AtomicScript => LockMode::AtomicScript,
            Self::EtcdRecipe => LockMode::EtcdRecipe,
            Self::EtcdRpc => LockMode::EtcdRpc,
        }
    }

    /// Whether it sells anything.
    pub(super) fn sells(self) -> bool {
        self != Self::NoStore
    }

    /// Whether it pays for the lock with every request.
    pub(super) fn locks_each_request(self) -> bool {
        matches!(self, Self::EtcdRecipe | Self::EtcdRpc)
    }

    /// Whether its ledger shows handovers between instances.
    pub(super) fn shows_handovers(self) -> bool {
        matches!(self, Self::Combined | Self::EtcdRecipe)
    }
}
