//! The safeguards that keep the sale right when something breaks, and an instance without one.
//!
//! A fault under which nothing is lost proves little, unless something is lost without the safeguard against it. `lab serve
//! --without SAFEGUARD` removes each safeguard: most of them here, by another writer, guard or flag. The safeguards inside the
//! lock and the server need a build with `--cfg fenced_lock_chaos`, which is off by default.

use std::fmt;

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
#[cfg(fenced_lock_chaos)]
use fenced_lock::chaos::Safeguard as Lock;
#[cfg(fenced_lock_chaos)]
use flash_sale::config::Config;
#[cfg(fenced_lock_chaos)]
use flash_sale::safeguard::{GIVE_WAY, LIMITS, REDIRECTS};

use testkit::signals::{Signals, exit_code};

/// A safeguard, described by what happens without it. The safeguards after `drain` are inside the lock and the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Safeguard {
    /// Under the lock an instance reads, decides and writes what it decided, and no token is compared. A
    /// holder that is paused between reading and writing undoes what the next one sold
    Fence,
    /// An order whose id is known is taken again
    OrderIds,
    /// Stock and ledger are written by two commands: a holder that dies in between has taken units for no order
    AtomicLedger,
    /// A batch that was not answered is sent again under new order ids
    CarefulRetry,
    /// Each request for a cancellation gives units back, whatever happened to the order before
    CancelOnce,
    /// The script that writes is loaded once, and a store that has forgotten it fails
    ScriptReload,
    /// The request itself takes the lock and writes, within a second; any failure is answered as if nothing had been taken
    BatchOwnership,
    /// A second signal of any kind ends the instance at once
    Drain,
    /// The instance follows no redirection of a Redis Cluster, and never reads the map of the slots again
    Redirects,
    /// An instance that the store does not answer asks for the lock again and again, and keeps it while it starts a sale
    GiveWay,
    /// Orders wait for ever, and a request that etcd has no room for is repeated until it has
    Deadlines,
    /// Nothing bounds the size of a request, the time that it takes to arrive, and the connections
    Limits,
    /// The claim of a waiter that went away stays in the queue while the session lives
    ClaimCleanup,
    /// The instance believes in its lease until etcd says that it is gone
    LocalExpiry,
    /// A watch that broke is not opened again
    ReWatch,
    /// A watch that broke goes on where it was, or after a compaction with what is left, and the queue is not read again
    Relist,
    /// The lease is renewed and the queue watched on the runtime that serves requests
    OwnThread,
    /// The key of a claim is the instance's name, so that two instances of one name are one owner
    OwnerByClaim,
    /// The queue of a lock is every key that begins with its name, those of longer names too
    ExactPrefix,
    /// The lock authenticates again only if etcd does not know its token: not if users or roles have
    /// changed since, or a watcher is refused
    Reauthentication,
    /// A claim that etcd denied is withdrawn as if it might exist, and a session that may not withdraw a claim is given up
    Denials,
    /// A claim that is gone counts as lost, even if another member may have released it
    UnknownRelease,
    /// The lock reads a queue at once, however long it is
    Pages,
}

impl fmt::Display for Safeguard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value().expect("no variant is skipped");
        f.write_str(value.get_name())
    }
}

impl Safeguard {
    /// Parses the safeguards that this build can remove.
    pub(crate) fn parser() -> impl TypedValueParser<Value = Self> {
        let names = Self::value_variants()
            .iter()
            .filter(|one| cfg!(fenced_lock_chaos) || **one <= Self::Drain);
        let names = PossibleValuesParser::new(names.filter_map(Self::to_possible_value));
        names.try_map(|name| Self::from_str(&name, false))
    }

    /// Removes it from the lock, from the server and from `config`. The writer and the guard look for theirs themselves.
    #[cfg(fenced_lock_chaos)]
    pub(crate) fn remove_inside(self, config: &mut Config) {
        const FOR_EVER: std::time::Duration = std::time::Duration::from_hours(24 * 365);
        let of_the_lock = match self {
            Self::Limits => {
                (config.header_timeout, config.max_connections) = (FOR_EVER, usize::MAX);
                return LIMITS.set(false);
            }
            Self::Redirects => return REDIRECTS.set(false),
            Self::GiveWay => return GIVE_WAY.set(false),
            Self::Deadlines => {
                config.wait_timeout = FOR_EVER;
                Lock::Refusals
            }
            Self::ClaimCleanup => Lock::ClaimCleanup,
            Self::LocalExpiry => Lock::LocalExpiry,
            Self::ReWatch => Lock::ReWatch,
            Self::Relist => Lock::Relist,
            Self::OwnThread => Lock::OwnThread,
            Self::OwnerByClaim => Lock::OwnerByClaim,
            Self::ExactPrefix => Lock::ExactPrefix,
            Self::Reauthentication => Lock::Reauthentication,
            Self::Denials => Lock::Denials,
            Self::UnknownRelease => Lock::UnknownRelease,
            Self::Pages => Lock::Pages,
            _ => return,
        };
        of_the_lock.set(false);
    }
}

/// Ends the process at the second signal that asks it to stop.
pub(crate) async fn end_at_once() {
    let mut signals = Signals::listen().expect("the runtime has signals enabled");
    signals.next().await;
    std::process::exit(exit_code(signals.next().await).into());
}
