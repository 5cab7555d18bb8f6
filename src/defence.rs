//! What keeps the sale right when something breaks, and how to run without it.
//!
//! A test that shows that nothing is lost proves little unless the same test fails once the defence
//! is gone. So each defence can be taken away, for a fault suite alone:
//! `lab serve --without DEFENCE[,DEFENCE]`. Those of the write are not here: `lab` plugs another
//! [writer](crate::inventory::BatchWriter) in.
//!
//! They are there for good unless the program was built with the cargo feature `chaos`, which is
//! off by default: without it [`Defence::is_on`] is a constant. **Never build a service for a real sale
//! with that feature.**

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};

/// The bit of each defence that is off, in this whole process.
static OFF: AtomicU32 = AtomicU32::new(0);

/// Declares the defences once: variant, name, and what happens without it.
macro_rules! defences {
    ($($(#[doc = $doc:literal])* $variant:ident $name:literal;)*) => {
        /// Something that keeps the sale right when something breaks. Each is described by what happens
        /// without it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Defence {
            $($(#[doc = $doc])* $variant,)*
        }

        impl Defence {
            /// All there are.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Its name on the command line.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

defences! {
    /// The claim of a waiter that went away stays in the queue for as long as the session lives.
    ClaimCleanup "claim-cleanup";
    /// An order is carried out by the request's own future, within a second, and whatever fails or
    /// takes longer is answered as if nothing had been taken.
    BatchOwnership "batch-ownership";
    /// A batch that was not answered is sent again under new order ids.
    CarefulRetry "careful-retry";
    /// Scripts are loaded at the start, and a store that has forgotten them is a failure.
    ScriptReload "script-reload";
    /// The instance believes in its lease until etcd says that it is gone.
    LocalExpiry "local-expiry";
    /// A watch that broke is not opened again.
    ReWatch "re-watch";
    /// A watch that broke goes on from where it was; if that was compacted, from what is left, without
    /// reading the queue again.
    Relist "relist";
    /// Requests to etcd and Redis, and orders that wait, have all the time there is, and what etcd has
    /// no room for is asked for again until it has.
    Deadlines "deadlines";
    /// The lease is renewed and the queue watched on the runtime that serves the requests.
    OwnThread "own-thread";
    /// A claim is keyed by the instance's name, so two instances of one name are taken for one owner.
    OwnerByClaim "owner-by-claim";
    /// The queue of a lock is all keys that begin with its name, those of longer names too.
    ExactPrefix "exact-prefix";
    /// The lock authenticates anew where etcd does not know its token any more, and not where the token
    /// is older than a change of users or roles, or a watcher is refused.
    Reauthentication "reauthentication";
    /// A claim that etcd denied is withdrawn as if it might be there, and a session that may not
    /// withdraw a claim is given up.
    Denials "denials";
    /// A claim that is gone was lost, also where another member may have carried out its release.
    UnknownRelease "unknown-release";
    /// Nothing bounds the size of a request, the time that it takes to arrive, the connections, and the feeds
    /// of events, which any name has.
    Limits "limits";
    /// What is asked of etcd is dropped with the request that it is for, and nothing bounds how many look
    /// at queues.
    SeeThrough "see-through";
    /// SIGHUP, and a second signal of any kind, end the instance at once.
    Drain "drain";
}

impl Defence {
    /// Whether it is there. A constant unless the feature `chaos` is on.
    #[inline]
    pub fn is_on(self) -> bool {
        if !self.can_be_off() {
            return true;
        }
        OFF.load(Ordering::Relaxed) & self.bit() == 0
    }

    /// Takes it away, in this whole process; nothing if this program was built without the way to.
    /// Units may be sold twice from then on.
    pub fn switch_off(self) {
        if self.can_be_off() {
            OFF.fetch_or(self.bit(), Ordering::Relaxed);
        }
        #[cfg(feature = "chaos")]
        self.of_the_lock().inspect(|defence| defence.set(false));
    }

    /// Brings it back.
    pub fn switch_on(self) {
        OFF.fetch_and(!self.bit(), Ordering::Relaxed);
        #[cfg(feature = "chaos")]
        self.of_the_lock().inspect(|defence| defence.set(true));
    }

    /// The lock's own name for it: the lock uses nothing else of this crate.
    #[cfg(feature = "chaos")]
    fn of_the_lock(self) -> Option<fenced_lock::chaos::Defence> {
        use fenced_lock::chaos::Defence as Lock;
        Some(match self {
            Self::ClaimCleanup => Lock::ClaimCleanup,
            Self::LocalExpiry => Lock::LocalExpiry,
            Self::ReWatch => Lock::ReWatch,
            Self::Relist => Lock::Relist,
            Self::Deadlines => Lock::Refusals,
            Self::OwnThread => Lock::OwnThread,
            Self::OwnerByClaim => Lock::OwnerByClaim,
            Self::ExactPrefix => Lock::ExactPrefix,
            Self::Reauthentication => Lock::Reauthentication,
            Self::Denials => Lock::Denials,
            Self::UnknownRelease => Lock::UnknownRelease,
            Self::SeeThrough => Lock::SeeThrough,
            Self::BatchOwnership
            | Self::CarefulRetry
            | Self::ScriptReload
            | Self::Limits
            | Self::Drain => return None,
        })
    }

    /// Whether this program was built with a way to run without it.
    pub const fn can_be_off(self) -> bool {
        cfg!(feature = "chaos")
    }

    /// All that are off.
    pub fn all_off() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|defence| !defence.is_on())
    }

    const fn bit(self) -> u32 {
        1 << self as u32
    }
}

impl fmt::Display for Defence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Defence {
    type Err = String;

    /// Knows those that this program can do without.
    fn from_str(name: &str) -> Result<Self, String> {
        match Self::ALL.iter().find(|defence| defence.name() == name) {
            Some(defence) if defence.can_be_off() => Ok(*defence),
            Some(defence) => Err(format!(
                "this program cannot run without {defence}: only one that was built with the cargo \
                 feature chaos can, and that one is for tests alone"
            )),
            None => {
                let names: Vec<_> =
                    Self::ALL.iter().filter(|d| d.can_be_off()).map(|d| d.name()).collect();
                Err(format!("a defence that this program can do without is {}", names.join(", ")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_name_and_a_bit_of_its_own() {
        let mut bits = 0;
        for defence in Defence::ALL {
            assert_eq!(bits & defence.bit(), 0, "{defence}");
            bits |= defence.bit();
            assert!(defence.is_on(), "{defence}");
        }
    }

    /// Goal: a program that was built without the feature keeps its defences, whatever it is told.
    #[cfg(not(feature = "chaos"))]
    #[test]
    fn nothing_can_be_switched_off() {
        for defence in Defence::ALL {
            let error = defence.name().parse::<Defence>().expect_err("no such way");
            assert!(error.contains("cargo feature chaos"), "{error}");
            defence.switch_off();
            assert!(defence.is_on(), "{defence}");
        }
    }

    #[cfg(feature = "chaos")]
    #[test]
    fn each_can_be_named() {
        for defence in Defence::ALL {
            assert_eq!(defence.name().parse(), Ok(*defence));
        }
    }
}
