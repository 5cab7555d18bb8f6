//! The processes of a run: the faults' effects on them, and the conditions to wait for.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures_util::future::join_all;
use hyper::{Method, StatusCode};
use rand::RngExt as _;
use rand_xoshiro::SplitMix64;
use testkit::wait::{in_time, until};
use testkit::{
    EtcdOptions, LOCK_NAME, OwnedDir, PrivateEtcd, PrivateRedisCluster, Proxy, RedisOptions,
    Sentinels, probe,
};
use tokio::time::{Instant, sleep, sleep_until};

use super::case::{Case, FIRST_CALM, LAST_CALM, LONGEST_CALM, Peers, TTL_FLAG};
use super::etcd::{self, OtherLocks};
use super::run::Outcome;
use testkit::cluster::{Cluster, Proxied, Spec};

/// How long to wait for a condition that the case needs.
const PATIENCE: Duration = Duration::from_secs(15);

/// How soon an order that cannot be sold must be answered, on a busy machine.
pub(super) const PROMPT: Duration = Duration::from_millis(1500);

/// How often to look whether the holder has met a fault, before it is triggered anew.
const LOOKS: u32 = 50;
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The batches that the store has executed.
const BATCHES: &str = "flash_sale_batches_total";

/// The orders that have got a unit.
const RESERVED: &str = "flash_sale_orders_total{outcome=\"reserved\"}";

/// How long a batch may take from an instance to the fence.
const REFUSED_WITHIN: Duration = Duration::from_secs(1);

/// Everything that a run has started. Dropping it ends everything.
pub(super) struct Scene {
    pub(super) cluster: Cluster,
    pub(super) case: Case,
    /// The random choices of the run, which repeat with the seed.
    pub(super) random: SplitMix64,
    pub(super) evidence: Outcome,
    pub(super) ends_at: Instant,
    /// The member of etcd that a fault has killed or paused.
    pub(super) member_away: Option<usize>,
    other_locks: Option<OtherLocks>,
    is_over: bool,
}

impl Scene {
    /// Starts the servers and the instances, and waits until all can sell.
    pub(super) async fn open(dir: &OwnedDir, case: &Case, random: SplitMix64) -> Result<Self> {
        let quota = case.etcd_quota_bytes.map(|bytes| format!("--quota-backend-bytes={bytes}"));
        let etcd_options =
            EtcdOptions { flags: quota.into_iter().collect(), secured: case.secured };
        let redis_options = RedisOptions {
            volatile: case.redis_volatile,
            secured: case.secured.is_some(),
            ..RedisOptions::default()
        };
        let mut cluster =
            Cluster::open(dir, case.etcd_members, etcd_options, redis_options).await?;
        if case.redis_replicas > 0 {
            let replicas = usize::from(case.redis_replicas);
            let sentinels = Sentinels::start_in(&cluster.dir, &cluster.redis, replicas).await?;
            cluster.sentinels = Some(sentinels);
        }
        if let Some(options) = case.redis_cluster {
            // boxed: few cases have one
            let shards = Box::pin(PrivateRedisCluster::start_in(&cluster.dir, options));
            cluster.shards = Some(shards.await?);
        }
        let mut scene = Self {
            cluster,
            case: *case,
            random,
            evidence: Outcome::default(),
            // for the conditions before the load
            ends_at: Instant::now() + LAST_CALM + PATIENCE * 4,
            member_away: None,
            other_locks: None,
            is_over: false,
        };
        let leader = scene.leader().await?;
        scene.cluster.etcd.swap(0, leader);
        for index in 0..case.instances {
            scene.add(index).await?;
        }
        Ok(scene)
    }

    async fn add(&mut self, index: usize) -> Result<()> {
        let Case { fault_points, one_name, peers, instances, proxied, .. } = self.case;
        let point = |point: &&str| {
            format!("--fault-at={point}:{}", self.fault_file(index, point).display())
        };
        let mut flags = vec![format!("--lock-ttl={TTL_FLAG}")];
        flags.extend(fault_points.iter().map(point));
        flags.extend(self.case.without.map(|safeguards| format!("--without={safeguards}")));
        flags.extend(self.case.flags.iter().map(ToString::to_string));
        if peers != Peers::None && !(peers == Peers::AllButTwo && index < 2) {
            let is_last = index + 1 == instances;
            let token = if peers == Peers::OneRefused && is_last { "other" } else { "one" };
            let file = self.cluster.dir.path().join(format!("peer-token-{token}"));
            std::fs::write(&file, token)?;
            flags.push(format!("--peer-token-file={}", file.display()));
            // behind a proxy, the address is chosen with it
            if proxied != Proxied::Peers {
                flags.push("--peer-listen=127.0.0.1:0".to_owned());
            }
        }
        let name = self.cluster.instances.first().filter(|_| one_name);
        let name = name.map(|first| first.name.clone());
        let spec = Spec {
            name: name.as_deref(),
            instances,
            flags: &flags,
            proxied,
            one_endpoint: self.case.one_endpoint,
        };
        self.cluster.add(spec).await
    }

