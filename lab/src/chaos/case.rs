//! A case of the suite, as data: a scenario, in which everything must hold, or a control, in which something must break.

use std::time::Duration;

use anyhow::Result;
use futures_util::future::LocalBoxFuture;
use loadtest::report::Finding;
use serde::{Serialize, Serializer};
use serde_json::json;
use testkit::{AuthTokens, RedisClusterOptions};

use super::run::{NO_FAULT, Outcome};
use super::scene::Scene;
use crate::load::ENDLESS_STOCK;
use testkit::cluster::Proxied;

/// The TTL of the lock in all cases: the shortest that etcd grants.
pub(super) const TTL: Duration = Duration::from_secs(2);

pub(super) const TTL_FLAG: &str = "2s";

/// Which instances send their orders to the one that holds the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Peers {
    #[default]
    None,
    All,
    /// All but the first two, which take turns.
    AllButTwo,
    /// All, but the last one has another token than the others.
    OneRefused,
}

/// The time before the first fault.
pub(super) const FIRST_CALM: Duration = Duration::from_secs(1);

/// The longest time between two faults; each is random.
pub(super) const LONGEST_CALM: Duration = Duration::from_millis(1500);

/// The time without faults at the end of a run, in which unknown outcomes are resolved.
pub(super) const LAST_CALM: Duration = Duration::from_secs(3);

/// A stock that is sold out a second after the sale's start, and again each time units have come back: only a fifth of the orders
/// can have a unit, so it is sold out even on a busy machine.
const STOCK: u64 = 200;

/// Buyers of whom some give back, at once or by the end of their hold, and others do not wait for that. The sale
/// therefore keeps selling and refusing, and a fault can hit both.
const GIVE_BACK: &[&str] = &["--hold=1s", "--cancel=0.5", "--patience=0s"];

/// Flags of buyers that soon leave an instance that does not answer. Otherwise the last buyer that waits there, while no other
/// buyer orders, would look like a sale that has stopped.
pub(super) const LEAVES_SOON: &[&str] = &["--attempt-timeout", "1s"];

/// The proof that a fault has come to its end.
pub(super) const WHOLE_FAULT: &str = "the whole fault";

/// The longest time for which a control sends orders: one failure is enough.
const CONTROL_LASTS: Duration = Duration::from_secs(16);

/// Injects a fault once, and records the proof that it happened.
pub(super) trait Fault: Sync {
    fn inject<'a>(&'static self, scene: &'a mut Scene) -> LocalBoxFuture<'a, Result<()>>;
}

impl Default for &dyn Fault {
    fn default() -> Self {
        &async |_: &mut Scene| Ok(())
    }
}

impl<F: AsyncFn(&mut Scene) -> Result<()> + Sync + 'static> Fault for F {
    fn inject<'a>(&'static self, scene: &'a mut Scene) -> LocalBoxFuture<'a, Result<()>> {
        Box::pin(async move { self(scene).await })
    }
}

/// A kind of fault, and what must hold under it.
#[derive(Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub(super) struct Case {
    /// The name for `--only`; a control has the name of its scenario.
    pub(super) name: &'static str,
    /// The fault in words.
    pub(super) fault: &'static str,
    pub(super) inject: &'static dyn Fault,
    /// How long one round of the fault takes, with its aftermath.
    pub(super) round: Duration,
    /// The run lasts long enough for this many rounds.
    pub(super) rounds: u32,
    /// The sale must go on within this time after the end of the fault (I5).
    pub(super) goes_on_within: Duration,
    /// The fact that must be seen at least once; otherwise the fault did not happen.
    pub(super) proof: &'static str,
    /// Whether it must run while no other case does.
    pub(super) alone: bool,
    pub(super) control: Option<Control>,
    pub(super) instances: usize,
    /// Whether all instances have the first one's name.
    pub(super) one_name: bool,
    pub(super) etcd_members: usize,
    pub(super) etcd_quota_bytes: Option<u64>,
    /// Mutual TLS and users at etcd, with tokens of this kind, and at Redis.
    pub(super) secured: Option<AuthTokens>,
    /// Whether etcd has many other locks and claims: see [`OtherLocks`](super::etcd::OtherLocks).
    pub(super) crowded: bool,
    /// Whether the instances know only one member of etcd, the leader.
    pub(super) one_endpoint: bool,
    pub(super) redis_volatile: bool,
    /// The number of Redis replicas; with any, there are sentinels too.
    pub(super) redis_replicas: u8,
    /// The Redis Cluster that has the stock, if any.
    pub(super) redis_cluster: Option<RedisClusterOptions>,
    /// The connections of the instances that run through proxies.
    pub(super) proxied: Proxied,
    /// Fault points with their actions, such as `before-write:stop`, that the case can trigger.
    pub(super) fault_points: &'static [&'static str],
    pub(super) peers: Peers,
    pub(super) flags: &'static [&'static str],
    /// The safeguards that the instances lack, separated by commas.
    pub(super) without: Option<&'static str>,
    pub(super) rate: u32,
    pub(super) connections: u32,
    pub(super) stock: u64,
    /// The buyers' conduct: flags of the load test.
    pub(super) conduct: &'static [&'static str],
    /// Whether the fault itself sends orders as well.
    pub(super) others_order: bool,
    pub(super) load_flags: &'static [&'static str],
    /// The kinds of findings that the fault makes unavoidable.
    pub(super) tolerates: &'static [&'static str],
}

