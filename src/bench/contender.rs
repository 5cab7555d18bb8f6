//! Who takes part.

use clap::{Args as _, ValueEnum};
use serde::Serialize;

use crate::config::Config;
use crate::sale::LockMode;

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
    /// Its name on the command line and in the results.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Combined => "combined",
            Self::Request => "request",
            Self::Unguarded => "unguarded",
            Self::EtcdRecipe => "etcd-recipe",
            Self::EtcdRpc => "etcd-rpc",
            Self::NoStore => "no-store",
        }
    }

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

    /// What its instances are started with; `None` if this build does not have it.
    pub(super) fn lock(self) -> Option<LockMode> {
        let name = match self {
            Self::Combined | Self::Request | Self::NoStore => "etcd",
            other => other.name(),
        };
        LockMode::from_str(name, false).ok()
    }

    /// Further flags of its instances.
    pub(super) fn flags(self) -> &'static [&'static str] {
        let has_hold = Config::augment_args(clap::Command::new("serve"))
            .get_arguments()
            .any(|argument| argument.get_long() == Some("hold"));
        match self {
            Self::Combined if has_hold => &["--hold", "combined"],
            Self::Request if has_hold => &["--hold", "request"],
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

    /// Whether instances pass a lock to one another.
    pub(super) fn hands_over(self) -> bool {
        self == Self::Combined || self.locks_each_request()
    }
}
