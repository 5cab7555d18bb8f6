//! Who takes part in a run, and what a fault can do to them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use tokio::time::{Instant, sleep, sleep_until};

use super::cluster::{self, Holder};
use super::error::ChaosError;
use super::evidence::Evidence;
use super::random::Random;
use super::row::{FIRST_CALM, LAST_CALM, LONGEST_CALM, Setup, TTL_FLAG, Trial};
use crate::demo::instance::{Instance, LOCK_NAME, Shared};
use crate::demo::{
    DemoError, EtcdOptions, OwnedDir, PrivateEtcd, PrivateRedis, Proxy, RedisOptions, ports, probe,
};
use crate::sale::LockMode;

/// How many times an instance is started if somebody took its port meanwhile.
const PORT_ATTEMPTS: usize = 5;

/// How long something may take that must come about, or the row cannot go on.
pub(super) const PATIENCE: Duration = Duration::from_secs(15);

/// How often something is asked for that must come about.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// What all runs share.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) program: PathBuf,
    pub(super) loadtest: PathBuf,
    pub(super) dir: OwnedDir,
}

/// An instance, and the proxies around it.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) name: String,
    pub(super) instance: Instance,
    /// One for each member.
    pub(super) etcd_proxies: Vec<Proxy>,
    pub(super) redis_proxy: Option<Proxy>,
    pub(super) client_proxy: Option<Proxy>,
}

/// All that a run has started. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Scene {
    pub(super) sites: Vec<Site>,
    pub(super) redis: PrivateRedis,
    pub(super) etcd: Vec<PrivateEtcd>,
    pub(super) dir: OwnedDir,
    pub(super) setup: Setup,
    pub(super) random: Random,
    pub(super) evidence: Evidence,
    /// The member of etcd that a fault has taken away.
    pub(super) member_away: Option<usize>,
    round: Duration,
    may_hang: bool,
    ends_at: Instant,
    stage: Arc<Stage>,
}

impl Scene {
    /// Starts the servers and the instances, and waits until all can sell.
    pub(super) async fn open(
        stage: Arc<Stage>,
        trial: &Trial,
        random: Random,
    ) -> Result<Self, ChaosError> {
        let Trial { setup, round, .. } = *trial;
        let dir = OwnedDir::create_in(&stage.dir)
            .map_err(ChaosError::system("no temporary directory could be made"))?;
        let etcd_options = EtcdOptions { quota_backend_bytes: setup.etcd_quota_bytes };
        let redis_options = RedisOptions {
            maxmemory_bytes: setup.redis_maxmemory_bytes,
            volatile: setup.redis_volatile,
            ..RedisOptions::default()
        };
        let (etcd, redis) = tokio::try_join!(
            PrivateEtcd::start_cluster_in(&dir, setup.etcd_members, etcd_options),
            PrivateRedis::start_in(&dir, redis_options),
        )?;
        let evidence = Evidence::default();
        let mut scene = Self {
            sites: Vec::new(),
            redis,
            etcd,
            dir,
            setup,
            random,
            evidence,
            member_away: None,
            round,
            may_hang: false,
            ends_at: Instant::now(),
            stage,
        };
        let leader = scene.leader().await?;
        scene.etcd.swap(0, leader);
        for _ in 0..setup.instances {
            let site = scene.site().await?;
            scene.sites.push(site);
        }
        Ok(scene)
    }