    /// Ends all processes and removes their files.
    pub(super) async fn close(mut self) -> Result<()> {
        self.cluster.kill().await;
        Ok(self.cluster.remove().await?)
    }

    /// Waits for a random time before the next fault. Returns false if another round would not end before the load does.
    pub(super) async fn next_round(&mut self) -> bool {
        let most = u64::try_from(LONGEST_CALM.as_millis()).unwrap_or(u64::MAX);
        let mut calm = self.random_millis(most / 5, most);
        if self.evidence.times == 0 {
            calm += FIRST_CALM;
        }
        let ends = Instant::now() + calm + self.case.round + LAST_CALM;
        if self.is_over || (self.evidence.times > 0 && ends > self.ends_at) {
            return false;
        }
        sleep(calm).await;
        self.evidence.times += 1;
        true
    }

    pub(super) fn end_rounds(&mut self) {
        self.is_over = true;
    }

    /// The number of the choice whose turn it is in this round.
    pub(super) fn turn(&self, choices: usize) -> usize {
        usize::try_from(self.evidence.times.saturating_sub(1)).unwrap_or_default() % choices
    }

    pub(super) fn random_millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(self.random.random_range(least..=most))
    }

    pub(super) fn pick(&mut self) -> usize {
        self.random.random_range(0..self.cluster.instances.len())
    }

    /// A random instance that will run batches: the holder, where the others send it theirs.
    pub(super) async fn pick_seller(&mut self) -> Result<usize> {
        match self.case.peers {
            Peers::None => Ok(self.pick()),
            _ => Ok(self.holder(None).await?.0),
        }
    }

    /// Records what all rounds together have done.
    pub(super) async fn record_totals(&mut self) -> Result<()> {
        let instances = self.cluster.instances.iter();
        let proxies = instances.flat_map(|one| one.etcd_proxies.iter().chain(&one.client_proxy));
        self.evidence.add("answers swallowed", proxies.map(Proxy::lost_answers).sum());
        if let Some(other_locks) = self.other_locks.take() {
            let lost = other_locks.release().await?;
            if lost > 0 {
                self.evidence.broken("session", format!("{lost} other locks were lost"));
            }
        }
        Ok(())
    }

    /// Records a finding under `invariant` if an instance has lost its session, which no round may cause.
    pub(super) async fn expect_sessions(&mut self, invariant: &str) {
        let lost = self.counter("flash_sale_lost_sessions_total").await;
        if lost > 0 {
            self.evidence.broken(invariant, format!("{lost} lock sessions were lost"));
        }
    }

    /// The file that triggers a fault at the instance, which removes it when the fault happens.
    fn fault_file(&self, index: usize, fault: &str) -> PathBuf {
        self.cluster.dir.path().join(format!("{index}-{}", fault.replace([':', '='], "-")))
    }

    /// Triggers this fault at the instance, and waits until it happens.
    pub(super) async fn trigger(&self, index: usize, fault: &str) -> Result<()> {
        self.trigger_by(index, fault, async || Ok(())).await
    }

    /// Triggers this fault, and repeats `act` meanwhile, so that the instance gets to the point.
    pub(super) async fn trigger_by(
        &self,
        index: usize,
        fault: &str,
        mut act: impl AsyncFnMut() -> Result<()>,
    ) -> Result<()> {
        let file = self.fault_file(index, fault);
        std::fs::write(&file, "")?;
        self.until("the instance meets the fault", async || {
            act().await?;
            Ok((!file.exists()).then_some(()))
        })
        .await
    }

    /// Restarts all instances shortly before the load ends if the sale stands still: a sale that hangs cannot be judged. A sale
    /// that goes on is left alone, because a restart is a pause too, and the fault alone must break I5.
    pub(super) async fn restart_if_it_stands(&mut self) -> Result<()> {
        let before = self.counter(BATCHES).await;
        sleep_until(self.ends_at - LAST_CALM / 2).await;
        if self.counter(BATCHES).await > before {
            return Ok(());
        }
        for index in 0..self.cluster.instances.len() {
            self.cluster.instances[index].child.kill().await?;
            self.start_again(index).await?;
        }
        // delete this key, or the new instances refuse to sell because of the loss that the killed ones found
        let (redis, doubt) = match &self.cluster.shards {
            None => (&self.cluster.redis, "doubt"),
            Some(shards) => {
                let (_, node) = shards.place_of("doubt:{tea}").await?;
                (&shards.nodes[node.unwrap_or_default()], "doubt:{tea}")
            }
        };
        Ok(redis.run(&format!("DEL {doubt}")).await?)
    }

    /// Stops Redis for this time with SIGSTOP; nothing is sold meanwhile.
    pub(super) async fn pause_redis(&mut self, lasts: Duration) -> Result<()> {
        let began = Instant::now();
        self.cluster.redis.child().pause()?;
        sleep(lasts).await;
        self.cluster.redis.child().resume()?;
        self.evidence.outage(began.elapsed());
        Ok(())
    }

    /// Restarts an instance that has ended, on its port. It may not be able to sell yet.
    pub(super) async fn start_again(&mut self, index: usize) -> Result<()> {
        let Cluster { instances, program, dir, .. } = &mut self.cluster;
        instances[index].start_again(program, dir).await
    }

    /// Waits until an instance has ended by itself.
    pub(super) async fn has_ended(&mut self, index: usize) -> Result<ExitStatus> {
        let ended = async { Ok(self.cluster.instances[index].child.wait().await?) };
        in_time("the instance has ended", PATIENCE, ended).await
    }

    /// Triggers this fault at an instance that runs batches, and waits until it happens. Returns the instance and its lease.
    pub(super) async fn trigger_at_seller(&mut self, fault: &str) -> Result<(usize, i64)> {
        if self.case.peers == Peers::None {
            let index = self.pick();
            // it has no claim between two tenures
            let lease = self.until_queued(index).await?;
            self.trigger(index, fault).await?;
            return Ok((index, lease));
        }
        self.until("the holder meets the fault", async || {
            let (index, lease) = self.holder(None).await?;
            let file = self.fault_file(index, fault);
            std::fs::write(&file, "")?;
            // if the lock passes on meanwhile, another instance runs the batches
            for _ in 0..LOOKS {
                if !file.exists() || self.holder(None).await? != (index, lease) {
                    break;
                }
                sleep(LOOK_EVERY).await;
            }
            let is_met = std::fs::remove_file(&file).is_err();
            Ok(is_met.then_some((index, lease)))
        })
        .await
    }

    pub(super) async fn until<T>(
        &self,
        what: &'static str,
        mut ask: impl AsyncFnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let mut limit = PATIENCE;
        if self.case.may_hang() {
            let end = self.ends_at - LAST_CALM;
            limit = limit.min(end.saturating_duration_since(Instant::now()));
        }
        let (mut answer, mut failure) = (None, None);
        let asked = until(what, limit, async || {
            // a failure may pass, for example when a member has just started; boxed because it is large
            (answer, failure) = match Box::pin(ask()).await {
                Ok(answer) => (answer, None),
                Err(error) => (None, Some(error)),
            };
            anyhow::Ok(answer.is_some())
        });
        let late = asked.await.err();
        answer.ok_or_else(|| failure.or(late).expect("there is no answer"))
    }

    /// The first member of etcd that is not away.
    pub(super) fn member(&self) -> &PrivateEtcd {
        let there = usize::from(self.member_away == Some(0));
        &self.cluster.etcd[there]
    }

    /// The leader of etcd, by its own word.
    pub(super) async fn leader(&self) -> Result<usize> {
        self.until("etcd has a leader", async || {
            for (n, member) in self.cluster.etcd.iter().enumerate() {
                if Some(n) != self.member_away && member.is_leader().await {
                    return Ok(Some(n));
                }
            }
            Ok(None)
        })
        .await
    }

    /// Waits until an instance other than `besides` holds the lock, and returns its index and its lease.
    pub(super) async fn holder(&self, besides: Option<usize>) -> Result<(usize, i64)> {
        self.until("an instance, or another one, holds the lock", async || {
            let queue = etcd::queue(self.member(), LOCK_NAME).await?;
            let Some((instance, lease)) = queue.first() else { return Ok(None) };
            let mut instances = self.cluster.instances.iter();
            let index = instances.position(|one| one.name == *instance);
            Ok(index.filter(|index| Some(*index) != besides).map(|index| (index, *lease)))
        })
        .await
    }

    /// Waits until this instance has a claim on the lock, and returns its lease.
    pub(super) async fn until_queued(&self, index: usize) -> Result<i64> {
        self.until("the instance queues for the lock", async || self.lease_of(index).await).await
    }

    /// Waits until this instance has no claim on the lock.
    pub(super) async fn until_unqueued(&self, index: usize) -> Result<()> {
        self.until("the instance gives up the lock", async || {
            Ok(self.lease_of(index).await?.is_none().then_some(()))
        })
        .await
    }

    pub(super) async fn lease_of(&self, index: usize) -> Result<Option<i64>> {
        let queue = etcd::queue(self.member(), LOCK_NAME).await?;
        let name = &self.cluster.instances[index].name;
        Ok(queue.iter().find(|(instance, _)| instance == name).map(|(_, lease)| *lease))
    }

    /// Waits until this lease is gone, and records it.
    pub(super) async fn lease_gone(&mut self, lease: i64) -> Result<()> {
        self.until("the lease is gone", async || {
            Ok(etcd::is_lease_gone(self.member(), lease).await?.then_some(()))
        })
        .await?;
        self.evidence.add("leases gone", 1);
        Ok(())
    }

    /// The sum of this counter over all instances that answer.
    pub(super) async fn counter(&self, name: &str) -> u64 {
        let ports = self.cluster.instances.iter().map(|instance| counter(instance.port, name));
        join_all(ports).await.iter().sum()
    }

    /// Waits until each instance has sold something within the last `stretch`, itself or through the holder.
    pub(super) async fn until_all_sell(&self, stretch: Duration) -> Result<()> {
        let sold = async || {
            let instances = self.cluster.instances.iter();
            join_all(instances.map(|one| counter(one.port, RESERVED))).await
        };
        self.until("every instance sells", async || {
            let before = sold().await;
            sleep(stretch).await;
            let after = sold().await;
            Ok(before.iter().zip(&after).all(|(before, after)| before < after).then_some(()))
        })
        .await
    }

    /// Lets others take their locks once the sale is under way. Earlier, an instance without the safeguard against them would not
    /// become ready, and the first fault would end the start of the sale.
    pub(super) async fn add_other_locks(&mut self) -> Result<()> {
        self.until_all_sell(Duration::from_millis(100)).await?;
        self.other_locks = Some(OtherLocks::take(self.member()).await?);
        Ok(())
    }

    /// The number of batches that the fence has refused, by Redis' own count, because an instance may not have waited for its
    /// answer.
    pub(super) async fn stale_batches(&self) -> Result<u64> {
        let errors: String = self.cluster.redis.run("INFO errorstats").await?;
        let count = errors.split_once("errorstat_STALE:count=");
        Ok(count.map_or(Ok(0), |(_, rest)| rest.lines().next().unwrap_or_default().parse())?)
    }

    /// Records how many batches were refused since `before`, and waits up to a second for the first.
    pub(super) async fn note_stale_batches(&mut self, before: u64) -> Result<()> {
        let is_refused = async || anyhow::Ok(self.stale_batches().await? > before);
        let _ = until("a batch is refused", REFUSED_WITHIN, is_refused).await;
        let refused = self.stale_batches().await?.checked_sub(before);
        self.evidence
            .add("stale batches refused", refused.context("Redis lost its count of errors")?);
        Ok(())
    }

    /// Sends an order to an instance, which must refuse it at once with this problem.
    pub(super) async fn expect_refusal(&mut self, index: usize, query: &str, problem: &str) {
        match self.order(index, query).await {
            (Ok((status, text)), took)
                if status == 503 && text.contains(problem) && took <= PROMPT =>
            {
                self.evidence.add("clear refusals", 1);
            }
            answer => self.evidence.broken("refusal", format!("{problem} was told as {answer:?}")),
        }
    }

    /// Sends an order to an instance. Returns the status and the text of the answer, and the time that it took.
    pub(super) async fn order(
        &self,
        index: usize,
        query: &str,
    ) -> (Result<(StatusCode, String), std::io::Error>, Duration) {
        let asked = Instant::now();
        let (port, path) = (self.cluster.instances[index].port, format!("/stock/reduce{query}"));
        let answer = probe::http(Method::POST, port, &path, "").await;
        (answer, asked.elapsed())
    }
}

/// A counter or gauge of the instance at this port, summed over its labels; 0 if it does not answer.
pub(super) async fn counter(port: u16, name: &str) -> u64 {
    let page = probe::http(Method::GET, port, "/metrics", "").await;
    page.map_or(0, |(_, text)| read_counter(&text, name))
}

fn read_counter(text: &str, name: &str) -> u64 {
    let samples = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let value = rest.rsplit(' ').next().filter(|_| rest.starts_with(['{', ' ']))?;
        // a counter may be written as a float
        value.split('.').next()?.parse::<u64>().ok()
    });
    samples.sum()
}
