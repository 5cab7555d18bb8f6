//! What may go wrong in a run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use simulator::Chance;
use tokio::time::Instant;

use crate::trace::{count, locked};

macro_rules! faults {
    ($($(#[doc = $doc:literal])* $fault:ident = $name:literal,)*) => {
        /// A kind of fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fault { $($(#[doc = $doc])* $fault,)* }

        impl Fault {
            pub const ALL: &[Self] = &[$(Self::$fault,)*];

            pub fn name(self) -> &'static str {
                match self { $(Self::$fault => $name,)* }
            }
        }
    };
}

faults! {
    LockRequestLost = "lock request lost",
    LockAnswerLost = "lock answer lost",
    /// A request to the lock service arrives long after its caller has given up.
    LockRequestLate = "lock request late",
    /// Requests and answers take long, but arrive in time.
    LockSlow = "lock service slow",
    /// The lock service answers nobody for a while.
    LockSilent = "lock service silent",
    /// One process does not reach the lock service for a while.
    LockCutOff = "cut off from the lock service",
    LockNoRoom = "lock service without room",
    /// The lock service refuses a process the requests for a name for a while.
    LockRefuses = "name refused",
    MessageLost = "message lost",
    MessageTwice = "message twice",
    MessageLate = "message late",
    /// The lock service ends a lease that is in use.
    LeaseEnded = "lease ended",
    /// The lock service grants all leases their whole TTL again.
    LeasesExtended = "leases extended",
    /// An operator deletes a claim.
    ClaimDeleted = "claim deleted",
    /// Another program queues for the lock.
    OtherProgram = "another program's claim",
    WriteLate = "write late",
    /// A script's request to the store does not arrive.
    StoreRequestLost = "store request lost",
    /// A script runs, and its answer does not arrive.
    StoreAnswerLost = "store answer lost",
    /// A script's request arrives long after its caller has given up.
    StoreRequestLate = "store request late",
    StoreSlow = "store slow",
    /// Nobody listens at the store.
    StoreRefusesConnection = "store refuses a connection",
    /// A connection to the store is opened, and nothing comes of it.
    StoreNeverOpens = "store connection never opened",
    /// The store answers nobody for a while; what was sent is carried out then.
    StoreSilent = "store silent",
    /// One process does not reach the store for a while.
    StoreCutOff = "cut off from the store",
    StoreCut = "store connections cut",
    /// The replica does not confirm what is written.
    ReplicaBehind = "replica behind",
    /// The replica takes over: what it did not confirm is lost.
    StoreFailedOver = "store failed over",
    /// The store is started again with all its data.
    StoreRestarted = "store restarted",
    StoreFull = "store refuses to write",
    ScriptsFlushed = "scripts flushed",
    /// An instance cannot connect to another one.
    LinkRefused = "link refused",
    /// A link breaks; the batch that was sent over it arrives some time later.
    LinkCut = "link cut",
    /// A batch for the holder does not arrive.
    FrameLost = "frame lost",
    /// A batch for the holder comes late.
    FrameLate = "frame late",
    /// A batch for the holder comes again.
    FrameTwice = "frame twice",
    /// The holder's answer does not arrive.
    FatesLost = "fates lost",
    /// A process is paused for less than a TTL.
    PausedBriefly = "paused briefly",
    Paused = "paused for longer than a TTL",
    /// A process is killed, and started again some time later.
    Killed = "killed",
    /// A process is told to stop, and started again.
    Stopped = "stopped",
}

impl Fault {
    /// Whether the fault happens to the store, or on the way to the store.
    pub fn is_of_store(self) -> bool {
        (Self::StoreRequestLost..=Self::ScriptsFlushed).contains(&self)
    }

    /// The faults of the lock service and of processes that strike by themselves, not a request.
    pub const OF_LOCK_AND_PROCESSES: &[Self] = &[
        Self::LockSilent,
        Self::LockCutOff,
        Self::LockRefuses,
        Self::LeaseEnded,
        Self::LeasesExtended,
        Self::ClaimDeleted,
        Self::OtherProgram,
        Self::PausedBriefly,
        Self::Paused,
        Self::Killed,
        Self::Stopped,
    ];

    /// The faults of the store that strike by themselves, not a request.
    pub const OF_STORE: &[Self] = &[
        Self::StoreSilent,
        Self::StoreCutOff,
        Self::StoreCut,
        Self::ReplicaBehind,
        Self::StoreFailedOver,
        Self::StoreRestarted,
        Self::StoreFull,
        Self::ScriptsFlushed,
    ];
}

/// How long a fault lasts.
#[derive(Clone, Copy)]
pub struct Times {
    /// Less than a TTL.
    pub brief: Duration,
    /// More than a TTL.
    pub long: Duration,
    /// One of the two.
    pub either: Duration,
}

impl Times {
    pub fn new(chance: &mut Chance, ttl: Duration) -> Self {
        let ttl = u64::try_from(ttl.as_millis()).unwrap_or_default();
        let (brief, long) = (chance.millis(1, ttl), chance.millis(ttl, 3 * ttl));
        Self { brief, long, either: if chance.one_in(2) { brief } else { long } }
    }
}

/// The faults of a run.
pub struct Faults {
    state: Mutex<State>,
    /// The faults that may strike: the seed chose them, and nobody excluded them.
    allowed: BTreeSet<Fault>,
}

struct State {
    chance: Chance,
    /// In how many of a thousand places a fault strikes.
    rate: u64,
    is_over: bool,
    /// Until when earlier faults may delay this process; `None` is every process.
    delays: BTreeMap<Option<String>, Instant>,
    /// Until when nothing can be decided, though everybody is answered.
    refuses_until: Instant,
}

impl Faults {
    /// The faults that the seed chooses, or those of the story, without some of them.
    pub fn new(mut chance: Chance, of_story: Option<&[Fault]>, without: &BTreeSet<Fault>) -> Self {
        // some seeds choose no fault here, and some choose all
        let share = *chance.pick(&[0, 0, 200, 300, 300, 500, 500, 1000]);
        let chosen = Fault::ALL.iter().copied().filter(|_| chance.per_mille(share));
        let mut chosen: BTreeSet<_> = chosen.collect();
        for _ in 0..chance.below(4) {
            chosen.insert(*chance.pick(Fault::ALL));
        }
        let mut rate = *chance.pick(&[5, 20, 50, 100, 200]);
        if let Some(of_story) = of_story {
            chosen = of_story.iter().copied().collect();
            rate = *chance.pick(&[100, 300, 500]);
        }
        let (delays, refuses_until) = (BTreeMap::new(), Instant::now());
        let state = State { chance, rate, is_over: false, delays, refuses_until };
        let state = Mutex::new(state);
        Self { state, allowed: &chosen - without }
    }

    pub fn allowed(&self) -> &BTreeSet<Fault> {
        &self.allowed
    }

    pub fn may(&self, fault: Fault) -> bool {
        !locked(&self.state).is_over && self.allowed.contains(&fault)
    }

    /// Whether this fault strikes here. The draw happens also if the fault may not strike, so that a run with fewer faults draws
    /// the same numbers.
    pub fn strikes(&self, fault: Fault) -> bool {
        let mut state = locked(&self.state);
        let rate = state.rate;
        let strikes =
            state.chance.per_mille(rate) && !state.is_over && self.allowed.contains(&fault);
        drop(state);
        if strikes {
            count(fault.name());
        }
        strikes
    }

    /// Picks one of these faults. In half of the cases, it is one that may strike, if there is one.
    pub fn choose(&self, of: &[Fault], chance: &mut Chance) -> Fault {
        let allowed: Vec<_> = of.iter().copied().filter(|fault| self.may(*fault)).collect();
        let is_any = chance.one_in(2) || allowed.is_empty();
        *chance.pick(if is_any { of } else { &allowed })
    }

    /// Notes that a fault may delay this process until then; `None` is every process.
    pub fn delays(&self, who: Option<&str>, until: Instant) {
        let mut state = locked(&self.state);
        let known = state.delays.entry(who.map(str::to_owned)).or_insert(until);
        *known = until.max(*known);
    }

    /// Notes that everybody may be refused until then.
    pub fn refuses(&self, until: Instant) {
        let mut state = locked(&self.state);
        state.refuses_until = until.max(state.refuses_until);
    }

    /// Since when nothing delays this process, and since when nothing keeps it from a decision.
    pub fn well_since(&self, who: &str, at_least: Instant) -> [Instant; 2] {
        let state = locked(&self.state);
        let of = |who: Option<String>| state.delays.get(&who).copied().unwrap_or(at_least);
        let answered = of(None).max(of(Some(who.to_owned()))).max(at_least);
        [answered, answered.max(state.refuses_until)]
    }

    /// Draws from the chance of the faults.
    pub fn draw<R>(&self, draw: impl FnOnce(&mut Chance) -> R) -> R {
        draw(&mut locked(&self.state).chance)
    }

    /// From this moment no fault strikes.
    pub fn end(&self) {
        locked(&self.state).is_over = true;
    }

    pub fn is_over(&self) -> bool {
        locked(&self.state).is_over
    }
}
