//! What a scenario of the suite is: data, and one function that injects its fault.

use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use testkit::AuthTokens;

use super::scene::Scene;
use crate::cluster::Proxied;
use crate::error::LabError;
use crate::load::ENDLESS_STOCK;

/// How long the lock outlives its holder in all scenarios. The least that etcd grants.
pub(super) const TTL: Duration = Duration::from_secs(2);

/// [`TTL`] as a flag wants it.
pub(super) const TTL_FLAG: &str = "2s";

/// Before the first fault.
pub(super) const FIRST_CALM: Duration = Duration::from_secs(1);

/// Between one fault and the next, at most: chance decides.
pub(super) const LONGEST_CALM: Duration = Duration::from_millis(1500);

/// At the end of a run everything is left alone for this long: what was unknown is settled then.
pub(super) const LAST_CALM: Duration = Duration::from_secs(3);

/// Injects the fault again and again until there is no time left for another round, and notes what
/// shows that it happened.
pub(super) type Inject = for<'a> fn(&'a mut Scene) -> LocalBoxFuture<'a, Result<(), LabError>>;

/// A kind of fault, and what must hold under it.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    /// Short, for `--only`.
    pub(super) name: &'static str,
    /// What happens, for people.
    pub(super) fault: &'static str,
    pub(super) run: Run,
    pub(super) controls: Vec<Control>,
    /// It goes on until there was time for this many rounds.
    pub(super) rounds: u32,
    /// Whether it needs the machine to itself.
    pub(super) alone: bool,
}

/// One run: who takes part, what is sent, what is done to them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) setup: Setup,
    pub(super) inject: Inject,
    /// How long one round of the fault takes, its aftermath included.
    pub(super) round: Duration,
    /// The sale goes on within this time after the end of the fault (I5).
    pub(super) goes_on_within: Duration,
    /// What must have been seen at least once, or the fault did not happen.
    pub(super) proof: &'static str,
}

/// The same fault without the defence.
#[derive(Clone, Debug)]
pub(super) struct Control {
    /// What is missing, for people.
    pub(super) without: &'static str,
    pub(super) run: Run,
    /// It must break one of these.
    pub(super) breaks: &'static [&'static str],
}

/// Who takes part, and what is sent to them.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub(super) struct Setup {
    pub(super) instances: usize,
    /// All instances go by the first one's name.
    pub(super) one_name: bool,
    pub(super) etcd_members: usize,
    pub(super) etcd_quota_bytes: Option<u64>,
    /// Mutual TLS and users at etcd, with tokens of this kind, and at Redis.
    pub(super) secured: Option<AuthTokens>,
    /// The instances know only one of the members: the leader.
    pub(super) one_endpoint: bool,
    pub(super) redis_maxmemory_bytes: Option<u64>,
    pub(super) redis_volatile: bool,
    /// Whose connections with an instance run through a proxy.
    pub(super) proxied: Proxied,
    /// Points of a tenure, each with what happens there, that the scenario can ask for: `before-write:stop`.
    pub(super) fault_points: &'static [&'static str],
    /// The scenario can have an instance's workers spin.
    pub(super) can_starve: bool,
    /// Further flags of each instance.
    pub(super) flags: &'static [&'static str],
    /// Safeguards that the instances run without, separated by commas.
    pub(super) without: Option<&'static str>,
    pub(super) load: LoadPlan,
    /// What the checker may find besides, where the fault leaves no other answer.
    pub(super) tolerates: &'static [&'static str],
}

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadPlan {
    /// Orders a second.
    pub(super) rate: u32,
    pub(super) connections: u32,
    pub(super) stock: u64,
    /// Whether nobody else buys; not so where the fault itself sends orders.
    pub(super) alone: bool,
    /// Further flags of the load test.
    pub(super) flags: &'static [&'static str],
}

impl Scenario {
    /// Three rounds beside others, and no control yet.
    pub(super) const fn new(name: &'static str, fault: &'static str, run: Run) -> Self {
        Self { name, fault, run, controls: Vec::new(), rounds: 3, alone: false }
    }

    /// The same with this control.
    pub(super) fn control(mut self, control: Control) -> Self {
        self.controls.push(control);
        self
    }

    /// The same with the control that runs without `safeguard` and breaks one of these.
    pub(super) fn without(self, safeguard: &'static str, breaks: &'static [&'static str]) -> Self {
        let control = self.run.without(safeguard, breaks);
        self.control(control)
    }
}

impl Run {
    /// The same without `safeguard`, which must break one of these.
    pub(super) fn without(
        self,
        safeguard: &'static str,
        breaks: &'static [&'static str],
    ) -> Control {
        let setup = Setup { without: Some(safeguard), ..self.setup };
        Control { without: safeguard, run: Self { setup, ..self }, breaks }
    }

    /// How long orders are sent, if `wanted` leaves room for so many rounds.
    pub(super) fn lasts(&self, wanted: Duration, rounds: u32) -> Duration {
        wanted.max((self.round + LONGEST_CALM) * rounds + FIRST_CALM + LAST_CALM)
    }

    /// The same for a sale that may hang, which must be seen to.
    pub(super) fn lasts_hanging(&self, wanted: Duration, rounds: u32) -> Duration {
        let first = FIRST_CALM + LONGEST_CALM + self.round;
        self.lasts(wanted, rounds).max(first + self.goes_on_within * 2 + LAST_CALM)
    }
}

impl Setup {
    /// Two instances, one etcd, one Redis.
    pub(super) const USUAL: Self = Self {
        instances: 2,
        one_name: false,
        etcd_members: 1,
        etcd_quota_bytes: None,
        secured: None,
        one_endpoint: false,
        redis_maxmemory_bytes: None,
        redis_volatile: false,
        proxied: Proxied::Nothing,
        fault_points: &[],
        can_starve: false,
        flags: &[],
        without: None,
        load: LoadPlan::USUAL,
        tolerates: &[],
    };
}

impl LoadPlan {
    /// As usual, of a stock that ends while faults go on.
    pub(super) const SELLS_OUT: Self = Self { stock: 20_000, ..Self::USUAL };

    /// Some thousands a second, of a stock that does not end.
    pub(super) const USUAL: Self =
        Self { rate: 2000, connections: 100, stock: ENDLESS_STOCK, alone: true, flags: &[] };

    /// As usual, by buyers that soon leave an instance which stands still: otherwise the last one who
    /// waits there, while nobody else has anything to ask for, looks like a sale that does not go on.
    pub(super) const LEAVES_SOON: Self =
        Self { flags: &["--attempt-timeout", "1s"], ..Self::USUAL };

    /// As usual, beside orders that the fault sends.
    pub(super) const NOT_ALONE: Self = Self { alone: false, ..Self::USUAL };
}