    async fn site(&self) -> Result<Site, ChaosError> {
        let no_proxy = ChaosError::system("a proxy has no port");
        let mut etcd_proxies = Vec::new();
        if self.setup.etcd_proxies {
            for member in &self.etcd {
                etcd_proxies.push(Proxy::to(member.port()).await.map_err(&no_proxy)?);
            }
        }
        let mut redis_proxy = if self.setup.redis_proxies {
            let proxy = Proxy::with_marker(self.redis.port(), b"stale\r\n").await;
            Some(proxy.map_err(&no_proxy)?)
        } else {
            None
        };
        let mut attempt = 1;
        loop {
            let [port] = ports::free_ports().map_err(ChaosError::system("no port is free"))?;
            let first = self.sites.first().filter(|_| self.setup.one_name);
            let name = first.map_or_else(|| port.to_string(), |first| first.name.clone());
            let instance = self.start(&name, port, &etcd_proxies, redis_proxy.as_ref())?;
            let client_proxy = if self.setup.client_proxies {
                Some(Proxy::to(port).await.map_err(&no_proxy)?)
            } else {
                None
            };
            let mut site = Site { name, instance, etcd_proxies, redis_proxy, client_proxy };
            match site.instance.until_ready().await {
                Ok(()) => return Ok(site),
                Err(DemoError::Server(error))
                    if error.is_port_taken() && attempt < PORT_ATTEMPTS =>
                {
                    attempt += 1;
                    (etcd_proxies, redis_proxy) = (site.etcd_proxies, site.redis_proxy);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn start(
        &self,
        name: &str,
        port: u16,
        etcd_proxies: &[Proxy],
        redis_proxy: Option<&Proxy>,
    ) -> Result<Instance, ChaosError> {
        let etcd: Vec<_> = if etcd_proxies.is_empty() {
            let known = if self.setup.one_endpoint { 1 } else { self.etcd.len() };
            self.etcd.iter().take(known).map(PrivateEtcd::endpoint).collect()
        } else {
            etcd_proxies.iter().map(Proxy::url).collect()
        };
        let redis = redis_proxy.map_or_else(
            || self.redis.url(),
            |proxy| format!("redis://127.0.0.1:{}", proxy.port()),
        );
        let mut all = vec!["--lock-ttl", TTL_FLAG];
        let points = self
            .setup
            .fault_points
            .iter()
            .map(|point| format!("{point}:file={}", self.fault_file(port, point).display()));
        let points = points.collect::<Vec<_>>().join(",");
        if !points.is_empty() {
            all.extend(["--fault-at", &points]);
        }
        let starve_file = self.fault_file(port, "starve").to_string_lossy().into_owned();
        if self.setup.can_starve {
            all.extend(["--starve-file", &starve_file]);
        }
        all.extend(self.setup.flags);
        let shared = Shared {
            program: &self.stage.program,
            dir: &self.dir,
            etcd: &etcd.join(","),
            redis: &redis,
            lock: LockMode::Etcd,
            lock_name: LOCK_NAME,
            instances: self.setup.instances,
            flags: &all,
        };
        Ok(Instance::start_as(name, port, shared)?)
    }

    /// The file whose presence asks the instance for a fault. The fault removes it when it happens.
    fn fault_file(&self, port: u16, fault: &str) -> PathBuf {
        self.dir.path().join(format!("{port}-{}", fault.replace([':', '='], "-")))
    }

    /// Has the instance meet this fault the next time that it can, and waits until it has.
    pub(super) async fn meet(
        &self,
        index: usize,
        fault: &str,
        how: &str,
    ) -> Result<(), ChaosError> {
        let file = self.fault_file(self.sites[index].instance.port, fault);
        let asked = ChaosError::system("a fault cannot be asked for");
        // a reader must not see half of it
        let half = file.with_extension("half");
        std::fs::write(&half, how).and_then(|()| std::fs::rename(&half, &file)).map_err(asked)?;
        self.until("the instance meets the fault", async |_| Ok((!file.exists()).then_some(())))
            .await
    }

    pub(super) fn stage(&self) -> &Stage {
        &self.stage
    }

    /// Where clients reach the instances.
    pub(super) fn urls(&self) -> Vec<String> {
        let url = |site: &Site| {
            site.client_proxy.as_ref().map_or_else(|| site.instance.url(), Proxy::url)
        };
        self.sites.iter().map(url).collect()
    }

    /// The load has begun and lasts this long. If the sale may hang, nothing is waited for beyond that.
    pub(super) fn begin(&mut self, lasts: Duration, may_hang: bool) {
        (self.ends_at, self.may_hang) = (Instant::now() + lasts, may_hang);
    }

    /// Waits for a time that chance decides, so that the next fault meets anything. False if another
    /// round would not end before the load does.
    pub(super) async fn next_round(&mut self) -> bool {
        let most = u64::try_from(LONGEST_CALM.as_millis()).unwrap_or(u64::MAX);
        let mut calm = self.random.millis(most / 5, most);
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

    /// Starts all instances again shortly before the load ends: a sale that hangs cannot be judged.
    pub(super) async fn revive(&mut self) -> Result<(), ChaosError> {
        sleep_until(self.ends_at - LAST_CALM / 2).await;
        for index in 0..self.sites.len() {
            let killed = self.sites[index].instance.child.kill().await;
            killed.map_err(ChaosError::system("an instance cannot be killed"))?;
            self.start_again(index).await?;
        }
        Ok(())
    }

    /// Asks until the answer is there.
    pub(super) async fn until<T>(
        &self,
        what: &'static str,
        mut ask: impl AsyncFnMut(&Self) -> Result<Option<T>, ChaosError>,
    ) -> Result<T, ChaosError> {
        let mut deadline = Instant::now() + PATIENCE;
        if self.may_hang {
            deadline = deadline.min(self.ends_at - LAST_CALM);
        }
        loop {
            // what cannot be asked now may be asked later: a member that has just begun to run
            let asked = ask(self).await;
            match asked {
                Ok(Some(answer)) => return Ok(answer),
                Err(error) if Instant::now() >= deadline => return Err(error),
                Ok(None) if Instant::now() >= deadline => {
                    return Err(ChaosError::NotInTime { what, seconds: PATIENCE.as_secs() });
                }
                Ok(None) | Err(_) => sleep(POLL_INTERVAL).await,
            }
        }
    }

    /// Where etcd answers: the first member that the row has not taken away.
    pub(super) fn endpoint(&self) -> String {
        let mut members = self.etcd.iter().enumerate();
        let there = members.find(|(n, _)| Some(*n) != self.member_away);
        there.map(|(_, member)| member.endpoint()).unwrap_or_default()
    }

    /// The member of etcd that leads, as a member that is there sees it.
    pub(super) async fn leader(&self) -> Result<usize, ChaosError> {
        self.until("etcd has a leader", async |scene| {
            for (n, member) in scene.etcd.iter().enumerate() {
                if Some(n) == scene.member_away {
                    continue;
                }
                let ids = cluster::member_and_leader(&member.endpoint()).await;
                if ids.is_some_and(|(member, leader)| member == leader) {
                    return Ok(Some(n));
                }
            }
            Ok(None)
        })
        .await
    }

    /// Who holds the lock now, waiting for somebody to.
    pub(super) async fn holder(&self) -> Result<(usize, Holder), ChaosError> {
        self.until("an instance holds the lock", async |scene| {
            let holder = cluster::holder(&scene.endpoint(), LOCK_NAME).await?;
            Ok(holder.and_then(|holder| Some((scene.index_of(&holder.instance)?, holder))))
        })
        .await
    }

    /// Waits until another instance holds the lock.
    pub(super) async fn holder_besides(&self, index: usize) -> Result<Holder, ChaosError> {
        self.until("another instance holds the lock", async |scene| {
            let holder = cluster::holder(&scene.endpoint(), LOCK_NAME).await?;
            let index_now = holder.as_ref().and_then(|holder| scene.index_of(&holder.instance));
            Ok(holder.filter(|_| index_now.is_some_and(|now| now != index)))
        })
        .await
    }

    /// Notes that this lease is gone, waiting for it.
    pub(super) async fn note_lease_gone(&mut self, lease: i64) -> Result<(), ChaosError> {
        self.until("the lease is gone", async |scene| {
            Ok(cluster::is_lease_gone(&scene.endpoint(), lease).await?.then_some(()))
        })
        .await?;
        self.evidence.saw("leases gone", 1);
        Ok(())
    }

    fn index_of(&self, instance: &str) -> Option<usize> {
        self.sites.iter().position(|site| site.name == instance)
    }

    /// Ends an instance with SIGKILL, and notes it.
    pub(super) async fn kill(&mut self, index: usize) -> Result<(), ChaosError> {
        let killed = self.sites[index].instance.child.kill().await;
        killed.map_err(ChaosError::system("an instance cannot be killed"))?;
        self.evidence.saw("instances killed", 1);
        Ok(())
    }

    /// Starts an instance again that has ended, on its port.
    pub(super) async fn start_again(&mut self, index: usize) -> Result<(), ChaosError> {
        let site = &self.sites[index];
        let port = site.instance.port;
        let (etcd, redis) = (site.etcd_proxies.as_slice(), site.redis_proxy.as_ref());
        let mut instance = self.start(&site.name, port, etcd, redis)?;
        instance.until_ready().await?;
        self.sites[index].instance = instance;
        Ok(())
    }

    /// SIGKILL has come to an instance by its own doing, or comes now.
    pub(super) async fn has_died(&mut self, index: usize) -> Result<(), ChaosError> {
        let child = &mut self.sites[index].instance.child;
        let ended = tokio::time::timeout(PATIENCE, child.wait()).await;
        ended
            .map_err(|_| ChaosError::NotInTime {
                what: "the instance has ended",
                seconds: PATIENCE.as_secs(),
            })?
            .map_err(ChaosError::system("an instance cannot be waited for"))?;
        self.evidence.saw("instances killed", 1);
        Ok(())
    }

    /// SIGSTOP to an instance.
    pub(super) fn pause(&self, index: usize) -> Result<(), ChaosError> {
        let paused = self.sites[index].instance.child.pause();
        paused.map_err(ChaosError::system("an instance cannot be paused"))
    }

    /// SIGCONT to an instance.
    pub(super) fn resume(&self, index: usize) -> Result<(), ChaosError> {
        let resumed = self.sites[index].instance.child.resume();
        resumed.map_err(ChaosError::system("an instance cannot be resumed"))
    }

    /// What the counter of this name says, added up over all instances that answer.
    pub(super) async fn counter(&self, name: &str) -> u64 {
        let mut sum = 0;
        for site in &self.sites {
            let port = site.instance.port;
            if let Ok((_, text)) = probe::http(Method::GET, port, "/metrics", "").await {
                sum += read_counter(&text, name);
            }
        }
        sum
    }

    /// Batches that the fence has refused, as the instances tell.
    pub(super) async fn stale_batches(&self) -> u64 {
        self.counter("flash_sale_stale_batches_total").await
    }

    /// Notes how many there are more than `before`, giving an instance time to send one.
    pub(super) async fn note_stale_batches(&mut self, before: u64) {
        const WITHIN: Duration = Duration::from_secs(1);
        let deadline = Instant::now() + WITHIN;
        let more = loop {
            let more = self.stale_batches().await.saturating_sub(before);
            if more > 0 || Instant::now() > deadline {
                break more;
            }
            sleep(POLL_INTERVAL).await;
        };
        self.evidence.saw("stale batches refused", more);
    }

    /// Stops everything in order, and removes its files.
    pub(super) async fn close(self) -> Result<(), ChaosError> {
        let Self { mut sites, redis, etcd, dir, .. } = self;
        let stops = sites.iter_mut().map(|site| site.instance.child.kill());
        futures_util::future::join_all(stops).await;
        drop((sites, redis, etcd));
        dir.remove().await.map_err(ChaosError::system("not everything is stopped"))
    }
}

/// The samples of a counter, whatever their labels, added up.
fn read_counter(text: &str, name: &str) -> u64 {
    let samples = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let rest = match rest.strip_prefix('{') {
            Some(labels) => labels.split_once("} ")?.1,
            None => rest.strip_prefix(' ')?,
        };
        // a counter may be written as a float
        rest.split(['.', ' ']).next()?.parse::<u64>().ok()
    });
    samples.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a counter is read with and without labels, and not for another one whose name is longer.
    #[test]
    fn reads_counters() {
        let text = "# TYPE a counter\na 3\na{x=\"1\"} 4\na{x=\"2\"} 5.0\na_total 100\n";
        assert_eq!((read_counter(text, "a"), read_counter(text, "b")), (12, 0));
    }
}
