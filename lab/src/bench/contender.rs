//! Who takes part.

use crate::baselines::LockMode;
use clap::ValueEnum;
use serde::Serialize;

/// A way to guard the sale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// The product: the holder of the lock runs the orders of everybody who waits in its process.
    Combined,
    /// The product's lock, taken for each request.
    Request,
    /// The same script with the same order ids and ledger, and no lock.
    Unguarded,
    /// Go's mutex recipe: a claim for each request, and a watch on the one before it.
    EtcdRecipe,
    /// A lease and etcd's own `Lock` call for each request.
    EtcdRpc,
    /// A handler that touches no store: what instances and load test can do at most.
    NoStore,
}

impl Contender {
    /// What it is, in few words.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Combined => "guarded, combined",
            Self::Request => "guarded, lock per request",
            Self::Unguarded => "unguarded",
            Self::EtcdRecipe => "etcd recipe",
            Self::EtcdRpc => "etcd Lock RPC",
            Self::NoStore => "no store",
        }
    }

    /// What guards the sale of its instances.
    pub(super) fn lock(self) -> LockMode {
        match self {
            Self::Combined | Self::Request | Self::NoStore => LockMode::Etcd,
            Self::Unguarded => LockMode::Unguarded,
            Self::EtcdRecipe => LockMode::EtcdRecipe,
            Self::EtcdRpc => LockMode::EtcdRpc,
        }
    }

    /// Further flags of its instances.
    pub(super) fn flags(self) -> &'static [&'static str] {
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

    /// Whether its ledger shows how often instances pass the lock to one another.
    pub(super) fn shows_handovers(self) -> bool {
        matches!(self, Self::Combined | Self::Request | Self::EtcdRecipe)
    }
}
