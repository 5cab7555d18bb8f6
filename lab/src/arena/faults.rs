//! The effect of a fault on a lock: two processes want the lock, and something happens to one of them or to the servers.

use std::io;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures_util::future::join_all;
use rand_xoshiro::SplitMix64;
use serde::Serialize;
use testkit::replication::{Follow, Replicated};
use testkit::server::Private;
use testkit::wait::until;
use testkit::{
    OwnedDir, PrivatePostgres, PrivateRedis, Proxy, RedisOptions, ReplicatedPostgres,
    ReplicatedRedis,
};
use tokio::time::sleep;

use super::contender::{
    Contender, TTL, Tenure, held_at, longest_overlap, millis, now, repeated_tokens,
};
use super::options::Fault;
use super::speed::millis_below;
use crate::clients::proxies_to;
use crate::experiment::{Trials, quantile};
use crate::locks::{LockMode, LockServer, Server, Servers};

/// How long a contender that takes turns holds the lock.
const TURN: Duration = Duration::from_millis(20);

/// How long a contender holds the lock that it loses by a fault of a server.
const LONG_HOLD: Duration = Duration::from_secs(5);

/// How long a contender holds the lock while it is cut off: until it notices the loss.
const ENDLESS_HOLD: Duration = Duration::from_mins(1);

/// How long to wait for a takeover before it counts as "never", and how long a process is stopped or cut off. The claim of a dead
/// process is gone earlier: on `ZooKeeper`, which is the slowest, after one and a half TTLs.
const BOUND: Duration = Duration::from_secs(6);
const SERVER_BOUND: Duration = Duration::from_secs(20);

/// How long contenders may take to start.
const GETTING_GOING: Duration = Duration::from_secs(30);

/// How long a contender that was not killed may take to notice the fault.
const FINDING_OUT: Duration = Duration::from_secs(5);

/// The number of grants after a fault that show that the lock works again.
const GRANTS: usize = 3;

/// The fault hits at a random time within this many milliseconds, which are some turns.
const PHASE: u64 = 150;

/// A holder is cut off at a random time within this many milliseconds, which cover the time between two renewals of its lease.
const RENEWALS: u64 = 1500;

/// How long a replica lags before it takes over: at least, and at most in addition, in milliseconds.
const LAG: (u64, u64) = (200, 600);

/// The number of members of a lock with a leader.
const MEMBERS: usize = 3;

/// The result of one trial.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Trial {
    /// The longest time after the fault in which nobody was granted the lock. If one process keeps the lock: the time until the
    /// next grant, provided that the fault took the lock from that process. `None`: never, within the bound.
    pub(super) takeover_ms: Option<f64>,
    /// Whether the process that was hit held the lock; `None` if the fault hit a server.
    pub(super) hit_holder: Option<bool>,
    /// The longest time for which both wrote as holders.
    pub(super) overlap_ms: f64,
    /// How many grants came with a token that another grant had.
    pub(super) repeated_tokens: usize,
    /// Whether the lock came back as another cluster, whose tokens cannot be compared with earlier tokens.
    pub(super) other_cluster: bool,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Takeover {
    pub(super) fault: Fault,
    pub(super) trials: usize,
    pub(super) never: usize,
    /// Trials in which the fault hit a holder, or a server.
    pub(super) hits: usize,
    /// The median over the trials that hit; `None` if it is "never", or if no trial hit.
    pub(super) p50_ms: Option<f64>,
    /// The longest over all trials; `None` if one of them is "never".
    pub(super) longest_ms: Option<f64>,
    /// Trials with two holders at once.
    pub(super) overlaps: usize,
    pub(super) longest_overlap_ms: f64,
    /// Trials in which a token was given twice.
    pub(super) repeated_tokens: usize,
    pub(super) other_cluster: usize,
    pub(super) each: Vec<Trial>,
}