/// The part that makes a case a control.
#[derive(Clone, Copy, Debug)]
pub(super) struct Control {
    pub(super) without: &'static str,
    /// It must break one of these invariants.
    pub(super) breaks: &'static [&'static str],
}

impl Serialize for Case {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (without, breaks) = self.control.map(|it| (it.without, it.breaks)).unzip();
        let (name, fault, proof) = (self.name, self.fault, self.proof);
        json!({ "name": name, "fault": fault, "proof": proof, "without": without, "breaks": breaks })
            .serialize(serializer)
    }
}

impl Case {
    /// A scenario of three rounds of 5 s, beside others. After each fault the sale must go on within 2 s. It has two instances,
    /// one etcd, one Redis, and a stock that is sold out again and again.
    pub(super) fn new(name: &'static str, fault: &'static str, inject: &'static dyn Fault) -> Self {
        Self {
            name,
            fault,
            inject,
            round: Duration::from_secs(5),
            rounds: 3,
            goes_on_within: Duration::from_secs(2),
            proof: WHOLE_FAULT,
            instances: 2,
            etcd_members: 1,
            rate: 2000,
            connections: 100,
            stock: STOCK,
            conduct: GIVE_BACK,
            ..Self::default()
        }
    }

    /// The case with this proof: it is not enough that the fault came to its end.
    pub(super) fn proven_by(self, proof: &'static str) -> Self {
        Self { proof, ..self }
    }

    /// The case with four instances that send their orders to the holder. On a machine with few cores, each sells less.
    pub(super) fn among_peers(self) -> Self {
        Self { instances: 4, peers: Peers::All, stock: STOCK / 4, ..self }
    }

    /// The case with units that never come back, and more units than can be sold: a writer without some safeguards has no holds.
    pub(super) fn without_holds(self) -> Self {
        Self { stock: ENDLESS_STOCK, conduct: &[], ..self }
    }

    /// The control that runs without `safeguard`, which must break one of these invariants.
    pub(super) fn without_safeguard(
        self,
        safeguard: &'static str,
        breaks: &'static [&'static str],
    ) -> Self {
        Self { without: Some(safeguard), ..self }.as_control(safeguard, breaks)
    }

    /// The case as a control, in which something else than a safeguard is missing.
    pub(super) fn as_control(self, without: &'static str, breaks: &'static [&'static str]) -> Self {
        Self { control: Some(Control { without, breaks }), rounds: 2, ..self }
    }

    /// For a scenario: whether everything held. For a control: whether the fault happened and broke what it must break.
    pub(super) fn is_good(&self, outcome: &Outcome) -> bool {
        let mut found = outcome.findings.iter().map(Finding::name);
        match self.control {
            None => found.next().is_none(),
            Some(Control { breaks, .. }) => {
                found.clone().all(|found| found != NO_FAULT)
                    && found.any(|found| breaks.contains(&found))
            }
        }
    }

    /// The case's name; for a control, also what is missing.
    pub(super) fn title(&self) -> String {
        match self.control {
            None => self.name.to_owned(),
            Some(Control { without, .. }) => {
                format!("{} without {}", self.name, without.replace([' ', '/'], "-"))
            }
        }
    }

    /// The case's line in the list.
    pub(super) fn in_words(&self) -> String {
        match self.control {
            None => format!("{}: {}\n", self.name, self.fault),
            Some(Control { without, breaks }) => {
                format!("    without {without}: breaks {}\n", breaks.join(" or "))
            }
        }
    }

    /// Whether the sale may hang until its instances are restarted.
    pub(super) fn may_hang(&self) -> bool {
        self.control.is_some_and(|control| control.breaks.contains(&"I5"))
    }

    /// How long orders are sent: `wanted`, or long enough for all rounds, and for observing a sale that hangs.
    pub(super) fn lasts(&self, wanted: Duration) -> Duration {
        let calm = FIRST_CALM + LAST_CALM;
        let wanted = if self.control.is_some() { wanted.min(CONTROL_LASTS) } else { wanted };
        let lasts = wanted.max((self.round + LONGEST_CALM) * self.rounds + calm);
        let hangs = self.round + LONGEST_CALM + self.goes_on_within * 2 + calm;
        if self.may_hang() { lasts.max(hangs) } else { lasts }
    }
}
