//! The processes of a run, and what was seen of them.

mod faults;
mod inspect;

use std::collections::BTreeMap;
use std::time::Duration;

use loadtest::report::Violation;
use rand::RngExt as _;
use rand_xoshiro::SplitMix64;
use testkit::{EtcdOptions, OwnedDir, PrivateRedisCluster, RedisOptions, Sentinels};
use tokio::time::{Instant, sleep};

use super::etcd::Crowd;
use super::scenario::{FIRST_CALM, LAST_CALM, LONGEST_CALM, Run, Setup, TTL_FLAG};
use crate::error::LabError;
use demo::baselines::LockMode;
use demo::cluster::{Cluster, Spec};

/// How long to wait for a condition that the scenario needs.
const PATIENCE: Duration = Duration::from_secs(15);

/// Everything that a run has started. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Scene {
    pub(super) cluster: Cluster,
    pub(super) setup: Setup,
    /// The random choices of the run, which repeat with the seed.
    pub(super) rng: SplitMix64,
    pub(super) evidence: Evidence,
    pub(super) crowd: Option<Crowd>,
    /// The member of etcd that a fault has killed or paused.
    pub(super) member_away: Option<usize>,
    round: Duration,
    may_hang: bool,
    ends_at: Instant,
}

/// What was seen during a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Evidence {
    /// How often the fault was injected.
    pub(super) times: u64,
    /// What was seen, and how often.
    pub(super) facts: BTreeMap<&'static str, u64>,
    pub(super) findings: Vec<Violation>,
    /// The longest time in which a fault kept all instances from selling.
    pub(super) longest_outage: Duration,
}

impl Evidence {
    /// Records that something was seen so often.
    pub(super) fn saw(&mut self, what: &'static str, times: u64) {
        *self.facts.entry(what).or_default() += times;
    }

    pub(super) fn count(&self, what: &str) -> u64 {
        self.facts.get(what).copied().unwrap_or_default()
    }

    /// Records that no instance could sell for so long.
    pub(super) fn outage(&mut self, lasted: Duration) {
        self.longest_outage = self.longest_outage.max(lasted);
    }

    /// Records that an invariant does not hold.
    pub(super) fn complain(&mut self, invariant: &str, message: impl Into<String>) {
        self.findings.push(Violation::new(invariant, message));
    }
}

impl Scene {
    /// Starts the servers and the instances, and waits until all can sell.
    pub(super) async fn open(dir: &OwnedDir, run: &Run, rng: SplitMix64) -> Result<Self, LabError> {
        let Run { setup, round, .. } = *run;
        let etcd_options = EtcdOptions {
            quota_backend_bytes: setup.etcd_quota_bytes,
            secured: setup.secured,
            ..Default::default()
        };
        let redis_options = RedisOptions {
            maxmemory_bytes: setup.redis_maxmemory_bytes,
            volatile: setup.redis_volatile,
            secured: setup.secured.is_some(),
            ..RedisOptions::default()
        };
        let mut cluster =
            Cluster::open(dir, setup.etcd_members, etcd_options, redis_options).await?;
        if setup.redis_replicas > 0 {
            let replicas = usize::from(setup.redis_replicas);
            let sentinels = Sentinels::start_in(&cluster.dir, &cluster.redis, replicas).await?;
            cluster.sentinels = Some(sentinels);
        }
        if let Some(options) = setup.redis_cluster {
            // boxed: few scenarios have one
            let shards = Box::pin(PrivateRedisCluster::start_in(&cluster.dir, options));
            cluster.shards = Some(shards.await?);
        }
        let evidence = Evidence::default();
        let mut scene = Self {
            cluster,
            setup,
            rng,
            evidence,
            crowd: None,
            member_away: None,
            round,
            may_hang: false,
            ends_at: Instant::now(),
        };
        let leader = scene.leader().await?;
        scene.cluster.etcd.swap(0, leader);
        for index in 0..setup.instances {
            scene.add(index).await?;
        }
        if setup.crowded {
            scene.crowd = Some(Crowd::gather(scene.member()).await?);
        }
        Ok(scene)
    }

    async fn add(&mut self, index: usize) -> Result<(), LabError> {
        let Setup { fault_points, can_starve, one_name, .. } = self.setup;
        let mut flags = vec!["--lock-ttl".to_owned(), TTL_FLAG.to_owned()];
        let file = |fault| self.fault_file(index, fault).display().to_string();
        let points = fault_points.iter().map(|point| format!("{point}:file={}", file(point)));
        let points = points.collect::<Vec<_>>().join(",");
        if !points.is_empty() {
            flags.extend(["--fault-at".to_owned(), points]);
        }
        if can_starve {
            flags.extend(["--starve-file".to_owned(), file("starve")]);
        }
        if let Some(safeguards) = self.setup.without {
            flags.extend(["--without".to_owned(), safeguards.to_owned()]);
        }
        flags.extend(self.setup.flags.iter().map(ToString::to_string));
        let name = self.cluster.instances.first().filter(|_| one_name);
        let name = name.map(|first| first.name.clone());
        let spec = Spec {
            name: name.as_deref(),
            lock: LockMode::Etcd,
            instances: self.setup.instances,
            flags: &flags,
            proxied: self.setup.proxied,
            one_endpoint: self.setup.one_endpoint,
        };
        Ok(self.cluster.add(spec).await?)
    }

    /// Notes that the load has begun and lasts this long. If the sale may hang, no wait lasts longer.
    pub(super) fn begin(&mut self, lasts: Duration, may_hang: bool) {
        (self.ends_at, self.may_hang) = (Instant::now() + lasts, may_hang);
    }

    /// Waits for a random time before the next fault. False if another round would not end before the
    /// load does.
    pub(super) async fn next_round(&mut self) -> bool {
        let most = u64::try_from(LONGEST_CALM.as_millis()).unwrap_or(u64::MAX);
        let mut calm = self.random_millis(most / 5, most);
        if self.evidence.times == 0 {
            calm += FIRST_CALM;
        }
        let ends = Instant::now() + calm + self.round + LAST_CALM;
        if self.evidence.times > 0 && ends > self.ends_at {
            return false;
        }
        sleep(calm).await;
        self.evidence.times += 1;
        true
    }

    /// A random time from `least` to `most` milliseconds.
    pub(super) fn random_millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(self.rng.random_range(least..=most))
    }

    /// A random instance.
    pub(super) fn pick(&mut self) -> usize {
        self.rng.random_range(0..self.cluster.instances.len())
    }

    /// Ends all processes and removes their files.
    pub(super) async fn close(mut self) -> Result<(), LabError> {
        self.cluster.kill().await;
        self.cluster.remove().await.map_err(LabError::system("not everything is stopped"))
    }
}