impl Takeover {
    fn of(fault: Fault, trials: Vec<Trial>) -> Self {
        let is_hit = |trial: &&Trial| trial.hit_holder != Some(false) || trial.overlap_ms > 0.0;
        let takeover = |trial: &Trial| trial.takeover_ms.unwrap_or(f64::INFINITY);
        let unless_never = |millis: &f64| millis.is_finite();
        let count = |is: fn(&Trial) -> bool| trials.iter().filter(|trial| is(trial)).count();
        let of_hits = trials.iter().filter(is_hit).map(takeover);
        let longest = trials.iter().map(takeover).fold(0.0, f64::max);
        Self {
            fault,
            trials: trials.len(),
            never: count(|trial| trial.takeover_ms.is_none()),
            hits: of_hits.clone().count(),
            p50_ms: quantile(of_hits, 50).filter(unless_never),
            longest_ms: Some(longest).filter(unless_never),
            overlaps: count(|trial| trial.overlap_ms > 0.0),
            longest_overlap_ms: trials.iter().map(|trial| trial.overlap_ms).fold(0.0, f64::max),
            repeated_tokens: count(|trial| trial.repeated_tokens > 0),
            other_cluster: count(|trial| trial.other_cluster),
            each: trials,
        }
    }

    /// Whether the fault hits one of two processes, a holder or not.
    pub(super) fn hits_process(&self) -> bool {
        matches!(self.fault, Fault::Kill | Fault::Pause | Fault::Partition)
    }

    /// Whether one process keeps the lock all the time, so that a takeover takes the lock from a live holder.
    pub(super) fn is_kept(&self) -> bool {
        matches!(self.fault, Fault::Failover | Fault::SyncFailover)
    }
}

/// Whether this fault is possible here for a lock on this server.
pub(super) fn applies(fault: Fault, server: Server) -> bool {
    match fault {
        Fault::Kill | Fault::Pause => true,
        Fault::Partition | Fault::Server => server != Server::Directory,
        Fault::Leader => matches!(server, Server::Etcd | Server::ZooKeeper),
        Fault::Failover => matches!(server, Server::Redis { nodes: 1 } | Server::Postgres),
        Fault::SyncFailover => server == Server::Postgres,
    }
}

pub(super) async fn takeover(
    fault: Fault,
    lock: LockMode,
    parent: &OwnedDir,
    trials: &Trials,
) -> Result<Takeover> {
    let worker = async || {
        let members = if fault == Fault::Leader { MEMBERS } else { 1 };
        let servers = Servers::start(lock, members, parent).await?;
        let (mut scene, mut done) = (Scene { servers, fault }, Vec::new());
        while let Some(mut random) = trials.next() {
            done.push(scene.trial(&mut random).await?);
        }
        scene.servers.stop().await.map(|()| done)
    };
    // servers that start beside a trial must not use the trial's core for as long as a lease lasts
    let is_heavy =
        matches!(fault, Fault::Failover | Fault::SyncFailover) && lock.server() == Server::Postgres;
    let most = if is_heavy { 2 } else { usize::MAX };
    Ok(Takeover::of(fault, trials.run(most, worker).await?))
}

/// Two contenders and their logs.
struct Pair {
    one: Contender,
    other: Contender,
    /// Whether the first contender keeps the lock, so that the second one waits for it.
    is_kept: bool,
}

impl Pair {
    /// Starts both at these addresses, on a lock that nobody else uses, and waits until both have sessions.
    async fn open(servers: &Servers, at: [&[String]; 2], hold: [Duration; 2]) -> Result<Self> {
        let name = format!("arena-{}", uuid::Uuid::new_v4().simple());
        let start = |n: usize| Contender::start(&servers.dir, servers.lock, at[n], &name, hold[n]);
        let pair = Self { one: start(0)?, other: start(1)?, is_kept: hold[0] > TTL };
        let both = async || anyhow::Ok(pair.one.has_opened() && pair.other.has_opened());
        until("two contenders have sessions", GETTING_GOING, both).await?;
        Ok(pair)
    }

    /// Lets both ask for the lock, and waits until they take turns, or until the second one waits for the first.
    async fn begin(&self) -> Result<()> {
        self.one.begin()?;
        let granted = async || anyhow::Ok(!self.one.tenures().1.is_empty());
        until("a contender has the lock", GETTING_GOING, granted).await?;
        self.other.begin()?;
        until("two contenders take turns", GETTING_GOING, async || {
            let [(_, one), (asked, other)] = [self.one.tenures(), self.other.tenures()];
            Ok(if self.is_kept { asked > 0 } else { one.len() >= 2 && other.len() >= 2 })
        })
        .await
    }

    fn tenures(&self) -> [Vec<Tenure>; 2] {
        [self.one.tenures().1, self.other.tenures().1]
    }

    /// Ends both, and judges their logs. A contender that still holds the lock counts as writing until `until`. The first
    /// contender was hit at `hit`.
    async fn judge(
        mut self,
        takeover_ms: Option<f64>,
        until: [u64; 2],
        hit: Option<u64>,
    ) -> Result<Trial> {
        let [one, other] = self.tenures();
        self.one.child.kill().await?;
        self.other.child.kill().await?;
        let clusters = one.iter().chain(&other).map(|tenure| tenure.token.0);
        let (least, most) = (clusters.clone().min(), clusters.max());
        Ok(Trial {
            takeover_ms,
            hit_holder: hit.map(|hit| held_at(&one, hit)),
            overlap_ms: longest_overlap(&one, &other, until),
            repeated_tokens: repeated_tokens(&one, &other),
            other_cluster: least != most,
        })
    }
}

/// The servers of a lock, and the fault of their trials.
struct Scene {
    servers: Servers,
    fault: Fault,
}

impl Scene {
    async fn trial(&mut self, random: &mut SplitMix64) -> Result<Trial> {
        match self.fault {
            Fault::Kill | Fault::Pause | Fault::Partition => self.of_a_process(random).await,
            Fault::Server | Fault::Leader => self.of_a_server(random).await,
            Fault::Failover if self.servers.lock.server() != Server::Postgres => {
                let (dir, options) = (&self.servers.dir, RedisOptions::default());
                let redis = ReplicatedRedis::start_in(dir, options).await?;
                self.failover(redis, PrivateRedis::kill, random).await
            }
            Fault::Failover | Fault::SyncFailover => {
                let is_synchronous = self.fault == Fault::SyncFailover;
                let postgres = ReplicatedPostgres::start(is_synchronous).await?;
                self.failover(postgres, PrivatePostgres::crash, random).await
            }
        }
    }

    /// A trial with a fault that hits one of two processes.
    async fn of_a_process(&self, random: &mut SplitMix64) -> Result<Trial> {
        let direct = self.servers.addresses();
        let (proxies, through) = proxies_to(&direct).await?;
        // a holder that is cut off works on: it writes too late only if its work outlasts its lease
        let (at, hold, phase) = match self.fault {
            Fault::Partition => (&through, ENDLESS_HOLD, RENEWALS),
            _ => (&direct, TURN, PHASE),
        };
        let mut pair = Pair::open(&self.servers, [at, &direct], [hold, TURN]).await?;
        pair.begin().await?;
        sleep(millis_below(phase, random)).await;
        let began = now();
        match self.fault {
            Fault::Kill => drop(pair.one.child.kill().await?),
            Fault::Pause => pair.one.child.pause()?,
            _ => proxies.iter().for_each(Proxy::freeze),
        }
        // without a takeover, this waits until the process goes on
        let takeover = until_served(began, BOUND, || pair.other.tenures().1).await;
        let mut victim_until = began;
        if self.fault != Fault::Kill {
            sleep(BOUND.saturating_sub(Duration::from_nanos(now() - began))).await;
            let before = pair.one.tenures();
            if self.fault == Fault::Pause {
                pair.one.child.resume()?;
            }
            proxies.iter().for_each(Proxy::release);
            // the process ends its step, and asks for the lock again
            let goes_on = async || anyhow::Ok(pair.one.tenures() != before);
            let _ = until("a contender goes on", FINDING_OUT, goes_on).await;
            victim_until = now();
        }
        pair.judge(takeover, [victim_until, now()], Some(began)).await
    }

    /// Kills a server and starts it again: at once; or, if it is the leader, after another one has taken its place.
    async fn of_a_server(&mut self, random: &mut SplitMix64) -> Result<Trial> {
        let servers = &mut self.servers;
        let at = servers.addresses();
        let pair = Pair::open(servers, [&at, &at], [TURN; 2]).await?;
        pair.begin().await?;
        sleep(millis_below(PHASE, random)).await;
        let mut victim = 0;
        if self.fault == Fault::Leader {
            // an election may still be under way after the trial before
            until("the servers have a leader", SERVER_BOUND, async || {
                let leads = servers.members.iter().map(LockServer::is_leader);
                let leader = join_all(leads).await.into_iter().position(|leads| leads);
                victim = leader.unwrap_or_default();
                anyhow::Ok(leader.is_some())
            })
            .await?;
        }
        let began = now();
        let victim = &mut servers.members[victim];
        victim.kill().await?;
        if self.fault == Fault::Server {
            victim.restart().await?;
        }
        let takeover = until_served(began, SERVER_BOUND, || pair.tenures().concat()).await;
        if self.fault == Fault::Leader {
            victim.restart().await?;
        }
        pair.judge(takeover, [now(), now()], None).await
    }

    /// A primary dies, and its replica takes its place. Each replica knows the sessions. An asynchronous one knows no grant; a
    /// synchronous one has every write that was answered, and a delay keeps it from having more.
    async fn failover<K: Follow>(
        &self,
        mut replicated: Replicated<K>,
        kill: impl AsyncFnOnce(&mut Private<K>) -> io::Result<()>,
        random: &mut SplitMix64,
    ) -> Result<Trial>
    where
        anyhow::Error: From<K::Error>,
    {
        let at = [replicated.url()];
        let pair = Pair::open(&self.servers, [&at, &at], [LONG_HOLD; 2]).await?;
        let lag = if self.fault == Fault::SyncFailover {
            pair.begin().await?;
            replicated.hold_writes_back().await?;
            millis_below(PHASE, random)
        } else {
            replicated.hold_writes_back().await?;
            pair.begin().await?;
            Duration::from_millis(LAG.0) + millis_below(LAG.1, random)
        };
        sleep(lag).await;
        let began = now();
        kill(&mut replicated.primary).await.context("the primary does not die")?;
        replicated.fail_over().await?;
        let trial = until_taken(pair, began).await;
        replicated.stop().await.context("a server does not stop")?;
        trial
    }
}

/// One of the pair holds the lock for some time. Returns whether the fault takes the lock away meanwhile, and when the next grant
/// comes. The same process may get that grant, after it has noticed the loss.
async fn until_taken(pair: Pair, began: u64) -> Result<Trial> {
    let ended = || pair.one.tenures().1.first()?.ended;
    let next = || {
        let [one, other] = pair.tenures();
        one.get(1).into_iter().chain(other.first()).map(|tenure| tenure.granted).min()
    };
    let is_over = async || anyhow::Ok(next().is_some() && ended().is_some());
    let _ = until("there is another grant", LONG_HOLD + BOUND + FINDING_OUT, is_over).await;
    let first = pair.one.tenures().1[0];
    // a holder without a fault releases the lock when its time is over
    let is_kept = |next| {
        let in_time = |ended| millis(ended - first.granted) >= LONG_HOLD.as_secs_f64() * 1e3;
        first.ended.is_some_and(|ended| in_time(ended) && ended <= next)
    };
    let taken = next().filter(|next| !is_kept(*next));
    let takeover = taken.map(|next| millis(next.saturating_sub(began)));
    pair.judge(takeover, [now(), now()], None).await
}

/// The longest time since `began` in which none of these contenders was granted the lock, measured after enough grants; `None`
/// if too few came within the bound.
async fn until_served(
    began: u64,
    bound: Duration,
    tenures: impl Fn() -> Vec<Tenure>,
) -> Option<f64> {
    let grants = || {
        let grants = tenures().into_iter().map(|tenure| tenure.granted);
        let mut grants: Vec<_> = grants.filter(|granted| *granted > began).collect();
        grants.sort_unstable();
        grants.truncate(GRANTS);
        grants
    };
    let works = async || anyhow::Ok(grants().len() == GRANTS);
    until("the lock works again", bound, works).await.ok()?;
    let grants: Vec<_> = std::iter::once(began).chain(grants()).collect();
    grants.windows(2).map(|pair| millis(pair[1] - pair[0])).max_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the median covers the trials that hit the holder, and a trial in which nobody was served counts as the longest.
    #[test]
    fn counts_never_as_longest() {
        let trial = |(takeover_ms, is_hit)| Trial {
            takeover_ms,
            hit_holder: Some(is_hit),
            ..Trial::default()
        };
        let of = |trials: &[(Option<f64>, bool)]| {
            let it = Takeover::of(Fault::Pause, trials.iter().copied().map(trial).collect());
            (it.hits, it.never, it.p50_ms, it.longest_ms)
        };
        let all = [(Some(1.0), false), (Some(2.0), true), (None, true), (None, true)];
        assert_eq!(of(&all), (3, 2, None, None));
        assert_eq!(of(&all[..2]), (1, 0, Some(2.0), Some(2.0)));
    }
}
